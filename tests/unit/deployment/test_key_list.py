"""The list of admitted keys: who may sign it, that it never goes back, and how it reaches devices."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.deployment.transports import (
    MANY,
    MASKING,
    OFTEN,
    ONCE,
    TEXTS,
    Clock,
    LocalTransport,
    admit_devices,
    answer_of,
    fleet_of,
    key_list_of,
    make_devices,
)

from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.deployment.key_list import (
    KEY_LIST,
    SIGNING_KEY,
    RefusedKeyListError,
    admit_keys,
    held_keys,
    hold_keys,
    open_keys,
    read_key_list,
    revoke_keys,
    sign_keys,
)
from fedgram.deployment.keys import write_release_key
from fedgram.deployment.remote_fleet import RemoteFleet
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.secure.admitted_keys import AdmittedKeys, admitted_from_bytes
from fedgram.federated.secure.identity import Identity

KEYS = tuple(sorted(Identity.from_entropy(bytes([n]) * 40).public for n in range(5)))


@pytest.fixture
def server(tmp_path: Path) -> Path:
    (tmp_path / "server").mkdir()
    write_release_key(tmp_path / "server" / SIGNING_KEY, tmp_path / "release.pub")
    return tmp_path / "server"


def test_a_revoked_key_is_not_on_the_next_version(server: Path, tmp_path: Path) -> None:
    admit_keys(server, KEYS[:3])
    before = read_key_list(server)
    assert before is not None
    assert revoke_keys(server, [KEYS[1]]) == AdmittedKeys(before.admitted.version + 1, (KEYS[0], KEYS[2]))
    assert revoke_keys(server, [KEYS[1]]).version == before.admitted.version + 1  # nothing to sign
    after = read_key_list(server)
    assert after is not None
    hold_keys(tmp_path, after.signed, server.parent / "release.pub")
    with pytest.raises(RefusedKeyListError, match="is older than"):  # a server that wants the key back
        hold_keys(tmp_path, before.signed, server.parent / "release.pub")


def test_versions_go_up_when_keys_are_new_and_not_otherwise(server: Path) -> None:
    assert read_key_list(server) is None
    assert admit_keys(server, KEYS[:2]).version == 2
    assert admit_keys(server, KEYS[:2]).version == 2
    assert admit_keys(server, KEYS[1:4]) == AdmittedKeys(3, KEYS[:4])
    found = read_key_list(server)
    assert found is not None
    assert open_keys(found.signed, server.parent / "release.pub") == found.admitted == AdmittedKeys(3, KEYS[:4])
    (server / SIGNING_KEY).rename(server.parent / "elsewhere")
    assert admit_keys(server, KEYS[:4]).version == 3  # nothing to sign
    with pytest.raises(InputError, match=r"release\.key: is missing; put it back to admit or revoke devices"):
        admit_keys(server, KEYS)
    with pytest.raises(InvariantError, match="1 of the keys to admit are not public keys"):
        admit_keys(server, [bytes(33)])


def test_a_device_takes_signed_lists_only_and_never_goes_back(server: Path, tmp_path: Path) -> None:
    own, public = tmp_path / "own", tmp_path / "release.pub"
    own.mkdir()
    lists = {v: sign_keys(AdmittedKeys(v, KEYS[:v]), server / SIGNING_KEY) for v in (2, 3, 4)}
    for version in (2, 3, 3):
        assert hold_keys(own, lists[version], public).version == version
    for replayed, match in (
        (lists[2], "version 2 of the admitted keys is older than 3"),
        (sign_keys(AdmittedKeys(3, KEYS[2:]), server / SIGNING_KEY), "two lists of admitted keys with version 3"),
        (bytes(64) + lists[4][64:], "not signed by the federation"),
        (lists[4][:-1], "not signed by the federation"),
        (b"", "not signed by the federation"),
    ):
        with pytest.raises(RefusedKeyListError, match=match):
            hold_keys(own, replayed, public)
        assert held_keys(own, public) == AdmittedKeys(3, KEYS[:3])
    other = tmp_path / "other.pub"
    write_release_key(tmp_path / "other.key", other)
    with pytest.raises(RefusedKeyListError, match="not signed"):  # an intruder's own key
        hold_keys(own, sign_keys(AdmittedKeys(9, KEYS), tmp_path / "other.key"), public)
    with pytest.raises(RefusedKeyListError, match=r"release\.pub is missing"):
        hold_keys(own, lists[4], None)
    assert hold_keys(own, lists[4], public).version == 4


def test_lists_that_are_none_are_refused(server: Path) -> None:
    good = AdmittedKeys(7, KEYS).to_bytes()
    assert admitted_from_bytes(good) == AdmittedKeys(7, KEYS)
    twice = good[:12] + KEYS[0] + b"".join(KEYS[:4])
    for wrong in (b"", good[:11], good[:-1], good + b"\0", bytes(12), twice):
        with pytest.raises(InvariantError):
            admitted_from_bytes(wrong)
    admit_keys(server, KEYS)
    (server / KEY_LIST).write_bytes(b"\1" * 70)
    with pytest.raises(InputError, match="damaged"):
        read_key_list(server)


def test_devices_are_sent_the_list_with_the_job_and_again_when_it_changes(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {n: TEXTS[n] for n in range(6)}, MASKING, MANY)
    for device in devices.values():
        (device.jobs.parent / KEY_LIST).unlink()
    transport, plan = LocalTransport(devices), RoundPlan(5, 1.0, minimum=4, attempts=3)
    fleet = fleet_of(transport, OFTEN, Timeouts(wait_for=6))
    options = RunOptions(1, plan, MASKING)
    assert run_rounds(OFTEN, fleet, options).progress.tally.reports == 5
    (tmp_path / "more").mkdir()
    more = make_devices(tmp_path / "more", {7: TEXTS[7]})
    newcomer = replace(more[107], masking=MASKING, release_key=tmp_path / "release.pub", participations=MANY)
    admit_devices(tmp_path, [newcomer])
    transport.devices[107] = newcomer
    for _ in range(2):
        fleet.roster.look()
    found = run_rounds(OFTEN, fleet, RunOptions(1, RoundPlan(7, 1.0, minimum=7, attempts=3), MASKING))
    assert found.progress.tally.reports == 7
    assert found.progress.abandoned == 0
    joined = [request for request in transport.sent if request.action == "join"]
    assert len(joined) == 6 + 1 + 7  # at first; the newcomer when it appears; everybody when the list has changed
    versions = {held_keys(d.jobs.parent, d.release_key) for d in transport.devices.values()}
    assert [keys.version for keys in versions if keys] == [3]


def test_a_device_that_holds_no_list_takes_part_in_no_masked_round(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {n: TEXTS[n] for n in range(4)}, MASKING)
    lone = devices[100]
    (lone.jobs.parent / KEY_LIST).unlink()
    lone.join({"job": ONCE.content})
    request = {
        "job": ONCE.digest.encode(), "round": b"1", "broadcast_digest": b"0" * 64, "message": b"FGSA\4\1" + bytes(64)
    }  # fmt: skip
    assert answer_of(lone, "secure", request) == {"failed": b"OtherKeysError"}
    assert answer_of(lone, "join", {"job": ONCE.content, "admitted": bytes(99)}) == {"failed": b"RefusedKeyListError"}
    clock = Clock()
    unsigned = RemoteFleet(LocalTransport(devices), ONCE, Timeouts(), clock=clock, sleep=clock.sleep)
    with pytest.raises(Exception, match="needs the list of admitted keys; admit devices"):
        run_rounds(ONCE, unsigned, RunOptions(1, RoundPlan(4, 1.0), MASKING))


def test_devices_that_were_not_admitted_do_not_count(tmp_path: Path) -> None:
    """Four real devices want a sum of six; the server makes up the others, and has them on a list of its own."""
    six = replace(MASKING, min_devices=6)
    devices = make_devices(tmp_path, {n: TEXTS[n] for n in range(4)}, six, MANY)
    (tmp_path / "x").mkdir()
    invented = make_devices(tmp_path / "x", {8: TEXTS[8], 9: TEXTS[9]}, six)
    public, signing = tmp_path / "x" / "release.pub", tmp_path / "x" / SIGNING_KEY
    admitted = key_list_of(devices)()
    made_up = key_list_of(invented)()
    assert admitted is not None
    assert made_up is not None
    both = AdmittedKeys(9, tuple(sorted((*admitted.admitted.keys, *made_up.admitted.keys))))
    signed = sign_keys(both, signing)
    for device in invented.values():
        hold_keys(device.jobs.parent, signed, public)
    clock, everybody = Clock(), LocalTransport({**devices, **invented})
    fleet = RemoteFleet(
        everybody, OFTEN, Timeouts(wait_seconds=9, idle_seconds=1), clock=clock, sleep=clock.sleep,
        key_list=lambda: replace(made_up, admitted=both, signed=signed),
    )  # fmt: skip
    with pytest.raises(FedgramError, match=r"2 of 6 are ready \(6 online; turned away so far: 4 failed\)"):
        run_rounds(OFTEN, fleet, RunOptions(1, RoundPlan(6, 1.0, minimum=6, attempts=2), six))
    sent = [r for r in everybody.requests_for("secure") if r.node < 104]
    assert not sent  # no real device accepted the job with such a list
