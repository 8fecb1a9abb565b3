"""The federated refit: what devices send, what is found and proposed, and what the server makes of it."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.ngram_counting import all_occurrences, longest_reads, ngrams
from tests.reference.random_models import random_model, random_sentences, random_topology, random_weights, vocabulary

from fedgram.automata.build import count_ngrams
from fedgram.automata.counting import visited_states
from fedgram.automata.model import NGramModel, model_from_weights, renormalize
from fedgram.automata.properties import model_faults, topology_faults
from fedgram.automata.prune import closed_under_parents
from fedgram.automata.sampling import sample_sentences
from fedgram.automata.scoring import score
from fedgram.automata.smoothing import continuation_counts, smooth
from fedgram.automata.topology import Topology, backoff_arcs
from fedgram.core.arrays import BoolArray, FloatArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Advance
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.clipped_ngrams import (
    COUNT,
    DEVICES,
    ClippedNGrams,
    Clipping,
    counts_from_sums,
    devices_from_sums,
)
from fedgram.distill.refit.count_fit import Prior, TrustedCounts, fit_counts
from fedgram.distill.refit.count_release import ExactCounts
from fedgram.distill.refit.device_counts import CountedNGrams, CountingPlan, Passes, Sketch, count_on_devices
from fedgram.distill.refit.ngram_growth import Growth
from fedgram.distill.refit.occurrences import consistent, flow_counts
from fedgram.distill.refit.pair_sketch import CELLS, WORDS, PairCollection, SketchSize
from fedgram.distill.refit.refit import fit_to_counts
from fedgram.federated import devices
from fedgram.federated.cohort import CohortOptions, RoundPlan
from fedgram.federated.devices import SimulatedDevices
from fedgram.federated.fleet import Fleet
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job
from fedgram.federated.rounds import GaveUpError, Run, RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import FederatedTask, Update
from fedgram.text.population import ClientDataset, Population, population_from_messages
from fedgram.text.vocabulary import BOS, EOS

KINDS = 6
PLAN = RoundPlan(devices=7, over_selection=1.3)
COHORT = CohortOptions(devices_per_round=7, over_selection=1.3, dropout=0.2)
SIZE = SketchSize(tables=3, bits=12)
SKETCH = Sketch(SIZE, labels=40)
GROWTH = Growth(passes=1, shortest=3, order=3)
UNLIMITED = Clipping(math.inf)
ALL = ExactCounts(Clipping(20.0), 40, 1, 1)
State = TypeVar("State")
seeds = st.integers(0, 2**32 - 1)


def population(rng: np.random.Generator, users: int = 25) -> Population:
    """Users who write words of the random models, and some that those do not know."""
    words = [f"w{i}" for i in range(KINDS)] + ["zzz"]
    rows = []
    for user in range(users):
        for _ in range(int(rng.integers(1, 8))):
            text = " ".join(words[min(int(k), KINDS)] for k in rng.geometric(0.35, int(rng.integers(1, 7))) - 1)
            rows.append((f"user{user:03d}", text, "train"))
    return population_from_messages(rows)


def ask_all(
    task: FederatedTask[State], people: Population, seed: int, masking: SecureSettings | None = None, **options: Any
) -> Run[State]:
    """A pass: every device takes part once."""
    job = Job(task, seed, participations=1)
    fleet = SimulatedFleet(job, people.train, **{"dropout": 0.2, **options})
    return run_rounds(job, fleet, RunOptions(None, PLAN, masking))


def count(
    model: NGramModel, people: Population, plan: CountingPlan, seed: int, folder: Path | None = None,
    public: BoolArray | None = None,
) -> CountedNGrams:  # fmt: skip
    passes = Passes(SimulatedDevices(people.train), COHORT, seed=seed, folder=folder)
    return count_on_devices(model, passes, plan, public)


def pooled(people: Population) -> Ragged:
    codes = people.word_ids(vocabulary(KINDS))
    return Ragged.concatenate([people.load(int(c), codes).sentences for c in people.clients("train")])


def collection(topology: Topology, clipping: Clipping = UNLIMITED, words: int = KINDS, **more: Any) -> ClippedNGrams:
    """Devices are asked for all n-grams of a topology, and mark those that they have."""
    return ClippedNGrams(AskedNGrams.all_of(topology, vocabulary(words)), clipping, marks=True, **more)


def counted(task: ClippedNGrams, update: Update) -> FloatArray:
    """S(x, q), as far as a device sent it."""
    counts: FloatArray = update.array(COUNT) / task.clipping.weights_of(task.ngrams)
    return counts


def counted_text(topology: Topology, text: Ragged, words: int = KINDS) -> FloatArray:
    """What a device with this text counts."""
    task = collection(topology, words=words)
    return counted(task, task.client_update(Record(), ClientDataset("x", text), Stream(0)))


def exact(ngrams: FloatArray) -> TrustedCounts:
    return TrustedCounts(ngrams, np.ones(len(ngrams)))


def model_of(rng: np.random.Generator, order: int = 3) -> NGramModel:
    topology = random_topology(rng, words=KINDS, order=order, ngrams=15)
    return renormalize(random_weights(rng, topology, KINDS))


@given(seeds)
def test_a_device_counts_the_ngrams_that_occur(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_model(rng, order=3, words=KINDS).topology
    text = random_sentences(rng, words=KINDS, sentences=9)
    text = Ragged(np.where(rng.random(len(text.values)) < 0.1, 0, text.values).astype(np.int32), text.offsets)
    names, everywhere = ngrams(topology), all_occurrences(topology, text)
    count = counted_text(topology, text)
    assert count.tolist() == [everywhere[name] for name in names]
    found = consistent(topology, count)
    assert found.ngrams.tolist() == count.tolist()
    expected = longest_reads(topology, text)
    assert flow_counts(topology, found).arc.tolist() == [expected[name] for name in names]
    if expected.total() == len(text.values) + len(text):  # nothing unknown: the counts tell the visits as well
        visits = np.bincount(visited_states(topology, text), minlength=topology.states)
        assert flow_counts(topology, found).visits.tolist() == visits.tolist()
        assert found.histories[0] == visits.sum()
    asked = AskedNGrams(topology, vocabulary(KINDS), rng.random(topology.arcs) < 0.5)
    task = ClippedNGrams(asked, UNLIMITED, marks=True)
    update = task.client_update(Record(), ClientDataset("x", text), Stream(0))
    assert counted(task, update).tolist() == count[asked.asked].tolist()
    assert update.array(DEVICES).tolist() == (count[asked.asked] > 0).tolist()


@given(seeds)
def test_devices_add_up_to_the_counts_of_their_pooled_text(seed: int) -> None:
    rng = np.random.default_rng(seed)
    people, topology = population(rng), model_of(rng).topology
    task = collection(topology)
    found = ask_all(task, people, seed, as_bytes=True)
    expected, having = all_occurrences(topology, pooled(people)), devices_with(topology, people)
    counts = counts_from_sums(found.state, task.ngrams, task.clipping)
    assert counts.tolist() == [expected[name] for name in ngrams(topology)]
    assert devices_from_sums(found.state).tolist() == [having[name] for name in ngrams(topology)]
    assert found.progress.device.tolist() == people.clients("train").tolist()
    assert found.progress.tally.reports == len(people.clients("train"))
    assert found.progress.most == 1
    assert found.progress.tally.bytes_received > 0


def test_masked_devices_add_up_to_the_same() -> None:
    rng = np.random.default_rng(4)
    people, topology = population(rng), model_of(rng).topology
    task = collection(topology, Clipping(3.0), labels=30)
    plain, masked = (
        ask_all(task, people, 2, masking, dropout=0.0) for masking in (None, SecureSettings())
    )  # fmt: skip
    assert all(np.array_equal(plain.state[name], masked.state[name]) for name in (COUNT, DEVICES))
    assert plain.progress.device.tolist() == masked.progress.device.tolist()


class Liars(ClippedNGrams):
    """A task whose devices say more than they may; all of them, or those that have a word."""

    which: int | None = None

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:
        update = super().client_update(broadcast, data, rng)
        if self.which is not None and self.which not in data.sentences.values:
            return update
        return Update(update.size, update.index, {**update.values, COUNT: update.values[COUNT] * 1e6}, 1.0)


def liars(topology: Topology, which: int | None = None) -> ClippedNGrams:
    task = Liars(AskedNGrams.all_of(topology, vocabulary(KINDS)), Clipping(100.0), labels=100, marks=True)
    task.which = which
    return task


@pytest.mark.parametrize("masking", [None, SecureSettings()])
def test_a_pass_leaves_hostile_reports_out_and_counts_them(masking: SecureSettings | None) -> None:
    """They are asked once like all others, so that a few of them cannot keep a pass from its end."""
    rng = np.random.default_rng(1)
    people, words = population(rng), vocabulary(KINDS)
    topology = model_of(rng).topology
    rare, codes = words.index[f"w{KINDS - 1}"], people.word_ids(words)
    texts = {c: people.load(c, codes).sentences for c in people.clients("train").tolist()}
    honest = [c for c, text in texts.items() if rare not in text.values]
    assert 3 < len(texts) - len(honest) < 10
    task = liars(topology, which=rare)
    found = ask_all(task, people, 0, masking)
    expected = all_occurrences(topology, Ragged.concatenate([texts[c] for c in honest]))
    counts = counts_from_sums(found.state, task.ngrams, task.clipping)
    assert counts.tolist() == [expected[name] for name in ngrams(topology)]
    assert found.progress.tally.reports == len(honest)
    left = texts.keys() - set(found.progress.device.tolist())
    assert len(left) <= (1 if masking else 0)  # nobody masks alone
    assert found.progress.tally.refused == {"norm above the limit": len(texts) - len(honest) - len(left)}
    assert found.progress.most == 1


def test_a_pass_of_nothing_but_hostile_reports_gives_up() -> None:
    rng = np.random.default_rng(1)
    task, people = liars(model_of(rng).topology), population(rng)
    with pytest.raises(
        GaveUpError, match=r"round 1 was abandoned 5 times, .* 0 of at least 1 reports \(.*norm above the limit"
    ):
        ask_all(task, people, 0)


@given(seeds)
def test_every_pair_that_enough_devices_have_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    people = population(rng)
    task = PairCollection(vocabulary(KINDS), SIZE, labels=math.inf)
    marks = ask_all(task, people, seed).state
    having: dict[tuple[int, int], int] = {}
    for client in people.clients("train"):
        sentences = people.load(int(client), people.word_ids(vocabulary(KINDS))).sentences
        runs = [[BOS, *s.tolist(), EOS] for s in sentences]
        for pair in {pair for run in runs for pair in pairwise(run)}:
            having[pair] = having.get(pair, 0) + 1
    for least in (1, 2, 5):
        found = {tuple(row.tolist()) for row in task.found(marks, least=least, most=1000)}
        wanted = {pair for pair, n in having.items() if n >= least}
        assert wanted <= found
        assert len(found - wanted) <= 2  # collisions
    fewest = task.found(marks, least=1, most=5)
    assert len(fewest) <= 5


def test_marks_beyond_a_device_are_refused() -> None:
    task = PairCollection(vocabulary(KINDS), SIZE, labels=3)
    none = np.zeros(0, np.int64)
    for index, value in ((np.arange(10), 1.0), (np.arange(2), 2.0)):
        update = Update(
            task.size, {WORDS: none, CELLS: index}, {WORDS: np.zeros(0), CELLS: np.full(len(index), value)}, 1.0
        )
        assert Intake(task).offer(0, update) is not None


@given(seeds)
def test_without_counts_the_refit_is_the_distilled_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = model_of(rng)
    same = fit_counts(model, exact(np.zeros(model.topology.arcs)), Prior(3.0))
    assert np.allclose(same.log_weight, model.log_weight, atol=1e-9)
    nobody = population_from_messages([("a", "zzz", "dev")])
    with pytest.raises(FedgramError, match="no users to invite"):
        count_on_devices(
            model, Passes(SimulatedDevices(nobody.train), COHORT, seed=0), CountingPlan(ALL, SKETCH, GROWTH)
        )


@given(seeds)
def test_without_a_prior_the_refit_is_kneser_ney(seed: int) -> None:
    """On all n-grams of a text, with its own discounts and β → 0."""
    rng = np.random.default_rng(seed)
    text = random_sentences(rng, words=KINDS, sentences=30)
    counts = count_ngrams(text, vocabulary(KINDS), order=2)
    t = counts.topology
    c = continuation_counts(backoff_arcs(t), counts.count)
    n1, n2 = (int(np.sum(c[t.first_arc[1] :] == n)) for n in (1, 2))
    if not n1 or np.any(c[: t.first_arc[1]] == 0):
        return
    D = n1 / (n1 + 2 * n2)
    count = counted_text(t, text)
    assert np.array_equal(count, counts.count)
    prior = random_weights(rng, t, KINDS)
    refitted = fit_counts(prior, exact(count), Prior(visits=1e-12, discounts=(D, D, D), share=0.0))
    assert np.allclose(np.exp(refitted.log_weight), np.exp(smooth(counts, "kneser-ney").log_weight), atol=1e-9)


def devices_with(topology: Topology, people: Population) -> Counter[tuple[int, ...]]:
    """How many users' texts have each n-gram."""
    having, codes = Counter[tuple[int, ...]](), people.word_ids(vocabulary(KINDS))
    for client in people.clients("train").tolist():
        having.update(all_occurrences(topology, people.load(client, codes).sentences).keys())
    return having


@given(seeds, st.booleans(), st.sampled_from([(1, 1), (2, 2), (4, 2), (9, 2), (9, 5), (3, 6)]))
def test_the_whole_refit_keeps_its_promises(seed: int, pairs: bool, least: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    people, model = population(rng), model_of(rng)
    growth = Growth(passes=2, shortest=3 if pairs else 2, order=3)
    options = CountingPlan(ExactCounts(UNLIMITED, math.inf, *least), SKETCH if pairs else None, growth)
    known = closed_under_parents(model.topology, rng.random(model.topology.arcs) < rng.choice([0.0, 0.1, 1.0]))
    counted = count(model, people, options, seed, public=known)
    assert {p["reports"] for p in counted.passes} == {len(people.clients("train"))}
    assert len(counted.passes) <= (4 if pairs else 3)
    assert topology_faults(counted.topology, words=KINDS + 3) == []
    names, own = ngrams(counted.topology), ngrams(model.topology)
    public = {name for name, is_public in zip(own, known.tolist(), strict=True) if is_public}
    assert public <= set(names)
    having, seen = devices_with(counted.topology, people), all_occurrences(counted.topology, pooled(people))
    min_devices, network_devices = least
    several = {name for name in set(names) - public if len(name) > 1}
    assert all(having[name] >= min_devices for name in several - set(own))
    assert network_devices == 1 or all(having[name] >= min(least) for name in several & set(own))
    on_enough = {name for name in own if having[name] >= network_devices} if network_devices > 1 else set(own)
    assert on_enough <= set(names)
    assert counted.ngrams.tolist() == [seen[name] for name in names]
    assert not counted.deviation.any()
    final = fit_to_counts(model, counted, Prior(3.0), max_ngrams=40)
    assert final.topology.arcs <= 40
    assert model_faults(final) == []
    again = fit_to_counts(model, count(model, people, options, seed, public=known), Prior(3.0), max_ngrams=40)
    assert np.array_equal(again.log_weight, final.log_weight)


def test_an_interrupted_count_resumes_in_the_pass_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_CHECKPOINT_PAUSE", 0.0)
    rng = np.random.default_rng(2)
    people, model = population(rng), model_of(rng)
    options = CountingPlan(ALL, SKETCH, GROWTH)
    whole = count(model, people, options, 7)
    steps: list[str] = []
    reports: list[int] = []

    def interrupted(description: str, total: int | None = None, *, unit: str = "") -> Advance:
        assert (total, unit) == (len(people.train), "devices")
        steps.append(description)

        def advance(amount: int, _: str | None = None, /) -> None:
            reports.append(amount)
            if len(steps) == 2 and len(reports) > 6:  # in the third round of the second pass
                raise KeyboardInterrupt

        return advance

    passes = Passes(SimulatedDevices(people.train), COHORT, seed=7, folder=tmp_path, begin=interrupted)
    with pytest.raises(KeyboardInterrupt):
        count_on_devices(model, passes, options)
    assert [step.split()[-1] for step in steps] == ["pairs", "n-grams"]
    assert len(list((tmp_path / "pass-1").iterdir())) > 0
    resumed = count(model, people, options, 7, tmp_path)
    assert np.array_equal(resumed.ngrams, whole.ngrams)
    assert resumed.passes == whole.passes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pass-0", "pass-1", "pass-2"]


def test_passes_draw_their_devices_anew() -> None:
    """Each pass has a seed of its own, and says what is counted, and on what."""
    rng = np.random.default_rng(3)
    people, model = population(rng), model_of(rng)
    options = CountingPlan(ALL, SKETCH, GROWTH)
    jobs: list[Job[Any]] = []
    about: list[str] = []

    class Watched(SimulatedDevices):
        @contextmanager
        def working_on(self, job: Job[Any], cohort: CohortOptions, rounds: int | None) -> Iterator[Fleet]:
            jobs.append(job)
            with super().working_on(job, cohort, rounds) as fleet:
                yield fleet

    def begin(description: str, total: int | None = None, *, unit: str = "") -> Advance:
        assert (total, unit) == (len(people.train), "devices")
        about.append(re.sub(r"[\d,]+", "N", description))
        return lambda *_: None

    count_on_devices(model, Passes(Watched(people.train), COHORT, seed=1, begin=begin), options)
    assert len({job.seed for job in jobs}) == len(jobs) == 3
    assert {job.participations for job in jobs} == {1}
    assert about == ["Devices count pairs", "Devices count N n-grams", "Devices count N n-grams"]


def test_the_refit_predicts_its_users_better_than_prior_or_counts_alone() -> None:
    """With a noisy prior and few counts of the same truth."""
    rng = np.random.default_rng(5)
    truth = renormalize(smooth(count_ngrams(random_sentences(rng, words=20, sentences=60), vocabulary(20), order=3)))
    text, unseen = (sample_sentences(truth, n, seed=s) for n, s in ((120, 1), (3000, 2)))
    t = truth.topology
    noisy = np.exp(truth.log_weight) * rng.gamma(2.0, 0.5, t.arcs)
    prior = model_from_weights(t, vocabulary(20), noisy)
    count = exact(counted_text(t, text, words=20))
    joined, alone = (score(fit_counts(prior, count, Prior(visits=b)), unseen).perplexity for b in (5.0, 1e-6))
    assert joined < score(prior, unseen).perplexity
    assert joined < alone
