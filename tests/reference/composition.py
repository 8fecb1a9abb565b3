"""M ∘ A spelled out: pairs explored one by one with the paper's rules, and counts added visit by visit."""

from collections import defaultdict

import numpy as np

from fedgram.automata.counting import expected_visits
from fedgram.automata.lexicon import Lexicon, lexicon_from_codes
from fedgram.automata.model import NGramModel
from fedgram.automata.topology import Topology
from fedgram.core.arrays import Ragged
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary

State = tuple[int, int]
UNKNOWN: State = (-1, -1)


def random_lexicon(rng: np.random.Generator, words: int, *, pieces: int = 4) -> tuple[Lexicon, Vocabulary]:
    """Codes of one to four pieces for `words` ordinary words; every inner piece has a final twin, as ab and ab▁."""
    labels = Vocabulary.of([f"p{i}" for i in range(pieces)] + [f"p{i}▁" for i in range(pieces)])
    codes: set[tuple[int, ...]] = set()
    while len(codes) < words:
        inner = rng.integers(3, pieces + 3, rng.integers(0, 4)).tolist()
        codes.add((*inner, int(rng.integers(pieces + 3, 2 * pieces + 3))))
    rows = [[], [], [], *(list(code) for code in sorted(codes, key=lambda _: rng.random()))]
    is_final = [label.endswith("▁") for label in labels.words]
    return lexicon_from_codes(Ragged.from_rows(rows), is_final), labels


def read_by(t: Topology, q: int) -> dict[int, int]:
    return {int(t.label[e]): int(t.dest[e]) for e in range(t.first_arc[q], t.first_arc[q + 1])}


class Composition:
    """B = M ∘ A by the rules of §6, from reachable pairs."""

    def __init__(self, M: Lexicon, A: Topology) -> None:
        self.M, self.A = M, A
        self.arcs: dict[State, dict[int, State | None]] = {}
        self.output: dict[tuple[State, int], int] = {}
        self.backoff: dict[State, State] = {}
        behind_unknown = read_by(A, 0).get(UNK, 0)
        self.arcs[UNKNOWN] = {
            x: None if x == EOS else (0, behind_unknown) if M.is_final[x] else UNKNOWN
            for x in range(M.pieces)
            if x != BOS
        }
        todo = [(0, A.start), (0, behind_unknown)]
        while todo:
            state = todo.pop()
            if state in self.arcs:
                continue
            self.expand(*state)
            todo += [d for d in self.arcs[state].values() if d not in (None, UNKNOWN)]
            todo += [self.backoff[state]] if self.backoff[state] != UNKNOWN else []

    def expand(self, v: int, q: int) -> None:
        M, read, state = self.M, read_by(self.A, q), (v, q)
        arcs: dict[int, State | None] = {}
        for e in range(M.first_arc[v], M.first_arc[v + 1]):
            x, y, w = int(M.piece[e]), int(M.output[e]), int(M.dest[e])
            if y >= 0 and y in read:
                arcs[x], self.output[state, x] = (0, read[y]), y
            elif y < 0 and self.emitted_below(w) & read.keys():
                arcs[x] = (w, q)
        if v == 0 and EOS in read:
            arcs[EOS], self.output[state, EOS] = None, EOS
        self.arcs[state] = arcs
        self.backoff[state] = (v, int(self.A.backoff[q])) if q else UNKNOWN

    def emitted_below(self, v: int) -> set[int]:
        """R[v]: the words that can be put out behind node v."""
        result: set[int] = set()
        for e in range(self.M.first_arc[v], self.M.first_arc[v + 1]):
            y = int(self.M.output[e])
            result |= {y} if y >= 0 else self.emitted_below(int(self.M.dest[e]))
        return result

    def visit_counts(
        self, source: NGramModel, image: dict[int, State]
    ) -> tuple[dict[tuple[int, State], float], dict[State, float]]:
        """C(x, q) and C(φ, q), where `image` is the state of B in which each state of the source is."""
        C: dict[tuple[int, State], float] = defaultdict(float)
        C_phi: dict[State, float] = defaultdict(float)
        for s, visits in enumerate(expected_visits(source).tolist()):
            for x, p in distribution(source, s).items():
                at = image[s]
                while x not in self.arcs[at]:
                    C_phi[at] += visits * p
                    at = self.backoff[at]
                C[x, at] += visits * p
        return C, C_phi


def distribution(model: NGramModel, q: int) -> dict[int, float]:
    """p(x | q) for every label."""
    t, scale = model.topology, 1.0
    result: dict[int, float] = {}
    while q >= 0:
        for e in range(t.first_arc[q], t.first_arc[q + 1]):
            result.setdefault(int(t.label[e]), scale * float(np.exp(model.log_weight[e])))
        scale *= float(np.exp(model.log_backoff[q]))
        q = int(t.backoff[q])
    return result
