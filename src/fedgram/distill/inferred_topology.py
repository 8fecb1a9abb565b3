"""A topology that the source itself infers: the n-grams of its samples, pruned to a budget.

Samples are drawn, capitalised where the result is to be cased, and counted; the smoothed model of the counts is pruned
by relative entropy. Only its n-grams are kept. The counts themselves favour the n-grams that were kept because they
came up often, so SampleApprox takes fresh samples. Paper: §7.2, self-inference.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.prune import keep_ngrams, prune_to_size
from fedgram.automata.topology import ngram_matrix
from fedgram.automata.training import train
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream_key
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import Casing, casing_of
from fedgram.distill.sample_approx import ALONE, Ranks
from fedgram.distill.source import SourceModel
from fedgram.distill.spelling import read_words
from fedgram.text.corpus import Corpus
from fedgram.text.vocabulary import UNK
from fedgram.text.wordpieces import WordPieces

_BATCH = 8192


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How to infer: from how many samples, and what to keep.

    N-grams of two and more words that came up less than `min_count` times are left out. `workers` threads and `ranks`
    processes share the sampling. Smoothing is Katz's; everything else has the defaults of `NGramOptions`.
    """

    samples: int
    order: int
    max_ngrams: int
    min_count: int = 2
    workers: int = 1
    ranks: Ranks = ALONE


def infer_model(
    source: SourceModel, options: InferenceOptions, *, seed: int, casing: Casing | None = None
) -> NGramModel:
    """The pruned n-gram model of the source's samples, over its vocabulary or the casing's; its topology is meant."""
    vocabulary = casing.vocabulary if casing else source.vocabulary
    if options.max_ngrams < len(vocabulary):
        raise FedgramError(
            f"a budget of {options.max_ngrams} n-grams does not hold the {len(vocabulary)} words of the source; "
            "allow more n-grams"
        )
    sentences = _sampled(source, options, seed)
    sentences = casing.capitalize(sentences, workers=options.workers) if casing else sentences
    model = _train(Corpus(sentences, vocabulary), options, open_vocabulary=source.has_unknown)
    return prune_to_size(model, options.max_ngrams)


def infer_word_model(
    source: SourceModel,
    pieces: WordPieces | None,
    options: InferenceOptions,
    *,
    seed: int,
    capitalizer: Capitalizer | None = None,
) -> NGramModel:
    """The pruned n-gram model of the words that samples of a source of word pieces spell, with capitals if asked for.

    Words that came up fewer than `min_count` times are `<unk>`, which is in no n-gram of two and more words. Words take
    up at most half of the budget. `pieces` are those of the source, None for one that knows how words are spelled.
    """
    labels = _sampled(source, options, seed)
    corpus = read_words(source, pieces, labels, min_count=options.min_count, max_words=options.max_ngrams // 2)
    if capitalizer:
        casing = casing_of(capitalizer, corpus.vocabulary)
        corpus = Corpus(casing.capitalize(corpus.sentences, workers=options.workers), casing.vocabulary)
    model = _train(corpus, options, open_vocabulary=True)
    ngrams, lengths = ngram_matrix(model.topology)
    known = keep_ngrams(model, (lengths == 1) | np.all(ngrams != UNK, axis=1))
    return prune_to_size(known, options.max_ngrams)


def _train(corpus: Corpus, options: InferenceOptions, *, open_vocabulary: bool) -> NGramModel:
    """The model of samples, before it is pruned."""
    if not np.any(corpus.sentences.values):
        raise FedgramError("the source's samples hold no words, so that no topology can be inferred from them")
    min_count = (1, options.min_count)[: options.order]
    return train(corpus, order=options.order, smoothing="katz", min_count=min_count, open_vocabulary=open_vocabulary)


def _sampled(source: SourceModel, options: InferenceOptions, seed: int) -> Ragged:
    """All samples, on every rank; each draws some of the batches. They are other samples than those of counting."""
    seed = int(stream_key(seed, "topology"))
    size, ranks = getattr(source, "batch", _BATCH), options.ranks
    batches = [range(a, min(a + size, options.samples)) for a in range(0, options.samples, size)]
    with ThreadPoolExecutor(min(options.workers, getattr(source, "most_threads", options.workers))) as pool:
        drawn = list(pool.map(lambda batch: source.sample(batch, seed=seed), batches[ranks.rank :: ranks.size]))
    if ranks.size == 1:
        return Ragged.concatenate(drawn)
    lengths = np.zeros(options.samples, np.int64)
    for batch, part in zip(batches[ranks.rank :: ranks.size], drawn, strict=True):
        lengths[batch.start : batch.stop] = np.diff(part.offsets)
    (lengths,) = ranks.sum([lengths])
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    values = np.zeros(int(offsets[-1]), np.int64)
    for batch, part in zip(batches[ranks.rank :: ranks.size], drawn, strict=True):
        values[offsets[batch.start] : offsets[batch.stop]] = part.values
    (values,) = ranks.sum([values])
    return Ragged(values.astype(np.int32), offsets)
