"""A cased model in lower case: the uncased model with the least KL divergence from the cased one, ignoring case.

The expected count of each n-gram of the cased model is known exactly. First, the model is expressed on a topology in
which a state that reads a word in one casing reads it in all casings, so that no casing of the word is left to the
backoff. Then the counts of all casings of an n-gram add up to the count of the n-gram in lower case. The result is the
KL minimum of these counts. A history that is not a state of the cased model counts as its longest suffix that is one.
"""

import numpy as np

from fedgram.automata.build import ngrams_of, relabel, topology_from_ngrams
from fedgram.automata.counting import (
    counts_from_arcs,
    counts_from_visits,
    expected_visits,
    express_on,
    summed_counts,
)
from fedgram.automata.kl_minimize import minimize_kl
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.topology import Topology, backoff_arcs, entering_arcs
from fedgram.core.arrays import IntArray, Ragged, sum_by
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import Vocabulary


def lowercase_model(model: NGramModel) -> NGramModel:
    """The model in lower case, on the lower-case topology."""
    lower_words = [uncase(word) for word in model.vocabulary.words]
    words = Vocabulary.of(lower_words)
    new_id = np.array([words.index[word] for word in lower_words], np.int32)
    full = express_on(renormalize(model), _in_all_casings(model, new_id))
    t, built = full.topology, relabel(full.topology, new_id, len(words))
    S, T = summed_counts(counts_from_visits(full, expected_visits(full), 1.0))
    lower = built.topology
    entering, state = entering_arcs(t), np.zeros(t.states, np.int32)
    entered = np.flatnonzero(entering >= 0)
    state[entered] = lower.dest[built.arc[entering[entered]]]
    state[t.start] = lower.start
    occurs, visited = sum_by(built.arc, S, lower.arcs), sum_by(state, T, lower.states)
    below = backoff_arcs(lower)
    own = occurs - sum_by(below[below >= 0], occurs[below >= 0], lower.arcs)
    visits = visited - sum_by(lower.backoff[1:], visited[1:], lower.states)
    counts = counts_from_arcs(lower, np.maximum(own, 0.0), np.maximum(visits, 0.0), 1.0)
    return minimize_kl(counts, words)


def _in_all_casings(model: NGramModel, new_id: IntArray) -> Topology:
    """The topology in which every state reads all casings of its words; `new_id` is a word's id in lower case."""
    ngrams = ngrams_of(model.topology)
    order = np.argsort(new_id, kind="stable").astype(np.int32)
    sizes = np.bincount(new_id)
    first = np.cumsum(sizes) - sizes
    last = new_id[ngrams.values[ngrams.offsets[1:] - 1]]
    rows = [ngrams]
    for k in range(int(sizes.max())):
        several = sizes[last] > max(k, 1)
        more = ngrams.select(several)
        values = more.values.copy()
        values[more.offsets[1:] - 1] = order[first[last[several]] + k]
        rows.append(Ragged(values, more.offsets))
    together = Ragged.concatenate(rows)
    return topology_from_ngrams(together, len(model.vocabulary), open_vocabulary=model.has_unknown).topology
