"""Rounds over a fleet: the driver's results, and what happens when devices fail."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.flower.fleets import LocalFleet, make_devices

from fedgram.core.errors import FedgramError
from fedgram.federated.cohort import CohortPlan, choose_cohort
from fedgram.federated.driver import Devices, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import Update
from fedgram.federated.unigram_collection import UnigramState
from fedgram.federated.wire import update_to_bytes
from fedgram.flower.fleet import Request
from fedgram.flower.folder import FederationConfig, Folder
from fedgram.flower.job import UnigramJob, job_to_bytes
from fedgram.flower.journal import Journal, read_status
from fedgram.flower.roster import Roster
from fedgram.flower.rounds import RoundPlan, order_of_asking
from fedgram.flower.server import Server, run_unigrams
from fedgram.flower.stages import round_plan
from fedgram.text.population import population_from_messages
from fedgram.text.synthetic import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

WORDS = Vocabulary.of(["i", "you", "the", "a", "to", "is", "in", "it", "my", "we", "of", "and", "that", "have"])
JOB = UnigramJob(WORDS, clip=20.0, seed=5)
ROWS = list(SyntheticPopulation("en_us", seed=4).rows(12))
POPULATION = population_from_messages((user, text, "train") for user, text, _ in ROWS)
TEXTS = {n: [text for user, text, _ in ROWS if user == name] for n, name in enumerate(POPULATION.client_ids)}
DEVICES = Devices(POPULATION, POPULATION.word_ids(WORDS), POPULATION.clients())


class Clock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def make_server(
    fleet: LocalFleet, plan: RoundPlan, masking: SecureSettings | None = None
) -> tuple[Server, list[tuple[str, dict[str, object]]]]:
    told: list[tuple[str, dict[str, object]]] = []
    clock = Clock()
    server = Server(
        fleet, JOB, plan, masking=masking, tell=lambda event, about: told.append((event, dict(about))), clock=clock,
        sleep=clock.sleep,
    )  # fmt: skip
    return server, told


def same(a: UnigramState, b: UnigramState) -> bool:
    return len(a.rounds) == len(b.rounds) and all(
        np.array_equal(x.index, y.index) and np.array_equal(x.weight, y.weight) and np.array_equal(x.cross, y.cross)
        and x.length_square == y.length_square and x.devices == y.devices
        for x, y in zip(a.rounds, b.rounds, strict=True)
    )  # fmt: skip


def test_the_order_of_asking_is_the_drivers() -> None:
    cohort = choose_cohort(CohortPlan(5, 1.0, 0.0), DEVICES.clients, seed=5, round_number=3)
    assert (
        order_of_asking([11, 3, 5, 0, 1, 2, 4, 6, 7, 8, 9, 10], seed=5, round_number=3)[:5] == cohort.reporting.tolist()
    )


def test_a_fleet_gives_what_the_driver_gives(tmp_path: Path) -> None:
    fleet = LocalFleet(make_devices(tmp_path, TEXTS))
    server, told = make_server(fleet, RoundPlan(5, 1.0, wait_for=12, batch=2))
    state = run_unigrams(server, JOB, 3, tmp_path / "ledger", {})
    assert same(state, run_rounds(JOB.task(), DEVICES, CohortPlan(5, 1.0, 0.0), rounds=3, seed=5))
    assert fleet.largest_batch <= 12
    assert sum(request.action == "join" for request in fleet.sent) == 12
    assert [event for event, _ in told].count("round committed") == 3


def test_failed_devices_are_replaced_and_nobody_counts_twice(tmp_path: Path) -> None:
    bad = {100, 103, 107}

    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        return {"failed": b"Broken"} if request.node in bad and request.action == "report" else reply

    fleet = LocalFleet(make_devices(tmp_path, TEXTS), misbehave)
    server, told = make_server(fleet, RoundPlan(9, 1.0, minimum=9, wait_for=12))
    state = run_unigrams(server, JOB, 2, tmp_path / "ledger", {})
    assert [part.devices for part in state.rounds] == [9, 9]
    for number in ("1", "2"):
        asked = [request.node for request in fleet.sent if request.group == number]
        assert len(asked) == len(set(asked))
    summed = [about for event, about in told if event == "round summed"]
    assert all(
        about["failed"] == {"Broken": 3} or about["failed"] == {"Broken": 2} or about["failed"] for about in summed
    )


def test_stragglers_are_left_out_at_the_deadline(tmp_path: Path) -> None:
    fleet = LocalFleet(
        make_devices(tmp_path, TEXTS), lambda r, reply: None if r.action == "report" and r.node < 103 else reply
    )
    server, told = make_server(fleet, RoundPlan(12, 1.0, minimum=5, deadline=10, wait_for=12))
    state = run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    assert state.rounds[0].devices == 9
    assert next(about["late"] for event, about in told if event == "round summed") == 3


def test_too_few_reports_abandon_the_round_and_nothing_is_kept(tmp_path: Path) -> None:
    silent = True

    def misbehave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        return None if silent and request.action == "report" and request.node != 104 else reply

    fleet = LocalFleet(make_devices(tmp_path, TEXTS), misbehave)
    plan = RoundPlan(12, 1.0, minimum=5, deadline=10, wait_for=12, attempts=2)
    server, told = make_server(fleet, plan)
    with pytest.raises(FedgramError, match="abandoned 2 times, the last time because: 1 of at least 5 reports"):
        run_unigrams(server, JOB, 2, tmp_path / "ledger", {})
    assert not (tmp_path / "ledger").exists()
    assert "1 of at least 5 reports by the deadline" in str(
        next(about["why"] for event, about in told if event == "round abandoned")
    )
    silent = False
    state = run_unigrams(make_server(fleet, plan)[0], JOB, 2, tmp_path / "ledger", {})
    assert same(state, run_rounds(JOB.task(), DEVICES, CohortPlan(12, 1.0, 0.0), rounds=2, seed=5))


def test_nonsense_does_not_enter_the_sum(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    size = JOB.task().size

    def nonsense(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        if request.action == "join" or request.node >= 105:
            return reply
        good = reply["update"]
        index = {name: np.arange(n, dtype=np.int64) for name, n in size.items()}
        values = {name: np.zeros(n) for name, n in size.items()}
        kind = request.node - 100
        if kind == 0:
            return {"update": good[: int(rng.integers(len(good)))]}
        if kind == 1:
            values["weight"][3] = np.nan
        elif kind == 2:
            values["weight"][3] = 1e6
        elif kind == 3:
            values["square"][3] = -np.inf
        else:
            return {"update": update_to_bytes(Update.zero({"weight": 3}))}
        return {"update": update_to_bytes(Update(size, index, values, 1.0))}

    fleet = LocalFleet(make_devices(tmp_path, TEXTS), nonsense)
    server, told = make_server(fleet, RoundPlan(12, 1.0, minimum=7, wait_for=12))
    state = run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    only = Devices(POPULATION, DEVICES.codes, np.arange(5, 12, dtype=np.int64))
    assert same(state, run_rounds(JOB.task(), only, CohortPlan(12, 1.0, 0.0), rounds=1, seed=5))
    refused = next(about["refused"] for event, about in told if event == "round summed")
    assert refused == {
        "damaged": 1, "not finite": 2, "norm above the limit": 1, "wrong shape": 1,
    }  # fmt: skip


def test_a_crash_loses_the_current_round_alone(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    for _ in range(6):  # the server dies at ever later messages
        fleet = LocalFleet(make_devices(tmp_path, TEXTS))
        left = [40]

        def dying(_: Request, reply: dict[str, bytes], left: list[int] = left) -> dict[str, bytes]:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return reply

        fleet.misbehave = dying
        try:
            run_unigrams(make_server(fleet, RoundPlan(12, 1.0, wait_for=12))[0], JOB, 6, ledger, {"a": 1})
        except KeyboardInterrupt:
            continue
    fleet = LocalFleet(make_devices(tmp_path, TEXTS))
    server = make_server(fleet, RoundPlan(12, 1.0, wait_for=12))[0]
    (ledger / "round-000006.safetensors").write_bytes(b"damaged")
    state = run_unigrams(server, JOB, 6, ledger, {"a": 1})
    assert same(state, run_rounds(JOB.task(), DEVICES, CohortPlan(12, 1.0, 0.0), rounds=6, seed=5))
    with pytest.raises(FedgramError, match="other settings"):
        run_unigrams(server, JOB, 6, ledger, {"a": 2})


def test_a_device_number_belongs_to_one_node(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {n: TEXTS[n] for n in range(4)})
    devices[500] = devices[100]  # another node with the same store

    class Named(LocalFleet):
        def nodes(self) -> dict[int, str]:
            return {node: "device-7" if node == 103 else "" for node in self.devices}

    server, _ = make_server(Named(devices), RoundPlan(3, 1.0, wait_for=3))
    run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    assert server.roster.present() == {0: 100, 1: 101, 2: 102}
    assert server.roster.turned_away == {"device already there": 1, "speaks for another device": 1}


def test_a_device_that_forgot_the_job_is_sent_it_again(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, TEXTS)
    fleet = LocalFleet(devices)
    server, _ = make_server(fleet, RoundPlan(11, 1.0, minimum=11, wait_for=12))
    server.roster.wait_for(12, 10)
    for path in devices[105].jobs.iterdir():
        path.unlink()
    state = run_unigrams(server, JOB, 2, tmp_path / "ledger", {})
    assert [part.devices for part in state.rounds] == [11, 11]
    assert sum(request.action == "join" for request in fleet.sent) in (12, 24)


def test_a_device_that_went_away_and_came_back_is_asked_at_once(tmp_path: Path) -> None:
    clock, silent = Clock(), [True]

    class Away(LocalFleet):
        """Node 101 counts as there at first, as after a restart of the server; then as gone, until it is up again."""

        def nodes(self) -> dict[int, str]:
            silent[0] = clock() < 40
            return {node: "" for node in self.devices if node != 101 or clock() < 24 or clock() > 40}

    fleet = Away(
        make_devices(tmp_path, {n: TEXTS[n] for n in range(3)}),
        lambda request, reply: None if request.node == 101 and silent[0] else reply,
    )
    roster = Roster(fleet, job_to_bytes(JOB), clock=clock, sleep=clock.sleep)
    assert roster.wait_for(3, 600) == {0: 100, 1: 101, 2: 102}
    assert clock() < 45


def test_a_wait_for_devices_can_be_seen(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {0: ["hello you"], 1: [], 2: ["it is my day"]})
    server, told = make_server(LocalFleet(devices), RoundPlan(3, 1.0, wait_for=3, wait_seconds=20))
    with pytest.raises(FedgramError, match="2 of 3 devices are there"):
        run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    waiting = {"round": 1, "there": 2, "wanted": 3, "online": 3, "turned_away": {"not ready": 1}}
    assert ("waiting", waiting) in told
    journal = Journal(tmp_path, "unigrams", 1)
    journal.tell("waiting", waiting)
    status = read_status(tmp_path)
    assert status["waiting"] == waiting
    assert status["state"] == "waiting for devices: 2 of 3 are there, 3 online (turned away so far: 1 not ready)"
    journal.tell("round began", {"round": 1})
    assert read_status(tmp_path)["waiting"] == {}


def test_a_device_with_too_little_text_is_not_asked(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {0: ["hello you"], 1: [], 2: ["it is my day"]})
    server, _ = make_server(LocalFleet(devices), RoundPlan(2, 1.0, wait_for=2))
    run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    assert set(server.roster.present()) == {0, 2}
    assert server.roster.turned_away == {"not ready": 1}
    with pytest.raises(FedgramError, match="2 of 3 devices are there after 60 s"):
        server.roster.wait_for(3, 60)


MASKING = SecureSettings(min_devices=3)


def test_masked_rounds_give_what_the_driver_gives(tmp_path: Path) -> None:
    fleet = LocalFleet(make_devices(tmp_path, TEXTS, MASKING))
    server, told = make_server(fleet, RoundPlan(5, 1.0, minimum=5, wait_for=12, batch=2), MASKING)
    state = run_unigrams(server, JOB, 2, tmp_path / "ledger", {})
    assert same(state, run_rounds(JOB.task(), DEVICES, CohortPlan(5, 1.0, 0.0), rounds=2, seed=5))
    assert sum(request.action == "secure" for request in fleet.sent) == 2 * 4 * 5
    assert {about["late"] for event, about in told if event == "round summed"} == {0}


@pytest.mark.parametrize("step", range(4))
def test_devices_that_leave_a_masked_round_are_left_out_of_its_sum(tmp_path: Path, step: int) -> None:
    gone = {101, 108}

    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node in gone and request.content["message"][5] == 2 * step + 1
        return None if leaves else reply

    fleet = LocalFleet(make_devices(tmp_path, TEXTS, MASKING), leave)
    server, told = make_server(fleet, RoundPlan(12, 1.0, minimum=5, wait_for=12, deadline=40), MASKING)
    state = run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    counted = [n for n in range(12) if step == 3 or 100 + n not in gone]
    only = Devices(POPULATION, DEVICES.codes, np.array(counted, np.int64))
    assert same(state, run_rounds(JOB.task(), only, CohortPlan(12, 1.0, 0.0), rounds=1, seed=5))
    assert next(about["late"] for event, about in told if event == "round summed") == (0 if step == 3 else 2)


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("count", [4, 5, 6])
def test_a_small_masked_round_with_the_usual_settings_bears_the_loss_of_one(
    tmp_path: Path, count: int, step: int
) -> None:
    home = Folder(tmp_path, FederationConfig())
    plan, masking = round_plan(home, count, 1.0), SecureSettings(min_devices=home.config.masked_with)

    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node == 101 and request.content["message"][5] == 2 * step + 1
        return None if leaves else reply

    fleet = LocalFleet(make_devices(tmp_path, {n: TEXTS[n] for n in range(count)}, masking), leave)
    server, told = make_server(fleet, plan, masking)
    state = run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    assert state.rounds[0].devices == (count if step == 3 else count - 1)
    assert "round abandoned" not in [event for event, _ in told]


def test_a_masked_round_of_three_is_tried_again_when_one_leaves(tmp_path: Path) -> None:
    home = Folder(tmp_path, FederationConfig())
    plan, masking = round_plan(home, 3, 1.0), SecureSettings(min_devices=home.config.masked_with)
    left: list[int] = []

    def leave_once(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        if not left and request.action == "secure" and request.content["message"][5] == 5:
            left.append(request.node)
            return None
        return reply

    fleet = LocalFleet(make_devices(tmp_path, {n: TEXTS[n] for n in range(3)}, masking), leave_once)
    server, told = make_server(fleet, plan, masking)
    state = run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    assert state.rounds[0].devices == 3
    assert [event for event, _ in told].count("round abandoned") == 1


def test_masked_rounds_with_too_few_devices_are_abandoned(tmp_path: Path) -> None:
    def leave(request: Request, reply: dict[str, bytes]) -> dict[str, bytes] | None:
        leaves = request.action == "secure" and request.node > 103 and request.content["message"][5] == 5
        return None if leaves else reply

    fleet = LocalFleet(make_devices(tmp_path, TEXTS, MASKING), leave)
    server, told = make_server(fleet, RoundPlan(12, 1.0, minimum=3, wait_for=12, deadline=40, attempts=1), MASKING)
    with pytest.raises(FedgramError, match="round 1 was abandoned"):
        run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    assert "are needed to unmask" in str(next(about["why"] for event, about in told if event == "round abandoned"))


def test_a_masked_device_sends_nothing_unmasked_and_a_step_is_not_taken_twice(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, TEXTS, MASKING)
    fleet = LocalFleet(devices)
    server, _ = make_server(fleet, RoundPlan(12, 1.0, minimum=3, wait_for=12, attempts=1))
    with pytest.raises(FedgramError, match="abandoned"):
        run_unigrams(server, JOB, 1, tmp_path / "ledger", {})
    run_unigrams(make_server(fleet, RoundPlan(12, 1.0, wait_for=12), MASKING)[0], JOB, 1, tmp_path / "masked", {})
    for request in [r for r in fleet.sent if r.action == "secure" and r.content["message"][5] > 1][:8]:
        assert devices[request.node].secure({**request.content, **request.shared}) == {"declined": b"round not known"}
    stricter = SecureSettings(min_devices=4)
    server, told = make_server(fleet, RoundPlan(12, 1.0, minimum=4, wait_for=12, attempts=1), stricter)
    with pytest.raises(FedgramError, match="abandoned"):
        run_unigrams(server, JOB, 1, tmp_path / "other", {})
    assert next(about["failed"] for event, about in told if event == "round abandoned") == {"RefusedMessageError": 12}
