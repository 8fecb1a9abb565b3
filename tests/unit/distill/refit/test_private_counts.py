"""Counts under differential privacy: clipped on the device, noisy at the server, and believed as far as they can be."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.ngram_counting import ngrams
from tests.reference.random_models import random_sentences, random_topology, random_weights, vocabulary
from tests.unit.distill.refit.test_clipped_ngrams import sent
from tests.unit.distill.refit.test_refit import COHORT, KINDS, model_of, population

from fedgram.automata.counting import counts_from_visits, expected_visits, summed_counts
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults
from fedgram.automata.sampling import sample_sentences
from fedgram.automata.scoring import score
from fedgram.core.arrays import FloatArray, Ragged
from fedgram.core.checkpoint import OtherWorkError
from fedgram.core.storage import read_artefact
from fedgram.distill.refit.asked_ngrams import AskedNGrams, NGramCounter
from fedgram.distill.refit.clipped_ngrams import COUNT, ClippedNGrams, Clipping
from fedgram.distill.refit.count_fit import Prior, fit_counts, stands_out, trusted_counts
from fedgram.distill.refit.count_release import ExactCounts, NoisyCounts
from fedgram.distill.refit.device_counts import CountingPlan, Passes, count_on_devices, ngram_hashes
from fedgram.distill.refit.ngram_growth import Growth
from fedgram.distill.refit.occurrences import sentences_of
from fedgram.distill.refit.refit import RefittedModel, refit
from fedgram.federated import devices
from fedgram.federated.devices import SimulatedDevices
from fedgram.privacy.gaussian import gaussian_epsilon, multiplier_for
from fedgram.privacy.ledger import Budget, BudgetError, Ledger, ledger_facts
from fedgram.privacy.noise import SeededRandomness
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import Users, population_from_messages
from fedgram.text.vocabulary import EOS

seeds = st.integers(0, 2**32 - 1)


def test_the_noise_on_every_ngram_is_the_accountants() -> None:
    """The ratio of one user's influence to the noise is μ = 1/σ, over all orders; n-grams nobody has get noise too."""
    rng = np.random.default_rng(3)
    topology = random_topology(rng, words=30, order=4, ngrams=3000)
    asked, clipping, sigma = AskedNGrams.all_of(topology, vocabulary(30)), Clipping(5.0), multiplier_for(2.0, 1e-6)
    assert gaussian_epsilon(sigma, 1e-6) == pytest.approx(2.0, rel=1e-6)
    weight, nobody = clipping.weights_of(asked), {COUNT: np.zeros(asked.size, np.int64)}
    noise = []
    for seed in range(40):
        released = NoisyCounts(clipping, sigma, SeededRandomness(seed)).release(0, asked, nobody)
        assert np.array_equal(released.deviation, sigma * 5.0 / weight)
        noise.append(released.ngrams * weight)  # as the sums are
    assert np.std(noise) == pytest.approx(5.0 * sigma, rel=0.01)
    text = random_sentences(rng, words=30, sentences=400)  # much more than the norm allows
    influence = float(np.linalg.norm(sent(ClippedNGrams(asked, clipping), text)))
    assert influence <= 5.0
    assert influence / np.std(noise) <= 1.01 / sigma
    passes = [NoisyCounts(clipping, sigma, SeededRandomness(0)).release(n, asked, nobody).ngrams for n in (0, 1)]
    assert abs(np.corrcoef(passes[0], passes[1])[0, 1]) < 0.05


def expected(model: NGramModel, sentences: float) -> FloatArray:
    S, _ = summed_counts(counts_from_visits(model, expected_visits(model), sentences))
    return sentences * S


def noisy(rng: np.random.Generator, model: NGramModel, sentences: int, deviation: float) -> FloatArray:
    """What devices would count of a model's samples, with noise; the number of sentences stays."""
    t = model.topology
    counts = np.zeros(t.arcs)
    place, times = NGramCounter(AskedNGrams.all_of(t, model.vocabulary)).occurrences(
        sample_sentences(model, sentences, seed=int(rng.integers(2**31)))
    )
    counts[place] = times
    end = np.searchsorted(t.label[: t.first_arc[1]], EOS)
    counts += np.where(np.arange(t.arcs) == end, 0.0, rng.normal(0.0, deviation, t.arcs))
    return counts


@given(seeds)
def test_counts_drowned_in_noise_leave_the_prior_as_it_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = model_of(rng)
    t = model.topology
    counts = rng.uniform(-3e12, 3e12, t.arcs)
    counts[np.searchsorted(t.label[: t.first_arc[1]], EOS)] = 1000.0
    trusted = trusted_counts(model, counts, np.full(t.arcs, 1e12))
    same = fit_counts(model, trusted, Prior(3.0))
    assert np.allclose(same.log_weight, model.log_weight, atol=1e-9)
    assert model_faults(same) == []


@given(seeds)
def test_exact_counts_are_believed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = model_of(rng)
    counts = rng.poisson(5.0, model.topology.arcs).astype(np.float64)
    trusted = trusted_counts(model, counts, np.zeros(len(counts)))
    assert np.array_equal(trusted.ngrams, counts)
    assert np.all(trusted.trust == 1.0)
    assert trusted.change is None
    almost = trusted_counts(model, counts, np.full(len(counts), 1e-9))
    assert np.allclose(almost.ngrams, counts, atol=1e-6)
    E = max(sentences_of(model.topology, counts), 1.0)
    assert almost.change is not None
    assert np.allclose(almost.change, np.maximum(counts / expected(model, E), 1 / 30), rtol=1e-5)


def divergence(truth: NGramModel, model: NGramModel, text: Ragged) -> float:
    """How much worse a model is than the truth, in nats."""
    return float(score(model, text).nats - score(truth, text).nats)


def test_noise_makes_the_result_worse_but_never_worse_than_the_prior() -> None:
    """On average over models and noises, from noise that is nothing to noise that is everything."""
    levels, results = (0.01, 5.0, 50.0, 500.0, 1e5), []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        topology = random_topology(rng, words=KINDS, order=3, ngrams=40)
        truth, prior = (random_weights(rng, topology, KINDS) for _ in range(2))
        text = sample_sentences(truth, 400, seed=seed)
        start = divergence(truth, prior, text)
        row = []
        for deviation in levels:
            counts = noisy(rng, truth, 3000, deviation)
            fitted = fit_counts(prior, trusted_counts(prior, counts, np.full(topology.arcs, deviation)), Prior(3.0))
            assert model_faults(fitted) == []
            row.append(divergence(truth, fitted, text) / start)
        results.append(row)
    share = np.mean(results, axis=0)  # of the prior's divergence that is left
    assert share[0] < 0.08
    assert np.all(np.diff(share) > 0)
    assert share[-1] == pytest.approx(1.0, abs=1e-3)
    assert np.all(share <= 1.001)


def test_counts_that_devices_scaled_down_are_not_believed_too_much() -> None:
    """A scaled count varies less than one of whole occurrences; what it seems to vary more is noise."""
    shares = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        topology = random_topology(rng, words=KINDS, order=3, ngrams=60)
        truth = random_weights(rng, topology, KINDS)
        text = sample_sentences(truth, 400, seed=seed)
        counts = 0.02 * noisy(rng, truth, 3000, 0.0) + rng.normal(0.0, 3.0, topology.arcs)
        fitted = fit_counts(truth, trusted_counts(truth, counts, np.full(topology.arcs, 3.0)), Prior(3.0))
        assert model_faults(fitted) == []
        shares.append(divergence(truth, fitted, text))  # the prior is the truth: any change is noise
    assert np.mean(shares) < 130.0  # 166 if every count were of whole occurrences


def test_without_enough_devices_noise_hides_what_few_have() -> None:
    """With privacy dp, an n-gram of one device joins the model no more often than one that nobody has."""
    rng = np.random.default_rng(0)
    people, model = population(rng, users=40), model_of(rng)
    release = NoisyCounts(Clipping(3.0), 2.0, SeededRandomness(1))
    counted = count_on_devices(
        model, Passes(SimulatedDevices(people.train), COHORT, seed=1), CountingPlan(release, None, Growth(2, 2, 3))
    )
    names, own = ngrams(counted.topology), set(ngrams(model.topology))
    assert np.all(counted.deviation[[name in own for name in names]] > 0)
    assert sum(name not in own for name in names) <= 2


@pytest.mark.parametrize("protection", ["noise", "threshold"])
def test_no_ngram_is_asked_for_twice(protection: str) -> None:
    """Not even one of which nothing was released: all passes together are one Gaussian event only then."""
    rng = np.random.default_rng(0)
    people, model = population(rng, users=40), model_of(rng)
    noisy, exact = NoisyCounts(Clipping(3.0), 2.0, SeededRandomness(1)), ExactCounts(Clipping(3.0), math.inf, 30, 30)
    asked = []

    class Recorded(Passes):
        def run(self, task: Any, what: str, ngrams_asked: int | None = None) -> Any:
            asked.append([n for n, is_asked in zip(ngrams(task.ngrams.topology), task.ngrams.asked, strict=True)
                          if is_asked])  # fmt: skip
            return super().run(task, what, ngrams_asked)

    passes = Recorded(SimulatedDevices(people.train), COHORT, seed=1)
    count_on_devices(model, passes, CountingPlan(noisy if protection == "noise" else exact, None, Growth(3, 2, 4)))
    assert len(asked) >= 2
    assert max(Counter(ngram for some in asked for ngram in some).values()) == 1


@given(seeds)
def test_an_ngram_has_the_same_hash_on_every_topology(seed: int) -> None:
    rng = np.random.default_rng(seed)
    several = [random_topology(rng, words=KINDS, order=order, ngrams=60) for order in (2, 4)]
    named = [dict(zip(ngrams(t), ngram_hashes(t).tolist(), strict=True)) for t in several]
    assert all(named[0][ngram] == named[1][ngram] for ngram in named[0].keys() & named[1].keys())
    everything = named[0] | named[1]
    assert len(set(everything.values())) == len(everything)


def few_users() -> Users:
    return population_from_messages([(f"u{i}", "w1 w2 w3 w1", "train") for i in range(20)]).train


def private(model: NGramModel, privacy: PrivacyOptions, **more: Any) -> RefittedModel:
    return refit(model, few_users(), privacy=privacy, devices_per_round=10, dropout=0.0, **more)


def test_the_simulated_population_divides_the_noise() -> None:
    model, deviations = model_of(np.random.default_rng(1)), []
    for simulated in (None, 20_000):
        ledger = Ledger()
        privacy = PrivacyOptions("dp", simulated=simulated, noise_seed=2)
        result = private(model, privacy, norm=3.0, ledger=ledger)
        deviations.append(result.counted.deviation[0])
        facts = ledger_facts(ledger, privacy.delta)
        assert facts["epsilon"] == pytest.approx(privacy.epsilon, rel=1e-6)
        assert facts["simulated"] == (simulated is not None)
        if simulated:
            assert facts["real_epsilon"] is None or facts["real_epsilon"] > 1000
    assert deviations[0] / deviations[1] == pytest.approx(1000.0)


def test_without_a_seed_the_noise_is_new_every_time() -> None:
    model = model_of(np.random.default_rng(1))
    first, second = (private(model, PrivacyOptions("dp")).counted.ngrams[:5].tolist() for _ in range(2))
    assert first != second


def test_a_refit_beyond_the_budget_does_not_begin() -> None:
    model, ledger = model_of(np.random.default_rng(1)), Ledger(budget=Budget(4.0, 1e-8))
    private(model, PrivacyOptions("dp", epsilon=3.42, delta=1e-8), ledger=ledger)
    asked: list[str] = []

    def begin(what: str, *_: object, **__: object) -> Any:
        asked.append(what)
        return lambda *_: None

    with pytest.raises(BudgetError, match="would exceed the privacy budget"):
        private(model, PrivacyOptions("dp", epsilon=3.42, delta=1e-8), ledger=ledger, begin=begin)
    assert not any("Devices" in what for what in asked)
    assert len(ledger.entries) == 1


def test_an_interrupted_refit_draws_no_noise_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two noisy releases of the same sums would have less privacy than the ledger says."""
    monkeypatch.setattr(devices, "_CHECKPOINT_PAUSE", 0.0)
    model, ledger, steps = model_of(np.random.default_rng(1)), Ledger(), list[str]()

    def interrupted(what: str, *_: object, **__: object) -> Any:
        steps.append(what)
        if len([step for step in steps if "Devices" in step]) == 2:
            raise KeyboardInterrupt
        return lambda *_: None

    with pytest.raises(KeyboardInterrupt):
        private(model, PrivacyOptions("dp"), ledger=ledger, folder=tmp_path, begin=interrupted)
    first = read_checkpoint_arrays(tmp_path / "released-0")
    assert not (tmp_path / "pass-0").exists()  # the sums without noise
    result = private(model, PrivacyOptions("dp"), ledger=ledger, folder=tmp_path)
    assert [counted["reports"] for counted in result.counted.passes] == [20] * len(result.counted.passes)
    assert not list(tmp_path.glob("pass-*"))
    names, own = ngrams(result.counted.topology), ngrams(model.topology)
    found = dict(zip(names, result.counted.ngrams.tolist(), strict=True))
    assert [found[name] for name in own] == first["ngrams"].tolist()
    assert [entry.spent for entry in ledger.entries] == [1]
    with pytest.raises(OtherWorkError, match="privacy"):
        private(model, PrivacyOptions("dp", epsilon=1.0), ledger=ledger, folder=tmp_path)


def read_checkpoint_arrays(path: Path) -> dict[str, FloatArray]:
    return dict(read_artefact(path, kind="checkpoint", version=1).arrays)


def test_few_values_stand_out_by_chance() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=2_000_000)
    assert not stands_out(noise).any()
    assert not stands_out(np.append(noise, 4.6)).any()  # two in a million noises are larger
    assert np.flatnonzero(stands_out(np.append(noise, 6.5))).tolist() == [len(noise)]
    many = np.append(noise, rng.normal(10.0, 1.0, 5000))
    found = np.flatnonzero(stands_out(many))
    assert len(found) >= 5000
    assert np.count_nonzero(found < len(noise)) <= 50
