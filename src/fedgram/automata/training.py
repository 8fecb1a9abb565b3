"""From a corpus to a model: count, smooth, drop what is rare, prune to a budget."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fedgram.automata.build import count_ngrams
from fedgram.automata.model import NGramCounts, NGramModel
from fedgram.automata.prune import keep_ngrams, prune_to_size
from fedgram.automata.smoothing import smooth
from fedgram.automata.topology import arc_sources, ngram_matrix, state_lengths
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.arrays import BoolArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.progress import Begin, silent
from fedgram.core.settings import AtLeastOne, Between, Settings, chosen, setting
from fedgram.text.corpus import Corpus, corpus_of, read_corpus
from fedgram.text.vocabulary import SPECIAL, UNK, Vocabulary, read_vocabulary

Smoothing = Literal["katz", "witten-bell", "absolute", "kneser-ney", "modified-kneser-ney"]


@dataclass(frozen=True, slots=True)
class NGramOptions(Settings):
    """How to train an n-gram model on text.

    Rare n-grams are dropped after smoothing, so that their probability goes to the backoff. Unigrams stay, and so does
    every n-gram that a longer one needs.
    """

    order: Annotated[int, Between(1, MAX_ORDER)] = setting(3, "Length of the longest n-gram.")
    smoothing: Smoothing = setting("modified-kneser-ney", "Smoothing method.")
    higher_order_words: AtLeastOne = setting(
        64_000, "Only this many of the most frequent words are used in n-grams of two and more words."
    )
    min_count: Annotated[tuple[int, ...], Between(1)] = setting(
        (1,), "Drop rarer n-grams: one number per order, such as 1,1,2; the last one counts for all longer n-grams."
    )
    open_vocabulary: bool | None = setting(None, "Whether <unk> gets a probability; by default, if the text has it.")

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if any(b < a for a, b in pairwise(self.min_count)):
            shown = ",".join(map(str, self.min_count))
            raise InvariantError(f"min_count must not fall with the order, as in {shown}: longer n-grams are rarer")
        if len(self.min_count) > self.order:
            raise InvariantError(f"min_count names {len(self.min_count)} orders, but the model has {self.order}")


def train(
    corpus: Corpus, options: NGramOptions | None = None, *, max_ngrams: int | None = None, begin: Begin = silent,
    **settings: Any,
) -> NGramModel:  # fmt: skip
    """The model of a corpus, pruned to `max_ngrams`. The fields of the options may be given as keywords instead."""
    options = chosen(NGramOptions, options, settings)
    if not corpus.words:
        raise FedgramError("the text has no words; give at least one sentence")
    if not np.any(corpus.sentences.values != UNK):
        raise FedgramError("the vocabulary covers no word of the corpus; check that both are of one language and case")
    begin("Counting n-grams")
    counts = count_ngrams(
        corpus.sentences, corpus.vocabulary, order=options.order, open_vocabulary=options.open_vocabulary
    )
    return train_on_counts(counts, options, max_ngrams=max_ngrams, begin=begin)


def train_on_counts(
    counts: NGramCounts, options: NGramOptions, *, max_ngrams: int | None = None, begin: Begin = silent
) -> NGramModel:
    """The model of counts, whose order and vocabulary are those of the result."""
    begin("Smoothing")
    model = smooth(counts, options.smoothing)
    keep = _wanted(counts, options)
    if not keep.all():
        begin("Dropping rare n-grams")
        model = keep_ngrams(model, keep)
    if max_ngrams is not None:
        begin("Pruning")
        model = prune_to_size(model, max_ngrams)
    return model


def train_on(
    text: str | Path | Iterable[str], *, vocab: str | Path | Iterable[str] | None = None,
    max_ngrams: int | None = None, **settings: Any,
) -> NGramModel:  # fmt: skip
    """The model of a text: a file with one sentence per line, or sentences. See `NGramModel.train`."""
    words = None
    if vocab is not None:
        words = read_vocabulary(vocab) if isinstance(vocab, str | Path) else Vocabulary.of(vocab)
        settings.setdefault("open_vocabulary", True)
    if not isinstance(text, str | Path):
        return train(corpus_of(text, words, skip_blank=True), max_ngrams=max_ngrams, **settings)
    return train(read_corpus([text], words), max_ngrams=max_ngrams, **settings)


def _wanted(counts: NGramCounts, options: NGramOptions) -> BoolArray:
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
