"""The fit to noisy counts against its formulas, n-gram by n-gram: what is expected, believed and joined."""

import numpy as np
import pytest
from tests.reference.dict_model import DictModel, NGram
from tests.reference.random_models import random_topology, random_weights

from fedgram.automata.build import ngrams_of
from fedgram.automata.counting import counts_from_visits, expected_visits, summed_counts
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import backoff_arcs
from fedgram.core.arrays import FloatArray
from fedgram.distill.refit import count_fit
from fedgram.distill.refit.count_fit import Prior, fit_counts, stands_out, trusted_counts
from fedgram.distill.refit.occurrences import consistent

WORDS = 8
SEEDS = range(4)


def rows_of(model: NGramModel) -> list[NGram]:
    return [tuple(row.tolist()) for row in ngrams_of(model.topology)]


def expected_per_sentence(model: NGramModel) -> FloatArray:
    counts, _ = summed_counts(counts_from_visits(model, expected_visits(model, tolerance=1e-11), 1.0))
    return counts


def noisy_case(seed: int) -> tuple[NGramModel, FloatArray, FloatArray]:
    """A model, noisy counts of text that other models write, and their noise; two counts stand out."""
    rng = np.random.default_rng(seed)
    topology = random_topology(rng, words=WORDS, order=3, ngrams=40)
    model, other = (random_weights(rng, topology, WORDS) for _ in range(2))
    deviation = np.full(topology.arcs, 30.0)
    counts = 3000.0 * expected_per_sentence(other) + deviation * rng.standard_normal(topology.arcs)
    several = [i for i, row in enumerate(rows_of(model)) if len(row) > 1]
    counts[rng.choice(several, 2, replace=False)] += 5000.0
    return model, counts, deviation


def believed(model: NGramModel, noisy: FloatArray, s: FloatArray) -> tuple[dict[NGram, float], ...]:
    """S, the trust and r of every n-gram, by the formulas in the docstring of `trusted_counts`."""
    rows = rows_of(model)
    per_sentence = expected_per_sentence(model)
    sentences = count_fit._sentences(model.topology, noisy, s, per_sentence)
    assert sentences > 1.0
    E, S, trust, r = {}, {}, {}, dict[NGram, float]()
    for n in sorted({len(row) for row in rows}):
        of_length = [i for i, row in enumerate(rows) if len(row) == n]
        likely = []
        for i in of_length:
            h, shorter = rows[i][:-1], rows[i][1:]
            E[rows[i]] = sentences * per_sentence[i]
            known = r.get(shorter, 1.0) / r.get(shorter[:-1], 1.0) if shorter else 1.0
            likely.append(E[rows[i]] * r.get(h, 1.0) * known**0.5)
        expected, found, deviation = np.array(likely), noisy[of_length], s[of_length]
        variance = count_fit._spread(found, expected, deviation)
        certain = stands_out((found - expected) / deviation)
        for k, i in enumerate(of_length):
            trust[rows[i]] = 1.0 if certain[k] else variance[k] / (variance[k] + deviation[k] ** 2)
            S[rows[i]] = max(expected[k] + trust[rows[i]] * (found[k] - expected[k]), 0.0)
            r[rows[i]] = min(max(S[rows[i]] / E[rows[i]], 1 / 30.0), 30.0)
    return S, trust, r


@pytest.mark.parametrize("seed", SEEDS)
def test_noisy_counts_are_believed_by_the_formula(seed: int) -> None:
    model, noisy, s = noisy_case(seed)
    S, trust, r = believed(model, noisy, s)
    found, rows = trusted_counts(model, noisy, s), rows_of(model)
    assert 1.0 in trust.values()
    assert min(trust.values()) < 0.9
    assert max(r.values()) > 1.5
    assert found.ngrams == pytest.approx([S[row] for row in rows], rel=1e-6, abs=1e-9)
    assert found.trust == pytest.approx([trust[row] for row in rows], rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_count_that_stands_out_is_taken_as_it_is(seed: int) -> None:
    model, noisy, s = noisy_case(seed)
    far = int(np.argmax(noisy - 3000.0 * expected_per_sentence(model)))
    assert trusted_counts(model, noisy, s).ngrams[far] == pytest.approx(noisy[far])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_not_believed_follows_the_corrected_prior(seed: int) -> None:
    """G·w + (1 − G)·p̃, where p̃ is the prior times r, scaled with what it leaves to its backoff."""
    model, noisy, s = noisy_case(seed)
    counts, prior, rows = trusted_counts(model, noisy, s), Prior(30.0), rows_of(model)
    assert counts.change is not None
    p = np.exp(model.log_weight)
    weight = count_fit._estimate(model.topology, counts.ngrams, counts.trust, p, prior)
    fitted, place = DictModel(fit_counts(model, counts, prior)), {row: i for i, row in enumerate(rows)}
    assert any(row[:-1] and p[i] < 0.9 for row, i in place.items())
    joined: dict[NGram, float] = {}
    for history in {row[:-1] for row in rows}:
        arcs = [i for row, i in place.items() if row[:-1] == history]
        given = sum(p[i] for i in arcs)
        change = counts.change[place[history]] if history in place else 1.0
        total = sum(p[i] * counts.change[i] for i in arcs) + max(1.0 - given, 0.0) * change
        G = sum(p[i] * counts.trust[i] for i in arcs) / given
        new = {i: G * weight[i] + (1.0 - G) * p[i] * counts.change[i] / total for i in arcs}
        for i, value in new.items():
            joined[rows[i]] = value / max(sum(new.values()), 1.0)
    assert {row: fitted.p[row] for row in rows} == pytest.approx(joined, rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_shorter_ngrams_are_raised_to_what_longer_ones_demand(seed: int) -> None:
    model, noisy, _ = noisy_case(seed)
    below, given = backoff_arcs(model.topology), np.maximum(noisy, 0.0)
    found = consistent(model.topology, given).ngrams
    demanded = np.zeros(len(found))
    np.add.at(demanded, below[below >= 0], found[below >= 0])
    assert found == pytest.approx(np.maximum(given, demanded))
    assert (found > given).any()
