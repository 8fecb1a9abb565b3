"""What a device, its lists and its releases refuse, each condition alone and at its edge."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import pytest
from tests.unit.deployment.test_participation import Round, masked
from tests.unit.deployment.transports import OFTEN, ONCE, TEXTS, LocalTransport, make_devices, run, same, simulated

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.deployment.device import Device, UnknownJobError
from fedgram.deployment.key_list import SIGNING_KEY, RefusedKeyListError, admit_keys, open_keys, read_key_list
from fedgram.deployment.keys import write_release_key
from fedgram.deployment.releases import (
    PIECE_BYTES,
    Choice,
    RefusedReleaseError,
    Release,
    ReleasedModel,
    describe_model,
    open_release,
    sign_release,
)
from fedgram.deployment.transport import Reply
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.secure.identity import Identity

DIGEST = "ab" * 32


@pytest.fixture
def plain(tmp_path: Path) -> Device:
    (device,) = make_devices(tmp_path, {3: TEXTS[3]}).values()
    device.join({"job": ONCE.content})
    return device


def request(number: bytes = b"1") -> dict[str, bytes]:
    return {"job": ONCE.digest.encode(), "round": number, "broadcast": b"", "broadcast_digest": b""}


def test_a_device_that_masks_sends_no_plain_report(tmp_path: Path) -> None:
    going = Round(masked(tmp_path), 1)
    content = {"job": ONCE.digest.encode(), "round": b"1", "broadcast": going.broadcast}
    assert [device.report(content) for device in going.devices.values()] == [{"declined": b"only masked"}] * 3


def test_a_device_that_does_not_mask_takes_no_step_of_a_masked_round(tmp_path: Path, plain: Device) -> None:
    (tmp_path / "others").mkdir()
    invitation = next(iter(Round(masked(tmp_path / "others"), 1).requests.values()))
    assert plain.secure({**request(), "message": invitation}) == {"declined": b"never masked"}


def test_a_refused_message_uses_up_the_state_of_a_masked_round(tmp_path: Path) -> None:
    going = Round(masked(tmp_path), 1)
    assert all("answer" in answer for answer in going.step())
    going.advance()
    right = dict(going.requests)
    going.requests = {node: message[:-1] + bytes([message[-1] ^ 1]) for node, message in right.items()}
    assert all("failed" in answer for answer in going.step())
    going.requests = right
    assert going.step() == [{"declined": b"round not known"}] * 3


def test_a_damaged_job_is_not_run(plain: Device) -> None:
    (plain.jobs / ONCE.digest).write_bytes(OFTEN.content)
    with pytest.raises(UnknownJobError, match="damaged"):
        plain.report(request())


@pytest.mark.parametrize("number", [b"0", b"000", b"", b"-1", b"1.5", b"1e3", b"1000000000"])
def test_a_round_without_a_number_from_one_is_not_run(plain: Device, number: bytes) -> None:
    with pytest.raises(FedgramError, match="no valid round number"):
        plain.report(request(number))
    with pytest.raises(FedgramError, match="no valid round number"):
        plain.secure({**request(number), "message": b"FGSA\4\1" + bytes(64)})


@pytest.mark.parametrize("digest", [DIGEST, "../" + "a" * 61, DIGEST[:-1], ""])
def test_a_job_that_was_never_sent_is_not_run(plain: Device, digest: str) -> None:
    with pytest.raises(UnknownJobError, match="does not have the job"):
        plain.job(digest)


def test_a_list_of_keys_needs_the_federations_public_key(tmp_path: Path) -> None:
    write_release_key(tmp_path / SIGNING_KEY, tmp_path / "release.pub")
    admit_keys(tmp_path, [Identity.from_entropy(bytes(40)).public])
    found = read_key_list(tmp_path)
    assert found is not None
    assert open_keys(found.signed, tmp_path / "release.pub") == found.admitted
    for missing in (None, tmp_path / "nowhere.pub"):
        with pytest.raises(RefusedKeyListError, match="is missing"):
            open_keys(found.signed, missing)


def test_a_release_of_another_key_is_not_opened(tmp_path: Path) -> None:
    for name in ("own", "other"):
        write_release_key(tmp_path / f"{name}.key", tmp_path / f"{name}.pub")
    release = Release(1, DIGEST, (Choice(describe_model(b"model"), 1.0),))
    signed = sign_release(release, tmp_path / "own.key")
    assert open_release(signed, tmp_path / "own.pub") == release
    for forged in (sign_release(release, tmp_path / "other.key"), bytes([signed[0] ^ 1]) + signed[1:], signed + b" "):
        with pytest.raises(RefusedReleaseError, match="not signed"):
            open_release(forged, tmp_path / "own.pub")


@pytest.mark.parametrize("share", [0.0, -0.1, 1.0 + 1e-9, float("nan"), True, "1"])
def test_a_share_that_is_no_share_is_not_released(share: float) -> None:
    with pytest.raises(InvariantError, match="above 0 and at most 1"):
        Choice(describe_model(b"model"), share)


@pytest.mark.parametrize(("size", "pieces"), [(1, 0), (1, 2), (PIECE_BYTES, 2), (PIECE_BYTES + 1, 1)])
def test_a_released_model_has_a_digest_for_each_of_its_pieces(size: int, pieces: int) -> None:
    right = -(-size // PIECE_BYTES)
    assert ReleasedModel(DIGEST, size, (DIGEST,) * right).piece_size(right - 1) == (size - 1) % PIECE_BYTES + 1
    with pytest.raises(InvariantError, match="one for each of its pieces"):
        ReleasedModel(DIGEST, size, (DIGEST,) * pieces)


class Chatty(LocalTransport):
    """A transport that hands over each reply once more, under a request that nobody made."""

    def poll(self, requests: Iterable[str], *, most: int = 32) -> list[Reply]:
        return [
            reply
            for found in super().poll(requests, most=most)
            for reply in (Reply(sha256(found.request.encode()).hexdigest(), found.content), found)
        ]


def test_a_reply_to_no_request_counts_for_nobody(tmp_path: Path) -> None:
    state, told = run(Chatty(make_devices(tmp_path, TEXTS)), ONCE, RoundPlan(5, 1.0), 1)
    assert told.first("round summed")["refused"] == {"answers nothing": 5}
    assert state.rounds[0].devices == 5
    assert same(state, simulated(ONCE, RoundPlan(5, 1.0), 1))
