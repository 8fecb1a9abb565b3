"""Clipped counts: the weights of devices, sums that do not depend on order, and who takes part."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fedgram.core.arrays import FloatArray, Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.cohort import RoundPlan, draw_order
from fedgram.federated.fleet import RoundCall
from fedgram.federated.job import Job
from fedgram.federated.rounds import GaveUpError, Run, RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import Total, Update
from fedgram.federated.unigram_collection import UnigramState, UnigramTask
from fedgram.federated.validation import UpdateBounds
from fedgram.text.population import ClientDataset, Population, Users, population_from_messages
from fedgram.text.vocabulary import UNK, Vocabulary

WORDS = Vocabulary.of(["a", "b", "c"])
PLAN = RoundPlan(20, 1.3)


def device(*words: str) -> ClientDataset:
    return ClientDataset("someone", Ragged.from_rows([WORDS.encode(words)]))


def update(task: UnigramTask, data: ClientDataset) -> FloatArray:
    return task.client_update(Record(), data, Stream(0)).array("count")


def population(users: int = 60) -> Population:
    rng = np.random.default_rng(0)
    rows = []
    for user in range(users):
        for _ in range(int(rng.integers(1, 6))):
            rows.append((f"user{user:03d}", " ".join(rng.choice(["a", "b", "c", "zzz"], 5)), "train"))
    return population_from_messages(rows)


def collect(
    task: UnigramTask, people: Population, *, rounds: int, seed: int = 3, masking: SecureSettings | None = None
) -> Run[UnigramState]:
    """Rounds of 20 devices, with a dropout rate of a tenth."""
    job = Job(task, seed)
    return run_rounds(job, SimulatedFleet(job, people.train), RunOptions(rounds, PLAN, masking))


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
        task.client_update(Record(), people.load(c, people.word_ids(WORDS)), Stream(0)) for c in range(len(people))
    ]
    rng = np.random.default_rng(1)
    totals = []
    for shards in (1, 2, 7):
        parts = [Total.zero(task.size, task.bits) for _ in range(shards)]
        for i in rng.permutation(len(updates)):
            parts[int(rng.integers(shards))].add(updates[i], task.bounds)
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
    task, people = UnigramTask(WORDS, clip=2.0), population()
    states = [collect(task, people, rounds=5, seed=seed).state for seed in (3, 3, 4)]
    counts = [task.counts(state) for state in states]
    assert np.array_equal(counts[0].weight, counts[1].weight)
    assert not np.array_equal(counts[0].weight, counts[2].weight)
    assert (counts[0].clients, counts[0].rounds, counts[0].clip) == (100, 5, 2.0)
    job = Job(task, 3)
    order = draw_order(people.clients("train"), seed=3, round_number=1)
    one = SimulatedFleet(job, people.train).collect(RoundCall(1, 0, order, PLAN, Record()))
    total, first = Total.zero(task.size, task.bits), states[0].rounds[0]
    for client in one.participants.tolist():
        total.add(
            task.client_update(Record(), people.load(client, people.word_ids(WORDS)), Stream(0)), task.bounds
        )  # fmt: skip
    assert set(one.participants.tolist()) <= set(order[:26].tolist())
    assert np.array_equal(one.total.arrays["count"], total.arrays["count"])
    assert np.array_equal(total.array("count")[first.index], first.weight)


def test_capitals_do_not_matter() -> None:
    shout = population_from_messages([("u", "A b C a", "train")])
    task = UnigramTask(WORDS, clip=np.inf)
    assert update(task, shout.load(0, task.encode(shout.words))).tolist() == [0, 0, 0, 2, 1, 1]


def test_secure_rounds_count_the_same() -> None:
    """Missing devices leave in the middle of the protocol; the sums are exactly those of the others."""
    task, people = UnigramTask(WORDS, clip=2.0), population()
    plain, masked = (collect(task, people, rounds=3, masking=masking) for masking in (None, SecureSettings()))
    assert plain.progress.abandoned == masked.progress.abandoned == 0
    assert masked.progress.tally.failed["dropped out"] > 0
    for one, other in zip(plain.state.rounds, masked.state.rounds, strict=True):
        assert one.devices == other.devices == 20
        assert np.array_equal(one.index, other.index)
        assert np.array_equal(one.weight, other.weight)


def test_a_round_that_is_abandoned_counts_nothing_and_says_why() -> None:
    reasons: list[str] = []

    def tell(event: str, about: Mapping[str, Any]) -> None:
        assert event in ("round began", "round abandoned")
        if event == "round abandoned":
            reasons.append(about["why"])

    job, people = Job(UnigramTask(WORDS, clip=2.0), 3), population()
    fleet = SimulatedFleet(job, people.train, dropout=0.9)
    with pytest.raises(GaveUpError, match=r"round 1 was abandoned 5 times, .* devices sent .*, 20 are needed"):
        run_rounds(job, fleet, RunOptions(2, PLAN, SecureSettings(min_devices=20)), tell=tell)
    assert len(reasons) == 5
    assert all("20 are needed" in reason for reason in reasons)


def test_cohorts_invite_more_devices_than_they_need() -> None:
    people = population(200)
    job = Job(UnigramTask(WORDS, clip=1.0), 0)

    def cohort(clients: int, plan: RoundPlan, dropout: float) -> tuple[set[int], int, int, int]:
        chosen = people.clients()[:clients]
        fleet = SimulatedFleet(job, Users(people, chosen), dropout=dropout)
        order = draw_order(chosen, seed=0, round_number=1)
        found = fleet.collect(RoundCall(1, 0, order, plan, Record()))
        devices = set(found.participants.tolist())
        assert len(devices) == len(found.participants) == found.total.devices == found.tally.reports
        return devices, found.tally.invited, found.tally.failed["dropped out"], found.tally.late

    reporting, invited, dropped, late = cohort(200, RoundPlan(100, 1.3), 0.1)
    assert (len(reporting), invited, dropped + late) == (100, 130, 30)
    assert dropped > 0
    few, invited, dropped, late = cohort(50, RoundPlan(100, 1.3), 0.1)
    assert (len(few), invited, late) == (50 - dropped, 50, 0)
    hard, _, dropped, _ = cohort(200, RoundPlan(100, 1.0), 0.5)
    assert 25 < len(hard) < 75
    assert len(hard) == 100 - dropped


def test_mistakes_are_refused() -> None:
    for clip in (0.0, -1.0, float("nan")):
        with pytest.raises(FedgramError, match="greater than 0"):
            UnigramTask(WORDS, clip=clip)
    with pytest.raises(InvariantError, match="other vectors"):
        Total.zero({"x": 3}, 8).add(Update.dense({"x": np.zeros(2)}, 1.0), UpdateBounds())


def test_updates_from_devices_are_checked_before_they_are_added() -> None:
    def add(index: list[int], values: list[float], weight: float = 1.0) -> None:
        places = np.array(index, np.int64)
        update = Update({"w": 4}, {"w": places}, {"w": np.array(values)}, weight)
        Total.zero({"w": 4}, 24).add(update, UpdateBounds())

    add([0, 3], [1.0, -2.0])
    for index in ([4], [-1], [10**9], [2, 1], [1, 1]):
        with pytest.raises(InvariantError, match="indices"):
            add(index, [1.0] * len(index))
    for value in (np.nan, np.inf, 1e300):
        with pytest.raises(InvariantError, match=r"not finite|too large"):
            add([0], [value])
        with pytest.raises(InvariantError, match="weight"):
            add([0], [1.0], weight=value)
    with pytest.raises(InvariantError, match="differ in number"):
        add([0, 1], [1.0])


def test_counts_of_long_texts_do_not_overflow() -> None:
    task = UnigramTask(WORDS, clip=np.inf)
    total = Total.zero(task.size, task.bits)
    long = ClientDataset("someone", Ragged(np.full(800_000, 3, np.int32), np.array([0, 800_000])))
    sent = task.client_update(Record(), long, Stream(0))
    for _ in range(1000):
        total.add(sent, task.bounds)
    total.check(task.bounds)
    part = task.server_update(task.init(), total).rounds[0]
    assert (part.index.tolist(), part.weight.tolist(), part.devices) == ([3], [8e8], 1000)


def test_devices_send_their_counts_alone() -> None:
    """No squares, and no words outside the whitelist. A device without any listed word sends zeros, and is counted."""
    task = UnigramTask(WORDS, clip=5.0)
    assert task.size == {"count": 6}
    sent = task.client_update(Record(), device("zzz", "b", "yyy"), Stream(0))
    assert (sent.index["count"].tolist(), sent.values["count"].tolist(), sent.weight) == ([4], [1.0], 1.0)
    nothing = task.client_update(Record(), device("zzz"), Stream(0))
    assert (len(nothing.index["count"]), nothing.weight) == (0, 1.0)


def test_client_data_does_not_show_itself() -> None:
    data = device("a", "b")
    assert repr(data) == "ClientDataset(1 sentences, 2 words)"
    task = UnigramTask(WORDS, clip=1.0)
    assert repr(task.client_update(Record(), data, Stream(0))) == "Update(count[6])"
