"""From a corpus to a model: count, smooth, drop what is rare, prune to a budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.automata.build import count_ngrams
from fedgram.automata.model import NGramCounts, NGramModel
from fedgram.automata.prune import keep_ngrams, prune_to_size
from fedgram.automata.smoothing import smooth
from fedgram.automata.topology import arc_sources, ngram_matrix, state_lengths
from fedgram.core.arrays import BoolArray
from fedgram.core.errors import FedgramError
from fedgram.text.corpus import Corpus
from fedgram.text.vocabulary import SPECIAL, UNK


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How to train.

    `higher_order_words`: only this many of the most frequent words take part in n-grams longer than one (paper: 64K);
    `min_count`: n-grams of order 1, 2, … that occur less often are dropped after smoothing, so that their probability
    goes to the backoff (the last number holds for all longer ones; unigrams, and what a longer one needs, stay);
    `max_ngrams`: the
    budget; `open_vocabulary`: whether `<unk>` gets a probability; by default if the text holds it.
    """

    order: int = 3
    smoothing: str = "katz"
    higher_order_words: int = 64_000
    min_count: Sequence[int] = (1,)
    max_ngrams: int | None = None
    open_vocabulary: bool | None = None


def train(corpus: Corpus, options: TrainingOptions, on_step: Callable[[str], object] = lambda _: None) -> NGramModel:
    """The model of a corpus. `on_step` is told what comes next."""
    if not np.any(corpus.sentences.values != UNK):
        raise FedgramError("the vocabulary covers no word of the corpus; check that both are of one language and case")
    on_step("Counting n-grams")
    counts = count_ngrams(
        corpus.sentences, corpus.vocabulary, order=options.order, open_vocabulary=options.open_vocabulary
    )
    on_step("Smoothing")
    model = smooth(counts, options.smoothing)
    keep = _wanted(counts, options)
    if not keep.all():
        on_step("Dropping rare n-grams")
        model = keep_ngrams(model, keep)
    if options.max_ngrams is not None:
        on_step("Pruning")
        model = prune_to_size(model, options.max_ngrams)
    return model


def _wanted(counts: NGramCounts, options: TrainingOptions) -> BoolArray:
    t = counts.topology
    keep = np.ones(t.arcs, bool)
    order = state_lengths(t)[arc_sources(t)] + 1
    if any(least > 1 for least in options.min_count):
        least = np.array([1, 1, *options.min_count[1:]] + [options.min_count[-1]] * options.order)
        keep &= (order == 1) | (counts.count >= least[order])
    if len(counts.vocabulary) - len(SPECIAL) > options.higher_order_words:
        frequency = np.full(len(counts.vocabulary), np.inf)
        frequency[t.label[: t.first_arc[1]]] = counts.count[: t.first_arc[1]]
        frequency[: len(SPECIAL)] = np.inf
        ranked = np.argsort(-frequency, kind="stable")
        common = np.zeros(len(frequency) + 1, bool)
        common[ranked[: options.higher_order_words + len(SPECIAL)]] = True
        common[-1] = True  # the padding of the matrix
        keep &= (order == 1) | common[ngram_matrix(t)[0]].all(axis=1)
    return keep
