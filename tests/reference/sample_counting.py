"""Counting by the definition: every visit of every sample and every label, one after the other."""

from collections import defaultdict

import numpy as np
from tests.reference.composition import read_by

from fedgram.automata.counting import TopologyCounts
from fedgram.automata.topology import Topology
from fedgram.distill.source import SourceModel
from fedgram.text.vocabulary import BOS


def count_visits(source: SourceModel, topology: Topology, samples: range, seed: int) -> TopologyCounts:
    """C(x, q), C(φ, q), N(q) as the paper defines them."""
    t = topology
    read = [read_by(t, q) for q in range(t.states)]
    C: dict[tuple[int, int], float] = defaultdict(float)
    leaving, visits = np.zeros(t.states), np.zeros(t.states)
    states = dict.fromkeys(range(len(samples)), t.start)
    for step in source.walk(samples, seed=seed):
        for sample, row, word in zip(step.sample.tolist(), step.row.tolist(), step.word.tolist(), strict=True):
            visits[states[sample]] += 1
            for x, p in enumerate(step.p[row].tolist()):
                at = states[sample]
                while x != BOS and x not in read[at]:
                    leaving[at] += p
                    at = int(t.backoff[at])
                if x != BOS:
                    C[at, x] += p
            at = states[sample]
            while word not in read[at]:
                at = int(t.backoff[at])
            states[sample] = read[at][word]
    arc = [C[q, int(t.label[e])] for q in range(t.states) for e in range(t.first_arc[q], t.first_arc[q + 1])]
    return TopologyCounts(t, np.array(arc), leaving, visits, len(samples))
