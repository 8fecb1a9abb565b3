"""A topology that the source itself infers: the n-grams of its samples, pruned to a budget.

Samples are drawn, capitalised where the result is to be cased, and counted; the smoothed model of the counts is pruned
by relative entropy. Only its n-grams are kept. The counts themselves favour the n-grams that were kept because they
came up often, so SampleApprox takes fresh samples. Paper: §7.2, self-inference.
"""

from dataclasses import dataclass

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.training import TrainingOptions, train
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream_key
from fedgram.distill.casing import Casing
from fedgram.distill.source import SourceModel
from fedgram.text.corpus import Corpus

_BATCH = 8192


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How to infer: from how many samples, and what to keep.

    N-grams of two and more words that came up less than `min_count` times are left out, as are longer n-grams with
    words outside the `higher_order_words` most frequent.
    """

    samples: int = 1_000_000
    order: int = 4
    max_ngrams: int = 1_500_000
    higher_order_words: int = 64_000
    min_count: int = 2
    smoothing: str = "katz"


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
    own_seed = int(stream_key(seed, "topology"))  # counting draws other samples
    parts = []
    for first in range(0, options.samples, _BATCH):
        batch = range(first, min(first + _BATCH, options.samples))
        sentences = source.sample(batch, seed=own_seed)
        parts.append(casing.capitalize(sentences) if casing else sentences)
    sentences = Ragged.concatenate(parts)
    if not np.any(sentences.values):
        raise FedgramError("the source's samples hold no words, so that no topology can be inferred from them")
    training = TrainingOptions(
        order=options.order, smoothing=options.smoothing, higher_order_words=options.higher_order_words,
        min_count=(1, options.min_count), max_ngrams=options.max_ngrams, open_vocabulary=source.has_unknown,
    )  # fmt: skip
    return train(Corpus(sentences, vocabulary), training)
