"""Clipped counts: the weights of devices, sums that do not depend on order, and who takes part."""

import numpy as np
import pytest

from fedgram.core.arrays import FloatArray, Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import Stream
from fedgram.federated.cohort import CohortPlan, choose_cohort
from fedgram.federated.driver import Devices, Tally, collect_round, run_rounds
from fedgram.federated.secure.settings import AbandonedRoundError, SecureSettings
from fedgram.federated.task import Total, Update
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.text.population import ClientDataset, Population, population_from_messages
from fedgram.text.vocabulary import UNK, Vocabulary

WORDS = Vocabulary.of(["a", "b", "c"])


def device(*words: str) -> ClientDataset:
    return ClientDataset("someone", Ragged.from_rows([WORDS.encode(words)]))


def update(task: UnigramTask, data: ClientDataset) -> FloatArray:
    return task.client_update(task.init(), data, Stream(0)).array("weight")


def population(users: int = 60) -> Population:
    rng = np.random.default_rng(0)
    rows = []
    for user in range(users):
        for _ in range(int(rng.integers(1, 6))):
            rows.append((f"user{user:03d}", " ".join(rng.choice(["a", "b", "c", "zzz"], 5)), "train"))
    return population_from_messages(rows)


def devices(people: Population) -> Devices:
    return Devices(people, people.word_ids(WORDS), people.clients("train"))


def test_a_threshold_of_one_gives_every_device_the_same_say() -> None:
    task = UnigramTask(WORDS, clip=1.0)
    assert update(task, device("a", "a", "b", "a")).tolist() == [0, 0, 0, 0.75, 0.25, 0]
    assert update(task, device("c")).tolist() == [0, 0, 0, 0, 0, 1]
    assert update(task, device("zzz")).sum() == 0


def test_no_threshold_gives_raw_counts() -> None:
    assert update(UnigramTask(WORDS, clip=np.inf), device("a", "zzz", "a", "b")).tolist() == [0, 0, 0, 2, 1, 0]


@pytest.mark.parametrize("clip", [0.5, 1.0, 3.0, 1000.0])
def test_no_device_counts_for_more_than_the_threshold(clip: float) -> None:
    people = population()
    task = UnigramTask(WORDS, clip=clip)
    for client in range(len(people)):
        data = people.load(client, people.word_ids(WORDS))
        raw = int(np.sum(data.sentences.values != UNK))
        assert update(task, data).sum() == pytest.approx(min(clip, raw))


def test_totals_do_not_depend_on_order_or_shards() -> None:
    people, task = population(), UnigramTask(WORDS, clip=1.7)
    updates = [
        task.client_update(task.init(), people.load(c, people.word_ids(WORDS)), Stream(0)) for c in range(len(people))
    ]
    rng = np.random.default_rng(1)
    totals = []
    for shards in (1, 2, 7):
        parts = [Total.zero(task.size, task.bits) for _ in range(shards)]
        for i in rng.permutation(len(updates)):
            parts[int(rng.integers(shards))].add(updates[i])
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        totals.append(total)
    for total in totals[1:]:
        assert total.devices == totals[0].devices == len(people)
        for name in total.arrays:
            assert np.array_equal(total.arrays[name], totals[0].arrays[name])


def test_floating_sums_would_depend_on_order() -> None:
    """The fault that the law above catches."""
    values = np.random.default_rng(0).random(1000) / 3
    assert float(np.cumsum(values)[-1]) != float(np.cumsum(values[::-1])[-1])


def test_rounds_add_up_and_repeat_with_their_seed() -> None:
    task, machines = UnigramTask(WORDS, clip=2.0), devices(population())
    states = [run_rounds(task, machines, CohortPlan(20), rounds=5, seed=s) for s in (3, 3, 4)]
    counts = [task.counts(state) for state in states]
    assert np.array_equal(counts[0].weight, counts[1].weight)
    assert not np.array_equal(counts[0].weight, counts[2].weight)
    assert (counts[0].clients, counts[0].rounds) == (100, 5)
    one = collect_round(
        task, task.init(), machines, choose_cohort(CohortPlan(20), machines.clients, seed=3, round_number=1),
        seed=3, round_number=1,
    )  # fmt: skip
    assert one.array("weight")[states[0].rounds[0].index] == pytest.approx(states[0].rounds[0].weight)


def test_secure_rounds_count_the_same() -> None:
    """Devices that are missing leave in the middle of the protocol; the sums are those of the others, bit for bit."""
    task, machines, tally = UnigramTask(WORDS, clip=2.0), devices(population()), Tally()
    plain, masked = (
        run_rounds(task, machines, CohortPlan(20), rounds=3, seed=3, secure=secure, tally=tally)
        for secure in (None, SecureSettings())
    )
    assert not tally.abandoned
    for one, other in zip(plain.rounds, masked.rounds, strict=True):
        assert one.devices == other.devices == 20
        assert np.array_equal(one.index, other.index)
        assert np.array_equal(one.weight, other.weight)
        assert np.array_equal(one.cross, other.cross)
        assert one.length_square == other.length_square


def test_a_round_that_is_abandoned_counts_nothing_and_says_why() -> None:
    task, machines, tally = UnigramTask(WORDS, clip=2.0), devices(population()), Tally()
    settings = SecureSettings(min_devices=40)
    state = run_rounds(task, machines, CohortPlan(20), rounds=2, seed=3, secure=settings, tally=tally)
    assert [part.devices for part in state.rounds] == [0, 0]
    assert len(tally.abandoned) == 2
    assert all("40 are needed" in reason for reason in tally.abandoned)
    with pytest.raises(AbandonedRoundError):
        run_rounds(task, machines, CohortPlan(20), rounds=2, seed=3, secure=settings)


def test_cohorts_ask_more_than_they_need() -> None:
    plan = CohortPlan(devices=100, over_selection=1.3, dropout=0.1)
    cohort = choose_cohort(plan, np.arange(1000), seed=0, round_number=1)
    assert cohort.asked == 130
    assert len(cohort.reporting) == 100
    assert len(set(cohort.reporting.tolist())) == 100
    assert cohort.dropped + cohort.late == len(cohort.missing) == 30
    assert len({*cohort.missing.tolist(), *cohort.reporting.tolist()}) == 130
    few = choose_cohort(plan, np.arange(50), seed=0, round_number=1)
    assert len(few.reporting) == 50 - few.dropped
    hard = choose_cohort(CohortPlan(100, 1.0, 0.5), np.arange(1000), seed=0, round_number=1)
    assert 25 < len(hard.reporting) < 75


def test_mistakes_are_refused() -> None:
    with pytest.raises(FedgramError, match="greater than 0"):
        UnigramTask(WORDS, clip=0.0)
    with pytest.raises(FedgramError, match="at least 1 device"):
        CohortPlan(0)
    with pytest.raises(FedgramError, match="over-selection"):
        CohortPlan(10, 0.9)
    with pytest.raises(FedgramError, match="dropout"):
        CohortPlan(10, 1.3, 1.0)
    nobody = Devices(population(2), np.zeros(4, np.int32), np.zeros(0, np.int64))
    with pytest.raises(FedgramError, match="no clients"):
        run_rounds(UnigramTask(WORDS, clip=1.0), nobody, CohortPlan(5), rounds=1, seed=0)
    with pytest.raises(InvariantError, match="other vectors"):
        Total.zero({"x": 3}, 8).add(Update.dense({"x": np.zeros(2)}, 1.0))


def test_updates_from_devices_are_checked_before_they_are_added() -> None:
    def add(index: list[int], values: list[float], weight: float = 1.0) -> None:
        places = np.array(index, np.int64)
        Total.zero({"w": 4}, 24).add(Update({"w": 4}, {"w": places}, {"w": np.array(values)}, weight))

    add([0, 3], [1.0, -2.0])
    for index in ([4], [-1], [10**9], [2, 1], [1, 1]):
        with pytest.raises(InvariantError, match="places"):
            add(index, [1.0] * len(index))
    for value in (np.nan, np.inf, 1e300):
        with pytest.raises(InvariantError, match=r"not finite|too large"):
            add([0], [value])
        with pytest.raises(InvariantError, match="weight"):
            add([0], [1.0], weight=value)
    with pytest.raises(InvariantError, match="differ in number"):
        add([0, 1], [1.0])


def test_squares_of_long_texts_do_not_overflow() -> None:
    task = UnigramTask(WORDS, clip=np.inf)
    state = task.init()
    total = Total.zero(task.size, task.bits)
    long = ClientDataset("someone", Ragged(np.full(800_000, 3, np.int32), np.array([0, 800_000])))
    for _ in range(100):
        total.add(task.client_update(state, long, Stream(0)))
    part = task.server_update(state, total).rounds[0]
    assert part.length_square == pytest.approx(100 * 800_000.0**2)
    assert part.square[0] == pytest.approx(100 * 800_000.0**2)


def test_client_data_does_not_show_itself() -> None:
    data = device("a", "b")
    assert repr(data) == "ClientDataset(1 sentences, 2 words)"
    task = UnigramTask(WORDS, clip=1.0)
    shown = repr(task.client_update(task.init(), data, Stream(0)))
    assert shown == "Update(weight[6], square[6], cross[6], length_square[1])"
