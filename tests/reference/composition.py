"""The readable reference of M ∘ A: states explored one by one by the paper's rules, and counts added visit by visit."""

from collections import defaultdict
from functools import cache

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
    """Codes of one to four pieces for `words` ordinary words; every inner piece has a final form, as ab and ab▁."""
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
    """B = M ∘ A by the rules of §6, from its reachable states."""

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
        """R[v]: the words whose codes pass node v."""
        result: set[int] = set()
        for e in range(self.M.first_arc[v], self.M.first_arc[v + 1]):
            y = int(self.M.output[e])
            result |= {y} if y >= 0 else self.emitted_below(int(self.M.dest[e]))
        return result

    def visit_counts(
        self, source: NGramModel, image: dict[int, State]
    ) -> tuple[dict[tuple[int, State], float], dict[State, float]]:
        """C(x, q) and C(φ, q); `image` is the state of B for each state of the source."""
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


class Transfer:
    """Counts on B as counts on A: one method per formula of `automata/transfer.py`; `visits` are N(s) on B."""

    def __init__(
        self,
        B: Composition,
        C: dict[tuple[int, State], float],
        C_phi: dict[State, float],
        visits: dict[State, float],
        prior_visits: float,
    ) -> None:
        self.B, self.C, self.C_phi, self.visits, self.prior_visits = B, C, C_phi, visits, prior_visits
        self.p, self.arriving = cache(self._p), cache(self._arriving)

    def passing(self, s: State) -> list[State]:
        """The states whose backoff path contains s."""
        behind = [t for t, below in self.B.backoff.items() if below == s]
        return [s, *(u for t in behind for u in self.passing(t))]

    def words(self, v: int, q: int) -> int:
        """The number of words of q, including `</s>`, that continue from node v."""
        read = read_by(self.B.A, q)
        return len(self.B.emitted_below(v) & read.keys()) + (v == 0 and EOS in read)

    def _p(self, x: int, s: State) -> float:
        if self.B.backoff[s] != UNKNOWN:
            below = self.p(x, self.B.backoff[s])
        else:
            inner = (s, x) not in self.B.output
            below = (self.words(*self.B.arcs[s][x]) if inner else 1) / (self.words(*s) + 1)  # type: ignore[misc]
        S = sum(self.C.get((x, t), 0.0) for t in self.passing(s))
        T = sum(self.visits.get(t, 0.0) for t in self.passing(s))
        k = self.prior_visits
        return (S + k * below) / (T + k) if T + k else below

    def share(self, x: int, s: State) -> float:
        k = self.prior_visits
        C_s = self.C_phi.get(s, 0.0) + sum(self.C.get((y, s), 0.0) for y in self.B.arcs[s])
        return (self.C.get((x, s), 0.0) + k * self.p(x, s)) / (C_s + k) if C_s + k else self.p(x, s)

    def backoff_share(self, s: State) -> float:
        return 1.0 - sum(self.share(x, s) for x in self.B.arcs[s])

    def _arriving(self, s: State) -> float:
        if s[0] == 0:
            total = self.visits.get(s, 0.0)
        else:
            before, x = next(
                (t, x) for t, arcs in self.B.arcs.items() if t != UNKNOWN for x, d in arcs.items() if d == s
            )
            total = self.arriving(before) * self.share(x, before)
        above = [t for t, below in self.B.backoff.items() if below == s]
        return total + sum(self.arriving(t) * self.backoff_share(t) for t in above)

    def counts(self) -> tuple[dict[tuple[int, int], float], dict[int, float]]:
        """C_A(y, q) and C_A(φ, q); the flow that leaves the empty history is the count of `<unk>`."""
        C_A: dict[tuple[int, int], float] = defaultdict(float)
        phi: dict[int, float] = defaultdict(float)
        for ((v, q), x), y in self.B.output.items():
            C_A[y, q] = self.arriving((v, q)) * self.share(x, (v, q))
        for s in self.B.backoff:
            phi[s[1]] += self.arriving(s) * self.backoff_share(s)
        C_A[UNK, 0] = phi.pop(0)
        return C_A, phi


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
