"""Restricting a model to some of its words."""

from collections.abc import Container

import numpy as np

from fedgram.automata.build import ngrams_of, topology_from_ngrams
from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.core.arrays import Ragged
from fedgram.text.vocabulary import UNK, Vocabulary


def keep_words(model: NGramModel, words: Container[str]) -> NGramModel:
    """The model without n-grams that contain other words.

    The remaining n-grams keep their probabilities, and the backoff weights follow. The probability of the dropped
    unigrams goes to `<unk>`; a model without `<unk>` shares it among its unigrams in proportion.
    """
    own = model.vocabulary.words
    vocabulary = Vocabulary.of(word for word in own if word in words)
    new_id = np.array([vocabulary.index.get(word, -1) for word in own], np.int32)
    ngrams = ngrams_of(model.topology)
    kept = np.add.reduceat(new_id[ngrams.values] < 0, ngrams.offsets[:-1]) == 0
    rows = ngrams.take(np.flatnonzero(kept))
    built = topology_from_ngrams(
        Ragged(new_id[rows.values], rows.offsets), len(vocabulary), open_vocabulary=model.has_unknown
    )
    old, weight = np.exp(model.log_weight), np.zeros(built.topology.arcs)
    weight[built.arc] = old[kept]
    unigrams = slice(0, int(model.topology.first_arc[1]))
    if model.has_unknown:
        weight[UNK] += old[unigrams][~kept[unigrams]].sum()
    else:
        weight[: built.topology.first_arc[1]] /= old[unigrams][kept[unigrams]].sum()
    return model_from_weights(built.topology, vocabulary, weight)
