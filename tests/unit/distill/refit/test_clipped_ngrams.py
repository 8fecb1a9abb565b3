"""What a device sends of its n-grams: within the limits, the same scale in every pass, whole counts if not scaled."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.ngram_counting import all_occurrences, ngrams
from tests.reference.random_models import random_sentences, random_topology, vocabulary

from fedgram.automata.topology import Topology, arc_sources, state_lengths
from fedgram.core.arrays import BoolArray, FloatArray, Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.distill.refit.asked_ngrams import AskedNGrams, at_most
from fedgram.distill.refit.clipped_ngrams import (
    BITS,
    COUNT,
    DEVICES,
    ClippedNGrams,
    Clipping,
    counts_from_sums,
    devices_from_sums,
    weighted_square,
)
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.task import Update
from fedgram.federated.validation import Reason
from fedgram.text.population import ClientDataset
from fedgram.text.vocabulary import BOS, EOS

KINDS = 6
OMEGA = (0.125, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0)
seeds = st.integers(0, 2**32 - 1)
norms = st.floats(0.05, 40.0) | st.just(math.inf)
limits = st.integers(1, 40) | st.just(math.inf)


def by_hand(text: Ragged, weights: Sequence[float]) -> float:
    """‖v‖² over all n-grams of a text, those that end with its sentences included."""
    count = Counter[tuple[int, ...]]()
    for sentence in text:
        run = [BOS, *sentence.tolist(), EOS]
        for n in range(1, len(weights) + 1):
            count.update(tuple(run[i : i + n]) for i in range(len(run) - n + 1) if n > 1 or i > 0)
    return sum((weights[len(ngram) - 1] * times) ** 2 for ngram, times in count.items())


def a_task(topology: Topology, clipping: Clipping, asked: BoolArray | None = None, **more: Any) -> ClippedNGrams:
    everything = np.ones(topology.arcs, bool) if asked is None else asked
    return ClippedNGrams(AskedNGrams(topology, vocabulary(KINDS), everything), clipping, 5, **more)


def a_topology(order: int = 3, ngrams: int = 20) -> Topology:
    return random_topology(np.random.default_rng(0), words=KINDS, order=order, ngrams=ngrams)


def update_of(task: ClippedNGrams, text: Ragged, seed: int = 0) -> Update:
    return task.client_update(Record(), ClientDataset("x", text), Stream(seed))


def sent(task: ClippedNGrams, text: Ragged) -> FloatArray:
    return update_of(task, text).array(COUNT)


@given(seeds, st.integers(1, 7))
def test_the_length_of_a_devices_vector_is_that_over_all_its_ngrams(seed: int, order: int) -> None:
    rng = np.random.default_rng(seed)
    text = random_sentences(rng, words=KINDS, sentences=int(rng.integers(1, 12)))
    assert weighted_square(text, OMEGA[:order]) == pytest.approx(by_hand(text, OMEGA[:order]), rel=1e-12)


@given(seeds, norms, limits, st.integers(3, 7))
def test_all_passes_together_never_exceed_the_norm(seed: int, norm: float, labels: float, order: int) -> None:
    """However the n-grams of later passes are chosen, and however long, as long as none is asked for twice."""
    rng = np.random.default_rng(seed)
    topology = random_topology(rng, words=KINDS, order=order, ngrams=60)
    text = random_sentences(rng, words=KINDS, sentences=12)
    clipping, turn = Clipping.up_to(order, norm), rng.integers(0, 3, topology.arcs)
    lengths = state_lengths(topology)[arc_sources(topology)]
    if seed % 2:  # as passes do: longer n-grams come later
        turn = np.minimum(lengths, 2)
    counted = at_most(text, labels, Stream(5, "sentences"))
    occurs = np.array([all_occurrences(topology, counted)[name] for name in ngrams(topology)])
    everything = np.zeros(topology.arcs)
    for number in range(3):
        task = a_task(topology, clipping, turn == number, labels=labels, marks=bool(seed % 3))
        update = update_of(task, text, seed + number)
        assert Intake(task).offer(0, update) is None
        everything[turn == number] = update.array(COUNT)
        if task.marks:
            assert update.array(DEVICES).tolist() == (occurs[turn == number] > 0).tolist()
    assert np.linalg.norm(everything) <= norm
    length = math.sqrt(by_hand(counted, clipping.weights))
    exact = (min(1.0, norm / length) if length else 1.0) * np.array(OMEGA)[lengths] * occurs
    assert np.all(everything <= exact + 1e-12)
    assert np.all(exact - everything < 2.0**-BITS)


@settings(max_examples=40)
@given(seeds, st.integers(1, 7))
def test_what_is_not_scaled_is_counted_exactly(seed: int, order: int) -> None:
    """One vector is scaled, which leaves the others' counts whole, and all marks."""
    rng = np.random.default_rng(seed)
    topology = random_topology(rng, words=KINDS, order=order, ngrams=40)
    texts = [random_sentences(rng, words=KINDS, sentences=int(rng.integers(1, 60))) for _ in range(4)]
    longest = max(math.sqrt(by_hand(text, OMEGA[: max(order, 4)])) for text in texts)
    occurs = [np.array([all_occurrences(topology, text)[name] for name in ngrams(topology)]) for text in texts]
    for norm in (math.inf, longest * 1.000001, longest / 2):
        task = a_task(topology, Clipping.up_to(order, norm), marks=True)
        intake = Intake(task)
        for device, text in enumerate(texts):
            assert intake.offer(device, update_of(task, text)) is None
        sums = task.server_update(task.init(), intake.total)
        counts = counts_from_sums(sums, task.ngrams, task.clipping)
        assert devices_from_sums(sums).tolist() == np.sum([o > 0 for o in occurs], axis=0).tolist()
        if norm > longest:
            assert counts.tolist() == np.sum(occurs, axis=0).tolist()
        else:
            assert np.all(counts <= np.sum(occurs, axis=0))
            assert counts.sum() < np.sum(occurs)


def test_a_word_alone_is_counted_exactly_however_often() -> None:
    """ω of a word is 1/8, which the grid of the sums has; of 0.1 a million would not come back whole."""
    text = Ragged.from_rows([[3] * 999_999])
    task = a_task(a_topology(order=1), Clipping(math.inf), marks=True)
    intake = Intake(task)
    assert intake.offer(0, update_of(task, text)) is None
    sums = intake.total.arrays
    assert counts_from_sums(sums, task.ngrams, task.clipping).max() == 999_999.0
    assert set(devices_from_sums(sums).tolist()) == {0, 1}


@given(seeds, st.integers(1, 12))
def test_no_device_counts_for_more_than_the_limits(seed: int, labels: int) -> None:
    rng = np.random.default_rng(seed)
    text = random_sentences(rng, words=KINDS, sentences=9)
    topology = random_topology(rng, words=KINDS, order=3, ngrams=15)
    task = a_task(topology, Clipping(math.inf), labels=labels, marks=True)
    update = update_of(task, text, seed)
    assert update.values[COUNT].sum() <= labels * (0.125 + 0.5 + 1.0)
    assert update.values[DEVICES].sum() <= labels * topology.order
    assert set(update.values[DEVICES].tolist()) <= {1.0}
    assert Intake(task).offer(0, update) is None
    assert update_of(task, text, seed + 1).array(COUNT).tolist() == update.array(COUNT).tolist()  # the same sentences
    kept = at_most(text, labels, Stream(seed))
    assert {tuple(s.tolist()) for s in kept} <= {tuple(s.tolist()) for s in text}
    assert len(kept.values) + len(kept) <= labels


def test_the_norm_is_that_of_what_is_counted() -> None:
    """Of 40 sentences of 2 labels one is counted: it is not scaled, although all of them would be."""
    text = Ragged.from_rows([[3]] * 40)
    topology = a_topology(order=1)
    one, everything = (a_task(topology, Clipping(2.0), labels=labels) for labels in (2, math.inf))
    assert sorted(update_of(one, text).values[COUNT].tolist()) == [0.125, 0.125]  # the word, and the end
    assert np.linalg.norm(update_of(everything, text).values[COUNT]) < 2.0 < math.sqrt(by_hand(text, OMEGA[:4]))


def test_marks_are_not_scaled() -> None:
    """Not even where a count becomes so small that it is not sent."""
    text, topology = random_sentences(np.random.default_rng(1), words=KINDS, sentences=50), a_topology()
    whole, tiny = (update_of(a_task(topology, Clipping(norm), marks=True), text) for norm in (math.inf, 1e-3))
    assert len(tiny.index[COUNT]) < len(whole.index[COUNT]) == len(whole.index[DEVICES])
    assert tiny.array(DEVICES).tolist() == whole.array(DEVICES).tolist() == (whole.array(COUNT) > 0).tolist()
    assert set(tiny.values[DEVICES].tolist()) == {1.0}


def test_other_collections_count_other_sentences() -> None:
    rng, topology = np.random.default_rng(4), a_topology()
    text, asked = random_sentences(rng, words=KINDS, sentences=30), AskedNGrams.all_of(topology, vocabulary(KINDS))
    found = {
        tuple(sent(ClippedNGrams(asked, Clipping(math.inf), choice, labels=20), text).tolist()) for choice in range(8)
    }
    assert len(found) > 4


@pytest.mark.parametrize(
    ("values", "marks", "weight", "reason"),
    [
        ([2.5], [1.0], 1.0, Reason.NORM), ([1.5, 1.5, 1.5], [1.0], 1.0, Reason.NORM),
        ([0.41] * 20, [1.0], 1.0, Reason.NORM),  # ‖v‖ = 1.83, but more than 5 labels
        ([-0.1], [1.0], 1.0, Reason.NEGATIVE), ([math.nan], [1.0], 1.0, Reason.NOT_FINITE),
        ([math.inf], [1.0], 1.0, Reason.NOT_FINITE), ([1.0], [1.0], 2.0, Reason.WEIGHT),
        ([1.0], [2.0], 1.0, Reason.TOO_LARGE), ([1.0], [1.001], 1.0, Reason.TOO_LARGE),
        ([1.0], [-1.0], 1.0, Reason.NEGATIVE), ([1.0], [-0.5, 1.0], 1.0, Reason.NEGATIVE),
        ([1.0], [1.0] * 16, 1.0, Reason.NORM), ([1.0], [math.nan], 1.0, Reason.NOT_FINITE),
    ],
)  # fmt: skip
def test_what_no_device_can_have_counted_is_refused(
    values: list[float], marks: list[float], weight: float, reason: Reason
) -> None:
    """A device's vector has a norm of at most 2, from at most 5 labels; it says once that it has an n-gram."""
    task = a_task(a_topology(ngrams=60), Clipping(2.0), labels=5, marks=True)

    def offered(values: list[float], marks: list[float], weight: float) -> object:
        index = {COUNT: np.arange(len(values)), DEVICES: np.arange(len(marks))}
        update = Update(task.size, index, {COUNT: np.array(values), DEVICES: np.array(marks)}, weight)
        return Intake(task).offer(0, update)

    assert task.ngrams.size > 25
    assert task.ngrams.topology.order == 3
    assert offered([1.1, 1.1, 1.1], [1.0] * 15, 1.0) is None
    assert offered([0.4] * 20, [0.5], 1.0) is None
    assert offered([2.0], [1.0], 1.0) is None
    assert offered(values, marks, weight) is reason


@pytest.mark.parametrize(
    "values", [[2.5], [1.5, 1.5, 1.5], [-0.1], [math.nan], [math.inf]], ids=lambda values: str(values)
)
def test_a_crafted_vector_without_marks_does_not_pass_the_norm(values: list[float]) -> None:
    task = a_task(a_topology(), Clipping(2.0))

    def offered(values: list[float]) -> object:
        return Intake(task).offer(0, Update(task.size, {COUNT: np.arange(len(values))}, {COUNT: np.array(values)}, 1.0))

    assert offered([1.1, 1.1, 1.1]) is None
    assert offered([2.0]) is None
    assert offered(values) is not None
    marked = a_task(a_topology(), Clipping(2.0), marks=True)
    assert Intake(task).offer(0, update_of(marked, Ragged.from_rows([[3, 4]]))) is Reason.SHAPE


def test_parts_of_marks_are_no_devices() -> None:
    """Lying devices that send halves count as no more than the marks that they add up to."""
    task = a_task(a_topology(), Clipping(2.0), marks=True)
    intake = Intake(task)
    for device, mark in enumerate([1.0, 0.5, 0.999, 0.5]):
        marks = np.array([mark, mark / 2, mark if device == 2 else 0.0])
        index, none = np.arange(3), np.zeros(0)
        update = Update(task.size, {COUNT: index[:0], DEVICES: index}, {COUNT: none, DEVICES: marks}, 1.0)
        assert intake.offer(device, update) is None
    assert devices_from_sums(intake.total.arrays)[:4].tolist() == [2, 1, 0, 0]


@pytest.mark.parametrize("labels", [7, 2.5, math.inf])
@pytest.mark.parametrize("norm", [3, 0.25, math.inf])
@pytest.mark.parametrize("marks", [True, False])
def test_a_device_is_sent_the_same_task(norm: float, labels: float, marks: bool) -> None:
    rng = np.random.default_rng(2)
    topology = a_topology(order=6, ngrams=60)
    own = a_task(topology, Clipping.up_to(6, norm), rng.random(topology.arcs) < 0.5, labels=labels, marks=marks)
    got = job_from_bytes(Job(own, 3).content).task
    assert isinstance(got, ClippedNGrams)
    assert (got.clipping, got.choice, got.labels, got.marks) == (own.clipping, own.choice, own.labels, own.marks)
    assert (got.size, got.bounds) == (own.size, own.bounds)
    text = random_sentences(rng, words=KINDS, sentences=9)
    assert {name: update_of(got, text).array(name).tolist() for name in own.size} == {
        name: update_of(own, text).array(name).tolist() for name in own.size
    }


def test_a_damaged_topology_is_refused() -> None:
    settings = a_task(a_topology(), Clipping(2.0)).settings()
    for name, change in (("dest", -1), ("label", 99), ("backoff", 10_000)):
        broken = settings.arrays[name].copy()
        broken[-1] += change
        with pytest.raises(InvariantError, match="does not hold"):
            ClippedNGrams.from_settings(Record(settings.fields, {**settings.arrays, name: broken}))


def test_weights_are_needed_for_every_order() -> None:
    asked = AskedNGrams.all_of(a_topology(), vocabulary(KINDS))
    with pytest.raises(FedgramError, match="up to 2 words"):
        Clipping(1.0, (0.125, 0.5)).weights_of(asked)
    assert Clipping(1.0, (0.125, 0.5, 1.0)).weights_of(asked).shape == (asked.size,)


@pytest.mark.parametrize("labels", [0, 0.5, -1, math.nan])
def test_a_device_must_count_something(labels: float) -> None:
    with pytest.raises(FedgramError, match="at least 1 label"):
        a_task(a_topology(), Clipping(1.0), labels=labels)
