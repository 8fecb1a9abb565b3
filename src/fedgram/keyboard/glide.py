"""From a trail to a word: the finger glides over a word's letters without being lifted.

A word's template is the line through the centres of its letters. Trail and template are cut into equally long steps;
words whose first and last letters lie near the trail's ends, and whose template is about as long, are compared point
by point, and the best of them again with dynamic time warping, since a hurried finger cuts corners. The mean squared
distance is weighed against the word's log-probability in its context, so that one trail may mean `Vampire` behind one
word and `Value` behind another. Paper: §1.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.fgram.bits import Words
from fedgram.fgram.query import log_prob, open_lists
from fedgram.keyboard.decoder import Candidate, Keyboard, mixed_candidates
from fedgram.keyboard.layout import Layout
from fedgram.keyboard.own_words import own_words
from fedgram.keyboard.personal import PersonalModel

POINTS, BAND = 32, 5
_SHORTLIST = 150


@dataclass(frozen=True, slots=True)
class GlideOptions:
    """How trails and words are weighed; a word's log-probability counts as it is."""

    sharpness: float = 80.0  # log-likelihood lost per squared key width of mean squared distance
    reach: float = 2.0  # how far the trail may begin and end from the first and last letter, in key widths


class Glider:
    """A keyboard's lexicon, ready for trails."""

    def __init__(self, keyboard: Keyboard, options: GlideOptions | None = None) -> None:
        self.keyboard, self.options = keyboard, options or GlideOptions()
        lex, letters = keyboard.lexicon, keyboard.layout.letters
        rank = {letter: n for n, letter in enumerate(letters)}
        self.offsets: LongArray = np.concatenate([[0], np.cumsum([len(key) for key in lex.keys])]).astype(np.int64)
        self.spelled = np.array([rank[c] for key in lex.keys for c in key], np.int32)
        self.centres = np.array([keyboard.layout.centre_of(letter) for letter in letters])
        ends = self.spelled[self.offsets[:-1]] * len(letters) + self.spelled[self.offsets[1:] - 1]
        self.log_p = keyboard.model.log_unigrams()[lex.words]
        self.by_ends = np.lexsort((-self.log_p, ends)).astype(np.int32)  # of equal ends, the most probable first
        self.first = np.searchsorted(ends[self.by_ends], np.arange(len(letters) ** 2 + 1)).astype(np.int32)
        self.apart = np.sqrt(((self.centres[:, None, :] - self.centres[None, :, :]) ** 2).sum(axis=2))
        self.length = _template_lengths(self.spelled, self.offsets, self.apart)

    def decode(
        self, trail: FloatArray, context: Sequence[str] = (), k: int = 3, personal: PersonalModel | None = None
    ) -> list[Candidate]:
        """The k words that a trail of (x, y) points means most probably, the user's own among them, the best first."""
        model, options, lex = self.keyboard.model, self.options, self.keyboard.lexicon
        trail = np.asarray(trail, np.float64).reshape(-1, 2)
        if len(trail) < 2 or not np.isfinite(trail).all():
            return []
        worth, words = np.empty(k), np.empty(k, np.int64)
        points, length = resample(trail, POINTS), path_length(trail)
        weights = np.array([options.sharpness, options.reach])
        found = _decode(
            points, length, self.spelled, self.offsets, self.centres, self.apart, self.by_ends, self.first,
            self.length, self.log_p, lex.words, weights,
            model.data, model.frame, model.tables, model.state(context), worth, words,
        )  # fmt: skip
        rows = [
            Candidate(model.word(w), p) for w, p in zip(words[:found].tolist(), worth[:found].tolist(), strict=True)
        ]
        own = own_words(personal, self.keyboard.layout, context)
        if not own:
            return rows
        traced = _trace(points, length, own.spelled, own.offsets, self.centres, self.apart, weights)
        return mixed_candidates(rows, own, 1.0, traced, k=k)


@kernel
def path_length(points: FloatArray) -> float:
    """The length of a line through points."""
    total = 0.0
    for i in range(1, len(points)):
        total += np.hypot(points[i, 0] - points[i - 1, 0], points[i, 1] - points[i - 1, 1])
    return total


@kernel
def resample(points: FloatArray, count: int) -> FloatArray:
    """`count` points at equal distances along a line, its ends included."""
    result = np.empty((count, 2))
    step_ = path_length(points) / (count - 1)
    result[0] = points[0]
    i, along, at = 1, 0.0, 0.0
    for k in range(1, count):
        wanted = k * step_
        piece = 0.0
        while i < len(points):
            piece = np.hypot(points[i, 0] - points[i - 1, 0], points[i, 1] - points[i - 1, 1])
            if along + piece >= wanted and piece > 0.0:
                break
            along += piece
            i += 1
        if i >= len(points):
            result[k] = points[-1]
        else:
            at = (wanted - along) / piece
            result[k] = points[i - 1] + at * (points[i] - points[i - 1])
    result[count - 1] = points[-1]
    return result


@kernel
def _template_lengths(spelled: IntArray, offsets: LongArray, apart: FloatArray) -> FloatArray:
    result = np.zeros(len(offsets) - 1)
    for w in range(len(result)):
        for i in range(offsets[w] + 1, offsets[w + 1]):
            result[w] += apart[spelled[i - 1], spelled[i]]
    return result


@kernel
def _template(
    w: int, spelled: IntArray, offsets: LongArray, centres: FloatArray, apart: FloatArray, length: float,
    trail: FloatArray, most: float, out: FloatArray,
) -> float:  # fmt: skip
    """A word's template, resampled, and its mean squared distance from a trail, point by point.

    Where that is more than `most`, the rest of the template is left out, and of the distance.
    """
    first, last = offsets[w], offsets[w + 1] - 1
    step_ = length / (len(out) - 1)
    i, along, total = first + 1, 0.0, 0.0
    for axis in range(2):
        out[0, axis] = centres[spelled[first], axis]
        total += (trail[0, axis] - out[0, axis]) ** 2
    for k in range(1, len(out)):
        if total > most * len(out):
            break
        wanted, piece = k * step_, 0.0
        while i <= last:
            piece = apart[spelled[i - 1], spelled[i]]
            if along + piece >= wanted and piece > 0.0:
                break
            along += piece
            i += 1
        a, b, share = spelled[last], spelled[last], 0.0
        if i <= last:
            a, b, share = spelled[i - 1], spelled[i], (wanted - along) / piece
        for axis in range(2):
            out[k, axis] = centres[a, axis] + share * (centres[b, axis] - centres[a, axis])
            total += (trail[k, axis] - out[k, axis]) ** 2
    return total / len(out)


@kernel
def warped(a: FloatArray, b: FloatArray, band: int, rows: FloatArray, most: float) -> float:
    """The least mean squared distance when points may wait for each other, at most `band` steps; per point of both.

    Infinite if it is more than `most`.
    """
    n = len(a)
    rows[:, :] = np.inf
    rows[0, 0] = 0.0
    for i in range(1, n + 1):
        now, last = rows[i & 1], rows[(i - 1) & 1]
        now[:] = np.inf
        least = np.inf
        for j in range(max(1, i - band), min(n, i + band) + 1):
            dx, dy = a[i - 1, 0] - b[j - 1, 0], a[i - 1, 1] - b[j - 1, 1]
            squared = dx * dx + dy * dy
            # a step along both counts twice, so that every way has the same weight in all
            now[j] = min(last[j - 1] + 2.0 * squared, last[j] + squared, now[j - 1] + squared)
            least = min(least, now[j])
        if least > most * 2 * n:
            return np.inf
        if i == 1:
            last[0] = np.inf
    mean: float = rows[n & 1, n] / (2 * n)
    return mean


@kernel
def _decode(
    trail: FloatArray, trail_length: float, spelled: IntArray, offsets: LongArray, centres: FloatArray,
    apart: FloatArray, by_ends: IntArray, first: IntArray, lengths: FloatArray, log_p: FloatArray, words: IntArray,
    options: FloatArray, data: Words, frame: LongArray, tables: FloatArray, state: LongArray, worth: FloatArray,
    best: LongArray,
) -> int:  # fmt: skip
    """Fill `best` with the words of a trail; returns how many there are."""
    sharpness, reach = options[0], options[1]
    letters = len(centres)
    template, rows = np.empty_like(trail), np.empty((2, len(trail) + 1))
    short, short_worth = np.full(_SHORTLIST, -1, np.int64), np.full(_SHORTLIST, -np.inf)
    begin, end = trail[0], trail[-1]
    for a in range(letters):
        if np.hypot(centres[a, 0] - begin[0], centres[a, 1] - begin[1]) > reach:
            continue
        for b in range(letters):
            if np.hypot(centres[b, 0] - end[0], centres[b, 1] - end[1]) > reach:
                continue
            for n in range(first[a * letters + b], first[a * letters + b + 1]):
                w = by_ends[n]
                most = (log_p[w] - short_worth[_SHORTLIST - 1]) / sharpness  # farther would not be kept
                if most <= 0.0:
                    break
                if _is_about_as_long(lengths[w], trail_length):
                    away = _template(w, spelled, offsets, centres, apart, lengths[w], trail, most, template)
                    _insert(log_p[w] - sharpness * away, w, short_worth, short)
    for j in range(len(best)):
        worth[j], best[j] = -np.inf, -1
    lists, above = open_lists(data, frame, tables, state)
    for n in range(_SHORTLIST):
        w = short[n]
        if w < 0:
            break
        likely = log_prob(data, frame, tables, lists, above, words[w])
        most = (likely - worth[len(worth) - 1]) / sharpness
        if most > 0.0:
            _template(w, spelled, offsets, centres, apart, lengths[w], trail, np.inf, template)
            _insert(likely - sharpness * warped(trail, template, BAND, rows, most), words[w], worth, best)
    found = 0
    while found < len(best) and best[found] >= 0:
        found += 1
    return found


@kernel
def _is_about_as_long(length: float, trail_length: float) -> bool:
    return 0.6 * length - 1.0 <= trail_length <= 1.5 * length + 2.0


@kernel
def _trace(
    trail: FloatArray, trail_length: float, spelled: IntArray, offsets: LongArray, centres: FloatArray,
    apart: FloatArray, options: FloatArray,
) -> FloatArray:  # fmt: skip
    """What a trail is worth for each of a few words; −∞ where it begins, ends or is as long as no trail of the word."""
    lengths = _template_lengths(spelled, offsets, apart)
    result = np.full(len(lengths), -np.inf)
    template, rows = np.empty_like(trail), np.empty((2, len(trail) + 1))
    for w in range(len(lengths)):
        a, b = centres[spelled[offsets[w]]], centres[spelled[offsets[w + 1] - 1]]
        away = max(np.hypot(a[0] - trail[0, 0], a[1] - trail[0, 1]), np.hypot(b[0] - trail[-1, 0], b[1] - trail[-1, 1]))
        if away <= options[1] and _is_about_as_long(lengths[w], trail_length):
            _template(w, spelled, offsets, centres, apart, lengths[w], trail, np.inf, template)
            result[w] = -options[0] * warped(trail, template, BAND, rows, np.inf)
    return result


@kernel
def _insert(value: float, item: int, values: FloatArray, items: LongArray) -> None:
    """Put an item in its place among the best."""
    j = len(items) - 1
    if value <= values[j]:
        return
    while j > 0 and values[j - 1] < value:
        values[j], items[j] = values[j - 1], items[j - 1]
        j -= 1
    values[j], items[j] = value, item


def synthesize_trail(
    layout: Layout, word_key: str, rng: np.random.Generator, *, sigma: float = 0.2, overlap: float = 0.4
) -> FloatArray:
    """A trail as people make them: minimum-jerk movements from letter to letter that overlap, so that corners are cut.

    Each letter is missed by `sigma` key widths; each movement begins `overlap` of its time before the one before ends.
    """
    distinct = [c for i, c in enumerate(word_key) if i == 0 or c != word_key[i - 1]]
    aims = layout.typed("".join(distinct))
    aims = aims + rng.normal(0.0, sigma, aims.shape)
    moves = np.diff(aims, axis=0)
    lasting = 0.08 + 0.06 * np.log2(1.0 + np.hypot(*moves.T)) if len(moves) else np.zeros(0)
    starts = np.concatenate([[0.0], np.cumsum(lasting * (1.0 - overlap))])
    ends = float((starts[:-1] + lasting).max()) if len(moves) else 0.05
    times = np.arange(0.0, ends + 0.01, 0.01)
    trail = np.repeat(aims[:1], len(times), axis=0)
    for move, start, duration in zip(moves, starts, lasting, strict=False):
        tau = np.clip((times - start) / duration, 0.0, 1.0)
        trail += (tau**3 * (10.0 - 15.0 * tau + 6.0 * tau**2))[:, None] * move
    return trail + rng.normal(0.0, 0.03, trail.shape)
