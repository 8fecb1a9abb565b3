"""Smoothing of counts that do not cover their topology: n-grams and histories without counts, fractions, remainders.

Counts of a text cover their topology. Counts of devices, of samples and of pruned n-grams do not. Expected values are
computed by hand from the definitions.
"""

import numpy as np
import pytest

from fedgram.automata.build import ngrams_of, topology_from_ngrams
from fedgram.automata.model import NGramCounts
from fedgram.automata.smoothing import METHODS, smooth
from fedgram.core.arrays import Ragged
from fedgram.text.vocabulary import Vocabulary

WORDS = Vocabulary.of(["a", "b", "c", "d", "e", "f", "g"])
MANY = {"</s>": 10.0, "a": 9.0, "b": 9.0, "c": 9.0, "d": 9.0, "e": 9.0, "f": 9.0, "g": 9.0}


def smoothed(counts: dict[str, float], method: str) -> dict[str, float]:
    """P of every n-gram, such as "a b", of the topology of these n-grams."""
    rows = [[WORDS.index[word] for word in ngram.split()] for ngram in counts]
    built = topology_from_ngrams(Ragged.from_rows(rows), len(WORDS), open_vocabulary=False)
    count = np.zeros(built.topology.arcs)
    count[built.arc] = list(counts.values())
    model = smooth(NGramCounts(built.topology, WORDS, count), method)
    found = ngrams_of(built.topology)
    return {
        " ".join(WORDS.decode(row.tolist())): float(np.exp(w)) for row, w in zip(found, model.log_weight, strict=True)
    }


@pytest.mark.parametrize("method", ["katz", "witten-bell", "absolute"])
def test_unigrams_have_their_relative_frequency_however_rare(method: str) -> None:
    p = smoothed({"</s>": 4, "a": 1, "b": 2, "c": 3, "d": 1, "e": 1, "f": 2, "g": 5}, method)
    assert [p[word] * 19 for word in ("</s>", "a", "b", "c", "d", "e", "f", "g")] == pytest.approx(
        [4, 1, 2, 3, 1, 1, 2, 5]
    )


def test_witten_bell_counts_only_words_that_occurred_as_types() -> None:
    p = smoothed({**MANY, "a b": 3, "a c": 0}, "witten-bell")  # T(a) = 1
    assert p["a b"] == pytest.approx((3 + 1 * 9 / 73) / 4)
    assert p["a c"] == pytest.approx(1 * 9 / 73 / 4)


@pytest.mark.parametrize("times", [2, 3])
def test_the_fallback_discounts_where_no_ngram_occurs_once(times: int) -> None:
    counts = {**MANY, "a b": float(times), "a c": float(times)}
    p = smoothed(counts, "absolute")
    assert p["a b"] == pytest.approx((times - 0.6) / (2 * times) + 2 * 0.6 / (2 * times) * 9 / 73)
    discount = {2: 1.0, 3: 1.5}[times]
    remainder = {word: 8.0 if word in "bc" else count for word, count in MANY.items()}  # one word precedes b and c
    remainder |= {"b": 9.0 - times + 1, "c": 9.0 - times + 1}
    total = sum(remainder.values())
    lower = (remainder["b"] - 1.5) / total + 8 * 1.5 / total / 8
    p = smoothed(counts, "modified-kneser-ney")
    assert p["a b"] == pytest.approx((times - discount) / (2 * times) + 2 * discount / (2 * times) * lower)


def test_modified_discounts_below_zero_fall_back() -> None:
    """n₁ = n₂ = n₃ = 1 and n₄ = 3: D₃ = 3 − 4·⅓·3 would be −1."""
    counts = {"</s>": 1.0, "a": 2.0, "b": 3.0, "c": 4.0, "d": 4.0, "e": 4.0, "f": 7.0, "g": 7.0}
    p = smoothed(counts, "modified-kneser-ney")
    rest = (0.5 + 1.0 + 6 * 1.5) / 32 / 8
    assert [p["</s>"], p["a"], p["b"], p["f"]] == pytest.approx([n / 32 + rest for n in (0.5, 1.0, 1.5, 5.5)])


def test_kneser_ney_keeps_the_occurrences_that_no_longer_ngram_explains() -> None:
    """Words before b: a (2 of 9 occurrences); the other 7 keep their count. `a c` never occurs, and adds no word."""
    p = smoothed({**MANY, "a b": 2, "a c": 0}, "kneser-ney")
    assert p["b"] == pytest.approx(8 / 72)
    assert p["c"] == pytest.approx(9 / 72)
    assert p["a"] == pytest.approx(9 / 72)


@pytest.mark.parametrize(
    ("counts", "each"),
    [
        ({"</s>": 6, "a": 3, "b": 1, "c": 1}, 2 / 4),  # four words that do not occur share the count of b and c
        ({"</s>": 6, "a": 3, "b": 2, "c": 2, "d": 4, "e": 5, "f": 6}, 2.0),  # one word gets at most the least count
        ({"</s>": 6, "a": 3, "b": 3, "c": 2}, 2 / 4),
    ],
)
def test_words_that_do_not_occur_share_the_count_of_the_rarest(counts: dict[str, float], each: float) -> None:
    p = smoothed({**dict.fromkeys(MANY, 0.0), **counts}, "katz")
    assert p["g"] == pytest.approx(each / (sum(counts.values()) + (8 - len(counts)) * each))


@pytest.mark.parametrize("method", list(METHODS))
def test_a_history_without_counts_has_the_distribution_of_its_backoff(method: str) -> None:
    p = smoothed({**MANY, "a b": 3, "c a": 0, "c b": 0}, method)
    assert p["c a"] == pytest.approx(p["a"], rel=1e-9)
    assert p["c b"] == pytest.approx(p["b"], rel=1e-9)


def test_fractions_are_rounded_when_counts_are_counted() -> None:
    """n₁ = 2 and n₂ = 1, so D = 2 / (2 + 2)."""
    p = smoothed({**MANY, "a b": 0.9, "a c": 0.9, "a d": 1.9}, "absolute")
    assert p["a d"] == pytest.approx((1.9 - 0.5) / 3.7 + 3 * 0.5 / 3.7 * 9 / 73)
