"""Longer n-grams that counts make likely."""

import numpy as np
from hypothesis import given
from tests.reference.ngram_counting import ngrams
from tests.reference.random_models import random_sentences, vocabulary
from tests.unit.distill.refit.test_refit import KINDS, counted_text, seeds

from fedgram.automata.build import count_ngrams
from fedgram.automata.properties import topology_faults
from fedgram.distill.refit.ngram_growth import Growth, propose
from fedgram.text.vocabulary import BOS, EOS


@given(seeds)
def test_what_is_proposed_has_parts_that_are_known(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = random_sentences(rng, words=KINDS, sentences=20)
    bigrams = count_ngrams(text, vocabulary(KINDS), order=2, open_vocabulary=True).topology
    count = counted_text(bigrams, text)
    known = (count >= 2) & (rng.random(len(count)) < 0.8)
    growth = Growth(passes=1, shortest=3, order=3, expected=0.5)
    grown = propose(bigrams, count, known, KINDS + 3, growth)
    assert topology_faults(grown.topology, words=KINDS + 3) == []
    S = dict(zip(ngrams(bigrams), count.tolist(), strict=True))
    parts = {name for name, is_known in zip(ngrams(bigrams), known.tolist(), strict=True) if is_known}
    after = {w: sum(n for pair, n in S.items() if len(pair) == 2 and pair[0] == w) for w in range(KINDS + 3)}
    expected = {
        (*h, pair[1])
        for h in S for pair in S
        if len(h) == len(pair) == 2 and h[1] == pair[0]
        and {h, pair} <= parts and S[h] * S[pair] >= 0.5 * after[h[1]]
    }  # fmt: skip
    assert {name for name in ngrams(grown.topology) if len(name) == 3} == expected
    own = [ngrams(grown.topology)[arc] for arc in grown.arc[: bigrams.arcs]]
    assert own == ngrams(bigrams)
    few = propose(bigrams, count, known, KINDS + 3, Growth(passes=1, shortest=3, order=3, expected=1e-6, most=3))
    assert sum(len(name) == 3 for name in ngrams(few.topology)) <= 3


@given(seeds)
def test_pairs_grow_from_words_and_from_the_start_of_a_sentence(seed: int) -> None:
    """`<s>` is no n-gram that anybody counts, but words follow it: as often as there are sentences."""
    rng = np.random.default_rng(seed)
    text = random_sentences(rng, words=KINDS, sentences=20)
    words = count_ngrams(text, vocabulary(KINDS), order=1, open_vocabulary=True).topology
    count = counted_text(words, text)
    known = count > 0
    grown = propose(words, count, known, KINDS + 3, Growth(passes=1, shortest=2, order=2, expected=0.5))
    S = {name[0]: n for name, n in zip(ngrams(words), count.tolist(), strict=True)}
    times = {word: n for word, n in S.items() if n and word != EOS} | {BOS: len(text)}
    total = sum(S.values())
    expected = {(h, x) for h in times for x in S if S[x] and times[h] * S[x] >= 0.5 * total}
    assert {name for name in ngrams(grown.topology) if len(name) == 2} == expected
    assert any(h == BOS for h, _ in expected)
