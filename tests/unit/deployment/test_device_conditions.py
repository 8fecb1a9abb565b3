"""When a device takes part: with enough text, and if its conditions hold."""

from pathlib import Path

import pytest
from tests.unit.deployment.transports import ONCE, TEXTS

from fedgram.core.errors import FedgramError
from fedgram.deployment import device as device_module
from fedgram.deployment.device import HOOKS, Device, idle, on_charger, open_device
from fedgram.deployment.store import DeviceStore, open_store, write_store


@pytest.fixture
def store(tmp_path: Path) -> DeviceStore:
    write_store(tmp_path / "3.sqlite", 3, ["Hello there.", "It is me", "See you"])
    return open_store(tmp_path / "3.sqlite")


@pytest.mark.parametrize(("least", "reason"), [(0, None), (3, None), (4, "too little text")])
def test_a_device_needs_its_minimum_of_messages(store: DeviceStore, least: int, reason: str | None) -> None:
    assert Device(store, store.path.parent / "jobs", least).why_not() == reason


def test_the_first_condition_that_does_not_hold_is_the_reason(store: DeviceStore) -> None:
    jobs, seen = store.path.parent / "jobs", list[DeviceStore]()

    def holds(own: DeviceStore) -> None:
        seen.append(own)

    assert Device(store, jobs, hooks=(holds,)).why_not() is None
    assert seen == [store]
    device = Device(store, jobs, 9, (holds, lambda _: "hot", lambda _: "busy"))
    assert device.why_not() == "too little text"
    assert Device(store, jobs, 1, device.hooks).why_not() == "hot"


def test_a_device_whose_condition_does_not_hold_declines_what_it_is_sent(tmp_path: Path) -> None:
    write_store(tmp_path / "3.sqlite", 3, TEXTS[3])
    hot = [False]
    device = Device(open_store(tmp_path / "3.sqlite"), tmp_path / "jobs", hooks=(lambda _: "hot" if hot[0] else None,))
    request = {"job": ONCE.digest.encode(), "round": b"1", "broadcast": b""}
    assert device.join({"job": ONCE.content}) == {"device": b"3", "ready": b"yes", "model": b"0"}
    hot[0] = True
    assert device.join({"job": ONCE.content})["ready"] == b"hot"
    assert device.report(request) == {"declined": b"hot"}
    assert device.secure({**request, "message": b"FGSA\4\1" + bytes(64)}) == {"declined": b"hot"}


@pytest.mark.parametrize(
    ("supplies", "reason"),
    [({}, None), ({"AC": "1"}, None), ({"AC": "0"}, "on battery"), ({"AC": "0", "USB": "1\n"}, None)],
)
def test_a_device_on_battery_waits_for_its_charger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: DeviceStore, supplies: dict[str, str], reason: str | None
) -> None:
    monkeypatch.setattr(device_module, "_POWER_SUPPLIES", tmp_path / "power")
    (tmp_path / "power" / "BAT0").mkdir(parents=True)
    for name, online in supplies.items():
        (tmp_path / "power" / name).mkdir()
        (tmp_path / "power" / name / "online").write_text(online)
    assert on_charger(store) == reason


def test_a_power_supply_that_cannot_be_read_is_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: DeviceStore
) -> None:
    monkeypatch.setattr(device_module, "_POWER_SUPPLIES", tmp_path)
    (tmp_path / "AC" / "online").mkdir(parents=True)
    assert on_charger(store) is None


@pytest.mark.parametrize(("load", "reason"), [(0.0, None), (8.0, None), (8.1, "busy")])
def test_a_busy_device_does_not_take_part(
    monkeypatch: pytest.MonkeyPatch, store: DeviceStore, load: float, reason: str | None
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert idle(store) == reason


def test_conditions_are_chosen_by_name(store: DeviceStore) -> None:
    jobs = store.path.parent / "jobs"
    device = open_device(store.path, jobs, min_messages=2, hooks="idle,charging")
    assert (device.min_messages, device.hooks) == (2, (HOOKS["idle"], HOOKS["charging"]))
    assert open_device(store.path, jobs).hooks == ()
    with pytest.raises(FedgramError, match="unknown condition 'cool'; choose from charging, idle"):
        open_device(store.path, jobs, hooks="idle,cool")
