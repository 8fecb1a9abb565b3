"""An n-gram model as dictionaries of tuples: the readable twin of the automata's kernels."""

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.build import ngrams_of
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import state_histories
from fedgram.text.vocabulary import BOS, EOS

NGram = tuple[int, ...]


class DictModel:
    def __init__(self, model: NGramModel) -> None:
        self.words = len(model.vocabulary)
        rows = ngrams_of(model.topology)
        self.p: dict[NGram, float] = {
            tuple(row.tolist()): float(np.exp(w)) for row, w in zip(rows, model.log_weight, strict=True)
        }
        histories, lengths = state_histories(model.topology)
        self.backoff: dict[NGram, float] = {
            tuple(h[:n].tolist()): float(np.exp(b))
            for h, n, b in zip(histories, lengths, model.log_backoff, strict=True)
        }

    def prob(self, history: NGram, x: int) -> float:
        """p(x|h): the n-gram's own weight, else the history's backoff weight times p(x|h without its first word)."""
        if (*history, x) in self.p:
            return self.p[(*history, x)]
        if not history:
            return 0.0
        return self.backoff.get(history, 1.0) * self.prob(history[1:], x)

    def log_prob(self, sentence: list[int]) -> float:
        history: NGram = (BOS,)
        total = 0.0
        for x in [*sentence, EOS]:
            total += float(np.log(self.prob(history, x)))
            history = (*history, x)
        return total

    def distribution(self, history: NGram) -> NDArray[np.float64]:
        return np.array([self.prob(history, x) if x != BOS else 0.0 for x in range(self.words)])


def expected_visits(model: NGramModel) -> dict[NGram, float]:
    """Visits of each state in a sentence, from a dense linear system."""
    reference = DictModel(model)
    states = list(reference.backoff)
    number = {h: i for i, h in enumerate(states)}
    P = np.zeros((len(states), len(states)))
    for h, i in number.items():
        for x, p in enumerate(reference.distribution(h)):
            if p and x != EOS:
                longer = (*h, x)
                while longer not in number:
                    longer = longer[1:]
                P[i, number[longer]] += p
    start = np.zeros(len(states))
    start[number[(BOS,)]] = 1.0
    return dict(zip(states, np.linalg.solve(np.eye(len(states)) - P.T, start).tolist(), strict=True))


def visit_counts(
    source: NGramModel, target: NGramModel
) -> tuple[dict[NGram, float], dict[NGram, float], dict[NGram, float]]:
    """C(x, q), C(φ, q), N(q) of the source on the target's topology, summed over the source's visits one by one.

    The source must have every state of the target, so that its state tells the target's.
    """
    visits, p_source, topology = expected_visits(source), DictModel(source), DictModel(target)
    C, C_phi, N = (
        dict.fromkeys(topology.p, 0.0),
        dict.fromkeys(topology.backoff, 0.0),
        dict.fromkeys(topology.backoff, 0.0),
    )
    for history, count in visits.items():
        q = history
        while q not in topology.backoff:
            q = q[1:]
        N[q] += count
        for x, p in enumerate(p_source.distribution(history)):
            if x == BOS or not p:
                continue
            at = q
            while (*at, x) not in topology.p:
                C_phi[at] += count * p
                at = at[1:]
            C[(*at, x)] += count * p
    return C, C_phi, N
