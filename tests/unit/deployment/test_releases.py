"""Releases: versions, shares, rollbacks, and what travels to devices over a transport."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployment.published_models import (
    PIECE,
    WORDS,
    federation,
    install,
    packed,
    predicted,
    signed_release,
    small_pieces,
)
from tests.unit.deployment.transports import ONCE, TEXTS, Clock, LocalTransport, make_devices

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.deployment.collector import serve_rounds
from fedgram.deployment.device import Device
from fedgram.deployment.exchange import Exchange, ServeOptions
from fedgram.deployment.folder import Folder, open_folder
from fedgram.deployment.own_secret import keyed_number, read_own_secret
from fedgram.deployment.published import (
    DeviceVersions,
    Releases,
    models_on_devices,
    publish,
    read_device_versions,
    read_publishable,
)
from fedgram.deployment.releases import Choice, Release, describe_model, open_release
from fedgram.deployment.rollout import Rollout, RolloutProgress
from fedgram.deployment.transport import Request
from fedgram.deployment.waiting import Timeouts


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)


@pytest.fixture
def home(tmp_path: Path) -> Folder:
    return federation(tmp_path / "fed")


def devices_of(home: Folder, tmp_path: Path, count: int) -> dict[int, Device]:
    made = make_devices(tmp_path, {n: TEXTS[n] for n in range(count)})
    for node, device in made.items():
        (device.jobs.parent / "secret").write_bytes(sha256(str(node).encode()).digest())  # the same arms every time
    return {node: replace(device, release_key=home.release_key) for node, device in made.items()}


def rolled_out(home: Folder, transport: LocalTransport, rounds: int = 40) -> RolloutProgress:
    clock = Clock()
    rollout = Rollout(transport, Releases(home.server), DeviceVersions(home.server), clock=clock)
    for _ in range(rounds):
        progress = rollout.refresh()
        clock.sleep(1.0)
    return progress


def test_shares_are_exact_in_the_mean_nested_and_independent_of_each_other() -> None:
    keys = [sha256(str(n).encode()).digest() for n in range(10_000)]
    model, other = describe_model(packed(0)), describe_model(packed(1))

    def members(share: float, rollout: str) -> set[bytes]:
        release = Release(1, rollout, (Choice(model, share),))
        return {key for key in keys if release.choice_of(key) is not None}

    for share in (0.01, 0.1, 0.5, 1.0):
        deviation = (share * (1 - share) / len(keys)) ** 0.5
        assert len(members(share, model.digest)) / len(keys) == pytest.approx(share, abs=4.5 * deviation)
    assert members(0.01, model.digest) < members(0.1, model.digest) < members(0.5, model.digest)
    both = members(0.5, model.digest) & members(0.5, other.digest)
    assert len(both) / len(keys) == pytest.approx(0.25, abs=0.02)
    arms = Release(1, "ab" * 32, (Choice(model, 0.05), Choice(other, 0.15)))
    counts = Counter(arms.choice_of(key) for key in keys)
    assert counts[0] / len(keys) == pytest.approx(0.05, abs=0.01)
    assert counts[1] / len(keys) == pytest.approx(0.15, abs=0.017)


def test_a_device_has_one_secret_of_its_own(tmp_path: Path) -> None:
    secret = read_own_secret(tmp_path / "a")
    assert len(secret) == 32
    assert read_own_secret(tmp_path / "a") == secret != read_own_secret(tmp_path / "b")
    assert (tmp_path / "a" / "secret").stat().st_mode & 0o777 == 0o600
    (tmp_path / "a" / "secret").write_bytes(secret[:7])  # of a process that was killed, or a disk that was full
    assert len(read_own_secret(tmp_path / "a")) == 32
    assert keyed_number(secret, "x") != keyed_number(secret, "y")


def test_versions_go_up_and_rollbacks_go_back_one_model_at_a_time(home: Folder) -> None:
    releases = Releases(home.server)
    with pytest.raises(FedgramError, match="no earlier model to go back to"):
        releases.before()
    first, second, third = ([(f"{n}.fgram", packed(n))] for n in range(3))
    publish(home, first, (1.0,), "publish")
    with pytest.raises(FedgramError, match="no earlier model to go back to"):
        releases.before()
    publish(home, second, (0.01,), "publish")
    publish(home, second, (1.0,), "publish")  # the same model for more devices: not a further step back
    publish(home, third, (0.1,), "publish")
    for expected in (1, 0):
        back = releases.before()
        assert releases.name_of(back) == f"{expected}.fgram"
        publish(home, [(releases.name_of(back), releases.model(back))], (1.0,), "rollback")
    with pytest.raises(FedgramError, match="no earlier model to go back to"):
        releases.before()
    publish(home, second + third, (0.1, 0.1), "experiment", "cd" * 32)
    assert releases.name_of(releases.before()) == "0.fgram"  # the experiment ends with what was there before
    versions = [release.version for release in releases.all()]
    assert versions == [1, 2, 3, 4, 5, 6, 7]
    opened = [open_release(release.content, home.release_key) for release in releases.all()]
    assert [release.version for release in opened] == versions
    assert opened[1].rollout == opened[2].rollout != opened[3].rollout


def test_only_packed_models_are_published_and_only_by_the_server(tmp_path: Path, home: Folder) -> None:
    (tmp_path / "lm.fgram").write_bytes(packed(0)[:-8])
    with pytest.raises(FedgramError, match=r"lm\.fgram: "):
        read_publishable(tmp_path / "lm.fgram")
    with pytest.raises(FedgramError, match="phone pack"):
        read_publishable(tmp_path / "lm.arpa")
    device = tmp_path / "device"
    device.mkdir()
    (device / "federation.toml").write_text((home.path / "federation.toml").read_text())
    with pytest.raises(FedgramError, match="publish on the server's machine"):
        publish(open_folder(device), [("lm.fgram", packed(0))], (1.0,), "publish")
    (home.server / "release.key").unlink()
    with pytest.raises(FedgramError, match="restore it from a backup"):
        publish(home, [("lm.fgram", packed(0))], (1.0,), "publish")
    home.release_key.unlink()  # a federation of an earlier version, which has neither
    assert publish(home, [("lm.fgram", packed(0))], (1.0,), "publish").version == 1


@pytest.mark.parametrize(
    "wrong",
    [{"version": 0}, {"version": True}, {"version": 1.5}, {"rollout": "x"}, {"choices": ()},
     {"choices": (Choice(describe_model(b"a"), 0.6), Choice(describe_model(b"b"), 0.6))}],
)  # fmt: skip
def test_what_is_no_release_cannot_be_made(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(InvariantError):
        Release(**{"version": 1, "rollout": "ab" * 32, "choices": (Choice(describe_model(b"a"), 1.0),), **wrong})


def test_a_release_reaches_every_device_in_its_share(home: Folder, tmp_path: Path) -> None:
    devices = devices_of(home, tmp_path, 12)
    publish(home, [("a.fgram", packed(0))], (1.0,), "publish")
    transport = LocalTransport(devices)
    progress = rolled_out(home, transport)
    assert (progress.online, progress.installed, progress.waiting) == (12, 12, 0)
    assert all(predicted(device.models) == WORDS[0] for device in devices.values())
    pieces = -(-len(packed(0)) // PIECE)
    assert len(transport.requests_for("release")) == 12 * (1 + pieces)
    shared = {id(request.shared) for request in transport.requests_for("release")}
    assert len(shared) == 1 + pieces  # every piece is handed to Flower once, whatever the number of devices
    publish(home, [("b.fgram", packed(1))], (0.5,), "publish")
    progress = rolled_out(home, LocalTransport(devices))
    inside = {n for n, device in devices.items() if predicted(device.models) == WORDS[1]}
    assert (progress.installed, progress.outside) == (len(inside), 12 - len(inside))
    assert 0 < len(inside) < 12
    shown = models_on_devices(home.server)
    assert [(m["version"], m["devices"]) for m in shown] == [(2, len(inside)), (1, 12 - len(inside))]
    publish(home, [("b.fgram", packed(1))], (1.0,), "publish")
    rolled_out(home, LocalTransport(devices))
    back = Releases(home.server).before()
    publish(home, [("a.fgram", Releases(home.server).model(back))], (1.0,), "rollback")
    last = LocalTransport(devices)
    assert rolled_out(home, last).installed == 12
    assert all(predicted(device.models) == WORDS[0] for device in devices.values())
    assert len(last.requests_for("release")) == 12  # the model before is still on the devices
    assert set(read_device_versions(home.server).values()) == {4}


def test_devices_that_lie_leave_and_lose_replies_hold_up_nobody(home: Folder, tmp_path: Path) -> None:
    devices, lost = devices_of(home, tmp_path, 6), Counter[int]()
    publish(home, [("a.fgram", packed(0))], (1.0,), "publish")

    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        if request.node == 100:
            return {"state": b"wants", "digest": b"../../key", "wanted": b"0", "device": b"3", "model": b"9"}
        if request.node == 101:
            return {**reply, "state": b"wants", "digest": reply.get("digest", b""), "wanted": b"999999"}
        if request.node == 102:
            return {"failed": b"MemoryError"}
        if request.node == 103:
            return {"device": b"3", "model": b"1", "state": b"refused", "why": b"a secret text"}
        lost[request.node] += 1
        return None if request.node == 104 and lost[104] == 2 else reply

    class Named(LocalTransport):
        def nodes(self) -> dict[int, str]:
            return {node: f"device-{node - 100}" for node in self.devices}

    progress = rolled_out(home, Named(devices, misbehave), rounds=900)
    assert (progress.installed, progress.waiting) == (2, 0)
    assert dict(progress.refused) == {"failed": 1, "malformed": 3}
    assert predicted(devices[104].models) == predicted(devices[105].models) == WORDS[0]
    assert read_device_versions(home.server).get("3") == 1  # device 0 does not speak for device 3
    assert "secret" not in json.dumps(models_on_devices(home.server))


def test_a_node_that_has_gone_tells_no_device_s_version(home: Folder, tmp_path: Path) -> None:
    """Its name went with it: nobody knows any more for which device it may speak."""
    publish(home, [("a.fgram", packed(0))], (1.0,), "publish")
    looks = [0]

    class Leaving(LocalTransport):
        def nodes(self) -> dict[int, str]:
            looks[0] += 1
            return {100: "device-0"} | ({101: "device-7"} if looks[0] == 1 else {})

    def says_it_is_device_3(request: Request, reply: dict[str, bytes]) -> dict[str, bytes]:
        return {**reply, "device": b"3", "model": b"1"} if request.node == 101 else reply

    rolled_out(home, Leaving(devices_of(home, tmp_path, 2), says_it_is_device_3))
    versions = read_device_versions(home.server)
    assert versions.get("0") == 1
    assert "3" not in versions


def test_a_release_that_comes_during_another_one_is_taken_up(home: Folder, tmp_path: Path) -> None:
    devices = devices_of(home, tmp_path, 3)
    publish(home, [("a.fgram", packed(0))], (1.0,), "publish")
    clock = Clock()
    rollout = Rollout(LocalTransport(devices), Releases(home.server), DeviceVersions(home.server), clock=clock)
    for _ in range(3):
        rollout.refresh()
        clock.sleep(1.0)
    publish(home, [("b.fgram", packed(1))], (1.0,), "publish")
    for _ in range(20):
        progress = rollout.refresh()
        clock.sleep(1.0)
    assert (progress.version, progress.installed) == (2, 3)
    assert all(predicted(device.models) == WORDS[1] for device in devices.values())
    assert not list((devices[100].models.path / "incoming").iterdir())


def test_a_run_sends_the_release_between_its_rounds_and_hears_versions(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgram.deployment.collector._PRESENCE_SECONDS", 0.01)
    devices = devices_of(home, tmp_path, 4)
    first = publish(home, [("a.fgram", packed(0))], (1.0,), "publish")
    install(devices[100].models, home, first.content, packed(0), secret=read_own_secret(devices[100].jobs.parent))
    exchange = Exchange(tmp_path / "work")
    exchange.open(ServeOptions(Timeouts(deadline=5.0, poll=0.01), str(home.server), 1), ONCE)

    class Ending(LocalTransport):
        def nodes(self) -> dict[int, str]:
            if all(device.models.version() == 1 for device in self.devices.values()):
                exchange.close(completed=True)
            return super().nodes()  # type: ignore[return-value]

    monkeypatch.setattr("fedgram.deployment.rollout._LOOK_SECONDS", 0.0)
    serve_rounds(exchange.folder, Ending(devices))
    assert all(predicted(device.models) == WORDS[0] for device in devices.values())
    assert read_device_versions(home.server)["0"] == 1


def test_a_device_that_is_not_ready_is_left_alone(home: Folder, tmp_path: Path) -> None:
    devices = devices_of(home, tmp_path, 2)
    devices[100] = replace(devices[100], hooks=(lambda _: "on battery",))
    publish(home, [("a.fgram", packed(0))], (1.0,), "publish")
    progress = rolled_out(home, LocalTransport(devices))
    assert (progress.installed, progress.not_ready, progress.waiting) == (1, 1, 0)
    assert predicted(devices[100].models) is None


def test_a_replayed_release_is_refused_by_every_device(home: Folder, tmp_path: Path) -> None:
    devices = devices_of(home, tmp_path, 3)
    publish(home, [("a.fgram", packed(0))], (1.0,), "publish")
    publish(home, [("b.fgram", packed(1))], (1.0,), "publish")
    rolled_out(home, LocalTransport(devices))
    (home.server / "releases" / "000002.json").unlink()  # a server that was set back, or an attacker's copy of it
    progress = rolled_out(home, LocalTransport(devices))
    assert dict(progress.refused) == {"older": 3}
    assert all(predicted(device.models) == WORDS[1] for device in devices.values())
    assert signed_release(home, 1, [packed(0)]) == Releases(home.server).all()[0].content
