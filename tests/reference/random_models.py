"""Random n-gram models and corpora, from one generator."""

import numpy as np

from fedgram.automata.build import count_ngrams, topology_from_ngrams
from fedgram.automata.model import NGramModel, has_unknown, model_from_weights
from fedgram.automata.smoothing import METHODS, smooth
from fedgram.automata.topology import Topology
from fedgram.core.arrays import Ragged
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary


def vocabulary(words: int) -> Vocabulary:
    return Vocabulary.of(f"w{i}" for i in range(words))


def random_topology(rng: np.random.Generator, *, words: int, order: int, ngrams: int) -> Topology:
    rows = []
    for _ in range(ngrams):
        n = int(rng.integers(1, order + 1))
        row = rng.integers(3, words + 3, n).tolist()
        if n > 1 and rng.random() < 0.3:
            row[0] = BOS
        if rng.random() < 0.3:
            row[-1] = EOS
        elif rng.random() < 0.1:
            row[-1] = UNK
        rows.append(row)
    return topology_from_ngrams(Ragged.from_rows(rows), words + 3, open_vocabulary=True).topology


def random_weights(rng: np.random.Generator, topology: Topology, words: int) -> NGramModel:
    """Any probabilities at all: a random share of every state is left to its backoff."""
    weight = np.empty(topology.arcs)
    for q in range(topology.states):
        arcs = slice(topology.first_arc[q], topology.first_arc[q + 1])
        raw = rng.gamma(0.7, size=arcs.stop - arcs.start) + 1e-3
        weight[arcs] = raw / raw.sum() * (1.0 if q == 0 else rng.uniform(0.1, 0.9))
    end = 1 if has_unknown(topology) else 0
    weight[end] += 0.2  # sentences should end
    return model_from_weights(topology, vocabulary(words), weight)


def random_sentences(rng: np.random.Generator, *, words: int, sentences: int, length: int = 6) -> Ragged:
    return Ragged.from_rows(
        [
            np.minimum(rng.geometric(2.0 / (words + 1), rng.integers(1, length + 1)) + 2, words + 2).tolist()
            for _ in range(sentences)
        ]
    )


def random_model(rng: np.random.Generator, *, order: int, words: int = 6) -> NGramModel:
    """Either smoothed from random text, or random weights on a random topology."""
    if rng.random() < 0.5:
        text = random_sentences(rng, words=words, sentences=int(rng.integers(3, 15)))
        return smooth(count_ngrams(text, vocabulary(words), order=order), rng.choice(list(METHODS)))
    return random_weights(rng, random_topology(rng, words=words, order=order, ngrams=12), words)
