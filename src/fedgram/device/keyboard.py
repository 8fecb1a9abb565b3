"""From taps to words: a search through the lexicon that weighs where fingers came down against what is likely to be
said.

A hypothesis is a node of the lexicon with a score, the log-likelihood of the taps so far relative to perfect ones. A
tap may be for a child's letter; for nothing (an insertion); for a grandchild's letter, one having been missed (a
deletion); or be swapped with the tap before (a transposition). After each tap the hypotheses that are worth most,
with the best word below them in mind, go on. A word's worth is its score plus the weighted log-probability of the
word in its context. Paper: §1.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.device.bits import Words
from fedgram.device.lexicon import MAX_LETTERS, Lexicon, lexicon_of
from fedgram.device.own_words import OwnWords, align, own_words
from fedgram.device.personal import PersonalModel
from fedgram.device.query import step
from fedgram.device.reader import PackedModel
from fedgram.device.spatial import Layout
from fedgram.text.vocabulary import UNK

MAX_TAPS = MAX_LETTERS + 8
_ROOM = 1 << 14
_BINS = 512


@dataclass(frozen=True, slots=True)
class TapOptions:
    """How taps and words are weighed; costs are log-likelihoods."""

    sigma: float = 0.35  # of a tap around its key, in key widths
    weight: float = 0.7  # of the language model
    slip: float = -9.0  # the least a tap can be worth: some other key was hit
    insertion: float = -7.5
    deletion: float = -3.5
    transposition: float = -5.0
    completion: float = -1.0  # of every letter that was not typed
    unknown: float = -2.4  # of every letter of a word that nobody knows
    width: float = 14.0
    hypotheses: int = 300

    def costs(self) -> FloatArray:
        """The numbers as kernels take them."""
        return np.array([self.insertion, self.deletion, self.transposition, self.weight, self.width, self.slip])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that may have been meant, and what it is worth; `is_complete` if all its letters were typed."""

    word: str
    worth: float
    is_complete: bool = True
    is_literal: bool = False


def best_candidates(rows: Sequence[Candidate], k: int) -> list[Candidate]:
    """The k best, each word once."""
    unique = {row.word: row for row in sorted(rows, key=lambda row: row.worth)}
    return sorted(unique.values(), key=lambda row: (-round(row.worth, 9), row.word))[:k]


def mixed_candidates(
    rows: Sequence[Candidate], own: OwnWords, weight: float, *worths: FloatArray, k: int
) -> list[Candidate]:
    """A packed model's candidates, less what personal words take, and those words.

    `worths` are what taps are worth for them, typed wholly and perhaps in part.
    """
    result = [replace(row, worth=row.worth + weight * own.log_rest) for row in rows]
    for is_complete, values in zip((True, False), worths, strict=False):
        values = values + weight * own.log_p
        for i in np.argsort(-values, kind="stable")[: k + 1].tolist():
            if np.isfinite(values[i]):
                result.append(Candidate(own.words[i], float(values[i]), is_complete))
    return best_candidates(result, k)


class Keyboard:
    """A packed model and a layout, ready to decode."""

    def __init__(self, model: PackedModel, layout: Layout, options: TapOptions | None = None) -> None:
        self.model, self.layout, self.options = model, layout, options or TapOptions()
        self.lexicon: Lexicon = lexicon_of(model, layout)
        self.known = frozenset(self.lexicon.keys)
        nodes = len(self.lexicon.letter)
        self.seen, self.place = np.zeros(nodes, np.int64), np.zeros(nodes, np.int32)
        self.round = 0

    def typing(self, context: Sequence[str] = (), personal: PersonalModel | None = None) -> "Typing":
        """A new word behind these, of the model's words and the user's own."""
        return Typing(self, self.model.state(context), own_words(personal, self.layout, context))

    def decode(
        self, taps: FloatArray, context: Sequence[str] = (), k: int = 3, personal: PersonalModel | None = None
    ) -> list[Candidate]:
        """The k words that these taps mean most probably, the best first."""
        word = self.typing(context, personal)
        for x, y in taps[:MAX_TAPS].tolist():
            word.tap(x, y)
        return word.candidates(k, complete=False)


class Typing:
    """One word while it is being typed: taps come and may be taken back."""

    def __init__(self, keyboard: Keyboard, state: LongArray, own: OwnWords | None = None) -> None:
        self.keyboard, self.state, self.own = keyboard, state, own
        self.taps: list[tuple[float, float]] = []
        self._costs: list[FloatArray] = []
        self._beams: list[tuple[IntArray, FloatArray]] = [(np.zeros(1, np.int32), np.zeros(1))]

    def tap(self, x: float, y: float) -> None:
        """A finger came down here; what goes beyond the longest words is passed over."""
        board, options = self.keyboard, self.keyboard.options
        if len(self.taps) >= MAX_TAPS:
            return
        squared = board.layout.squared_distances(np.array([[x, y]]))[0]
        cost = np.maximum(-squared / (2 * options.sigma**2), options.slip)
        before = self._beams[-2] if len(self._beams) > 1 else (np.zeros(0, np.int32), np.zeros(0))
        last = self._costs[-1] if self._costs else cost
        board.round += 1
        lex = board.lexicon
        beam = _advance(
            lex.letter, lex.child, lex.sibling, lex.best, *self._beams[-1], *before, cost, last, options.costs(),
            options.hypotheses, board.seen, board.place, board.round,
        )  # fmt: skip
        self.taps.append((x, y))
        self._costs.append(cost)
        self._beams.append(beam)

    def backspace(self) -> None:
        """Take the last tap back."""
        if self.taps:
            self.taps.pop()
            self._costs.pop()
            self._beams.pop()

    @property
    def literal(self) -> str:
        """The letters of the keys that were hit."""
        return self.keyboard.layout.nearest(np.array(self.taps).reshape(-1, 2))

    def candidates(self, k: int = 3, *, complete: bool = True) -> list[Candidate]:
        """The k most probable words, the best first: what a space would commit, and suggestions behind it.

        With `complete`, words that the taps only begin may be among them.
        """
        if not self.taps:
            return []
        board, options, model = self.keyboard, self.keyboard.options, self.keyboard.model
        lex = board.lexicon
        worth, words = np.empty(k), np.empty(k, np.int64)
        found = _best_words(
            model.data, model.frame, model.tables, self.state, lex.child, lex.sibling, lex.first_word, lex.words,
            *self._beams[-1], options.costs(), worth, words,
        )  # fmt: skip
        rows = [
            Candidate(model.word(w), p) for w, p in zip(words[:found].tolist(), worth[:found].tolist(), strict=True)
        ]
        if complete:
            rows += self._completions(k)
        literal = self._literal_candidate()
        if literal:
            rows.append(literal)
        if not self.own:
            return best_candidates(rows, k)
        worths = align(np.array(self._costs), self.own.spelled, self.own.offsets, options.costs(), options.completion)
        return mixed_candidates(rows, self.own, options.weight, *worths[: 1 + complete], k=k)

    def _completions(self, k: int) -> list[Candidate]:
        """Longer words from the two best beginnings."""
        model, options, lex = self.keyboard.model, self.keyboard.options, self.keyboard.lexicon
        nodes, score = self._beams[-1]
        rows = []
        for i in np.argsort(-(score + options.weight * lex.best[nodes]))[:2].tolist():
            if not lex.depth[nodes[i]]:
                continue
            begun = lex.keys[lex.first_word[nodes[i]]][: lex.depth[nodes[i]]]
            words, log_p = model.predict_ids(self.state, k + 1, begun)
            for w, p in zip(words.tolist(), log_p.tolist(), strict=True):
                untyped = len(model.keys[w]) - len(begun)
                if untyped > 0:
                    worth = float(score[i]) + options.weight * p + options.completion * untyped
                    rows.append(Candidate(model.word(w), worth, is_complete=False))
        return rows

    def _literal_candidate(self) -> Candidate | None:
        """What was hit, if it is no word: people type names."""
        board, options = self.keyboard, self.keyboard.options
        literal = self.literal
        if literal in board.known or len(literal) < 2:
            return None
        log_p = board.model.step(self.state, UNK)[0]
        log_p = log_p if np.isfinite(log_p) else -8.0
        hit = sum(float(cost.max()) for cost in self._costs)
        worth = hit + options.weight * log_p + options.unknown * len(literal)
        return Candidate(literal, worth, is_literal=True)


@kernel
def _advance(
    letter: IntArray, child: IntArray, sibling: IntArray, best: FloatArray, nodes: IntArray, score: FloatArray,
    before: IntArray, before_score: FloatArray, cost: FloatArray, last: FloatArray, costs: FloatArray, most: int,
    seen: LongArray, place: IntArray, round_: int,
) -> tuple[IntArray, FloatArray]:  # fmt: skip
    """The hypotheses after one more tap, `cost` being what it is worth for each letter and `last` the tap before."""
    insertion, deletion, transposition, weight = costs[0], costs[1], costs[2], costs[3]
    out, out_score = np.empty(_ROOM, np.int32), np.empty(_ROOM)
    count = 0
    for i in range(len(nodes)):
        count = _keep(nodes[i], score[i] + insertion, out, out_score, count, seen, place, round_)
        c = child[nodes[i]]
        while c >= 0:
            count = _keep(c, score[i] + cost[letter[c]], out, out_score, count, seen, place, round_)
            if score[i] + deletion > score[0] - costs[4]:
                d = child[c]
                while d >= 0:
                    count = _keep(d, score[i] + deletion + cost[letter[d]], out, out_score, count, seen, place, round_)
                    d = sibling[d]
            c = sibling[c]
    for i in range(len(before)):
        c = child[before[i]]
        while c >= 0:
            swapped = before_score[i] + transposition + cost[letter[c]]
            d = child[c]
            while d >= 0:
                count = _keep(d, swapped + last[letter[d]], out, out_score, count, seen, place, round_)
                d = sibling[d]
            c = sibling[c]
    return _prune(out[:count], out_score[:count], best, weight, costs[4], most)


@kernel
def _keep(
    node: int,
    score: float,
    out: IntArray,
    out_score: FloatArray,
    count: int,
    seen: LongArray,
    place: IntArray,
    round_: int,
) -> int:
    """Note a hypothesis, or a better score of one already noted."""
    if seen[node] == round_:
        out_score[place[node]] = max(out_score[place[node]], score)
        return count
    if count >= len(out):
        return count
    seen[node], place[node] = round_, count
    out[count], out_score[count] = node, score
    return count + 1


@kernel
def _prune(
    nodes: IntArray, score: FloatArray, best: FloatArray, weight: float, width: float, most: int
) -> tuple[IntArray, FloatArray]:
    """The hypotheses within `width` of the best, at most about `most`, the best first."""
    top, first = -np.inf, 0
    for i in range(len(nodes)):
        worth = score[i] + weight * best[nodes[i]]
        if worth > top:
            top, first = worth, i
    bins = np.zeros(_BINS + 1, np.int64)
    for i in range(len(nodes)):
        gap = (top - score[i] - weight * best[nodes[i]]) / width * _BINS
        bins[int(min(gap, _BINS))] += 1
    limit, total = 0, 0
    while limit < _BINS and total + bins[limit] <= most:
        total += bins[limit]
        limit += 1
    kept, kept_score = np.empty(len(nodes), np.int32), np.empty(len(nodes))
    kept[0], kept_score[0] = nodes[first], score[first]
    count = 1
    for i in range(len(nodes)):
        gap = (top - score[i] - weight * best[nodes[i]]) / width * _BINS
        if i != first and gap < limit:
            kept[count], kept_score[count] = nodes[i], score[i]
            count += 1
    return kept[:count].copy(), kept_score[:count].copy()


@kernel
def _best_words(
    data: Words, frame: LongArray, tables: FloatArray, state: LongArray, child: IntArray, sibling: IntArray,
    first_word: IntArray, words: IntArray, nodes: IntArray, score: FloatArray, costs: FloatArray,
    worth: FloatArray, best: LongArray,
) -> int:  # fmt: skip
    """Fill `best` with the words that end at the hypotheses or one missed letter behind; returns their number."""
    after = np.zeros_like(state)
    for j in range(len(best)):
        worth[j], best[j] = -np.inf, -1
    for i in range(len(nodes)):
        _offer_words(data, frame, tables, state, after, first_word, words, nodes[i], score[i], costs[3], worth, best)
        c = child[nodes[i]]
        while c >= 0:
            _offer_words(
                data, frame, tables, state, after, first_word, words, c, score[i] + costs[1], costs[3], worth, best
            )
            c = sibling[c]
    found = 0
    while found < len(best) and best[found] >= 0:
        found += 1
    return found


@kernel
def _offer_words(
    data: Words, frame: LongArray, tables: FloatArray, state: LongArray, after: LongArray, first_word: IntArray,
    words: IntArray, node: int, score: float, weight: float, worth: FloatArray, best: LongArray,
) -> None:  # fmt: skip
    """Put the words of a node in their places among the best."""
    last = len(best) - 1
    if score <= worth[last]:  # no log-probability is positive
        return
    for w in range(first_word[node], first_word[node + 1]):
        value = score + weight * step(data, frame, tables, state, words[w], after)
        if value <= worth[last]:
            continue
        j = last
        for same in range(len(best)):
            if best[same] == words[w]:
                j = same
        if best[j] == words[w] and worth[j] >= value:
            continue
        while j > 0 and worth[j - 1] < value:
            worth[j], best[j] = worth[j - 1], best[j - 1]
            j -= 1
        worth[j], best[j] = value, words[w]
