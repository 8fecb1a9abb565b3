"""The fit to exact counts against its formula, where the text is walked label by label.

The topology lacks many n-grams of the text, so that histories leave labels to their backoff: C(φ, q) is not 0.
"""

from collections import Counter, defaultdict

import numpy as np
import pytest
from tests.reference.dict_model import DictModel, NGram
from tests.reference.random_models import random_sentences, random_topology, random_weights

from fedgram.automata.build import ngrams_of
from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.distill.refit.count_fit import Prior, fit_counts, stands_out, trusted_counts
from fedgram.text.vocabulary import BOS, EOS

WORDS = 6


def text_and_model(seed: int) -> tuple[list[list[int]], NGramModel]:
    rng = np.random.default_rng(seed)
    text = [row.tolist() for row in random_sentences(rng, words=WORDS, sentences=40)]
    return text, random_weights(rng, random_topology(rng, words=WORDS, order=3, ngrams=16), WORDS)


def walked(text: list[list[int]], model: DictModel) -> tuple[Counter[NGram], Counter[NGram], Counter[NGram]]:
    """S of every n-gram, C(x, q) where a label is read, and C(φ, q) where it is left to the backoff."""
    occurs, read, left = Counter[NGram](), Counter[NGram](), Counter[NGram]()
    for sentence in text:
        history: NGram = (BOS,)
        for x in [*sentence, EOS]:
            q = history
            while q not in model.backoff:
                q = q[1:]
            at = q
            while (*at, x) not in model.p:
                left[at] += 1
                at = at[1:]
            read[(*at, x)] += 1
            for n in range(len(q) + 1):
                occurs[(*q[n:], x)] += (*q[n:], x) in model.p
            history = (*history, x)
    return occurs, read, left


def formula(text: list[list[int]], model: DictModel, prior: Prior) -> dict[NGram, float]:
    occurs, read, left = walked(text, model)
    kinds = Counter[NGram]()
    for ngram in model.p:
        if len(ngram) > 1:
            kinds[ngram[1:]] += min(occurs[ngram], 1)
    c = {ngram: read[ngram] + kinds[ngram] for ngram in model.p}
    kept, taken, total = dict[NGram, float](), defaultdict[NGram, float](float), Counter[NGram]()
    for ngram, count in c.items():
        discount = prior.discounts[min(count, 3) - 1] if count and len(ngram) > 1 else 0.0
        kept[ngram] = max(count - discount, 0.0)
        taken[ngram[:-1]] += count - kept[ngram]
        total[ngram[:-1]] += count
    weight: dict[NGram, float] = {}
    for ngram in sorted(model.p, key=len):
        h, p = ngram[:-1], model.p[ngram]
        below = weight[ngram[1:]] if h else p
        spread = taken[h] * (prior.share * p + (1 - prior.share) * below)
        weight[ngram] = (kept[ngram] + spread + prior.visits * p) / (total[h] + left[h] + prior.visits)
    assert sum(left.values()) > 20
    assert max(c.values()) > 3
    return weight


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prior", [Prior(3.0), Prior(0.5, (0.2, 1.7, 2.9), 0.25), Prior(20.0, (0.0, 0.0, 0.0), 1.0)])
def test_the_fit_is_its_formula_where_histories_back_off(seed: int, prior: Prior) -> None:
    text, model = text_and_model(seed)
    reference = DictModel(model)
    occurs, _, _ = walked(text, reference)
    rows = [tuple(row.tolist()) for row in ngrams_of(model.topology)]
    S = np.array([float(occurs[row]) for row in rows])
    fitted = DictModel(fit_counts(model, trusted_counts(model, S, np.zeros(len(S))), prior))
    expected = formula(text, reference, prior)
    by_history = defaultdict[NGram, float](float)
    for ngram, weight in expected.items():
        by_history[ngram[:-1]] += weight
    for ngram, weight in expected.items():
        assert fitted.p[ngram] == pytest.approx(weight / max(by_history[ngram[:-1]], 1.0), rel=1e-9), ngram


def test_the_defaults_of_the_prior_are_those_that_were_tuned() -> None:
    assert (Prior(3.0).discounts, Prior(3.0).share) == ((0.65, 1.0, 1.3), 0.6)


@pytest.mark.parametrize(
    ("visits", "discounts", "share"),
    [
        (0.0, (0.5, 1.0, 1.5), 0.5), (np.inf, (0.5, 1.0, 1.5), 0.5), (1.0, (0.5, 1.0, 1.5), -0.1),
        (1.0, (0.5, 1.0, 1.5), 1.1), (1.0, (1.1, 1.0, 1.5), 0.5), (1.0, (0.5, 2.1, 1.5), 0.5),
        (1.0, (0.5, 1.0, 3.1), 0.5), (1.0, (-0.1, 1.0, 1.5), 0.5),
    ],
)  # fmt: skip
def test_each_number_of_a_prior_outside_its_range_is_refused(
    visits: float, discounts: tuple[float, float, float], share: float
) -> None:
    with pytest.raises(FedgramError, match="must"):
        Prior(visits, discounts, share)


@pytest.mark.parametrize("fine", [Prior(1e-9, (0.0, 0.0, 0.0), 0.0), Prior(1e9, (1.0, 2.0, 3.0), 1.0)])
def test_the_ends_of_a_priors_ranges_are_allowed(fine: Prior) -> None:
    assert fine.visits > 0


def test_only_counts_far_above_the_noise_stand_out() -> None:
    assert stands_out(np.array([4.4, 4.7, 0.0])).tolist() == [False, True, False]
    many = np.zeros(1_000_000)
    many[0] = 4.7  # among a million, noise alone reaches this
    assert not stands_out(many).any()
    many[0] = 8.0
    assert stands_out(many).sum() == 1
