"""Decoding glides: the finger moves over the letters of a word without being lifted.

The template of a word is the line through the centres of its letters. Trail and template are resampled to points at
equal distances. Words whose first and last letters are near the ends of the trail, and whose template is about as long,
are compared point by point. The best of them are compared again with dynamic time warping, since a fast finger cuts
corners. The mean squared distance is weighed against the log-probability of the word in its context, so that one trail
may mean `Vampire` after one word and `Value` after another. Paper: §1.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.fgram.frame import FileArrays
from fedgram.fgram.query import log_prob, open_lists
from fedgram.keyboard.decoder import Candidate, Keyboard, mixed_candidates
from fedgram.keyboard.layout import Layout
from fedgram.keyboard.lexicon import Spelled, spell_keys
from fedgram.keyboard.own_words import OwnWords, own_words
from fedgram.keyboard.personal import PersonalModel
from fedgram.keyboard.ranked import Ranked, insert

POINTS, BAND = 32, 5
_SHORTLIST = 150


@dataclass(frozen=True, slots=True)
class GlideOptions:
    """The weights of trails and words; the log-probability of a word has weight 1."""

    sharpness: float = 80.0  # loss of log-likelihood per squared key width of mean squared distance
    reach: float = 2.0  # greatest distance of the trail's ends from the first and last letter, in key widths


class KeyPlaces(NamedTuple):
    """The centres of a layout's letters, and the distance between every two of them."""

    centre: FloatArray
    apart: FloatArray


class Templates(NamedTuple):
    """The words of a keyboard's lexicon, by their index in it.

    Attributes:
        spelled: Their letters.
        length: The lengths of their templates.
        log_p: Their log-probabilities without context.
        word_id: Their ids in the model.
        by_ends: Their indices sorted by first and last letter, the most probable first.
        first: The words from letter a to letter b are `by_ends[first[n]:first[n + 1]]`, where n = a · letters + b.
    """

    spelled: Spelled
    length: FloatArray
    log_p: FloatArray
    word_id: IntArray
    by_ends: IntArray
    first: IntArray


class Trail(NamedTuple):
    """A trail as points at equal distances, its length, and the numbers of `GlideOptions`."""

    points: FloatArray
    length: float
    sharpness: float
    reach: float


class Glider:
    """A keyboard's lexicon, ready to decode trails."""

    def __init__(self, keyboard: Keyboard, options: GlideOptions | None = None) -> None:
        self.keyboard, self.options = keyboard, options or GlideOptions()
        lexicon, letters = keyboard.lexicon, keyboard.layout.letters
        centre = np.array([keyboard.layout.centre_of(letter) for letter in letters])
        apart = np.sqrt(((centre[:, None, :] - centre[None, :, :]) ** 2).sum(axis=2))
        self.places, spelled = KeyPlaces(centre, apart), spell_keys(keyboard.layout, lexicon.keys)
        ends = spelled.letter[spelled.offsets[:-1]] * len(letters) + spelled.letter[spelled.offsets[1:] - 1]
        log_p = keyboard.model.log_unigrams()[lexicon.trie.word_id]
        by_ends = np.lexsort((-log_p, ends)).astype(np.int32)
        first = np.searchsorted(ends[by_ends], np.arange(len(letters) ** 2 + 1)).astype(np.int32)
        length = _template_lengths(spelled, self.places)
        self.templates = Templates(spelled, length, log_p, lexicon.trie.word_id, by_ends, first)

    def decode(
        self, trail: FloatArray, context: str | Sequence[str] = (), k: int = 3, personal: PersonalModel | None = None
    ) -> list[Candidate]:
        """The k most probable words, the user's own included, for a trail of (x, y) points; the best first."""
        drawn = self.draw(trail)
        if not drawn:
            return []
        rows = self.readings(drawn, self.keyboard.model.state(context), k)
        own = own_words(personal, self.keyboard.layout, context)
        return self.with_own_words(drawn, rows, own, k) if own else rows

    def draw(self, trail: FloatArray) -> Trail | None:
        """A trail of (x, y) points, ready to be compared; None if it is no trail."""
        points = np.asarray(trail, np.float64).reshape(-1, 2)
        if len(points) < 2 or not np.isfinite(points).all():
            return None
        return Trail(resample(points, POINTS), path_length(points), self.options.sharpness, self.options.reach)

    def readings(self, trail: Trail, state: LongArray, k: int) -> list[Candidate]:
        """The k best of the model's own words for a trail, the best first."""
        model, best = self.keyboard.model, Ranked.of(k)
        _decode(trail, self.places, self.templates, model.arrays, state, best)
        return [Candidate(model.word(word_id), worth) for word_id, worth in best.rows()]

    def with_own_words(self, trail: Trail, rows: Sequence[Candidate], own: OwnWords, k: int) -> list[Candidate]:
        """The k best of packed models' readings of a trail, and of the user's own words."""
        return mixed_candidates(rows, own, 1.0, _trace(trail, self.places, own.spelled), k=k)


@kernel
def path_length(points: FloatArray) -> float:
    """The length of the line through points."""
    total = 0.0
    for i in range(1, len(points)):
        total += np.hypot(points[i, 0] - points[i - 1, 0], points[i, 1] - points[i - 1, 1])
    return total


@kernel
def resample(points: FloatArray, count: int) -> FloatArray:
    """`count` points at equal distances along the line through points, its ends included."""
    result = np.empty((count, 2))
    spacing = path_length(points) / (count - 1)
    result[0] = points[0]
    i, along, at = 1, 0.0, 0.0
    for k in range(1, count):
        wanted = k * spacing
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
def _template_lengths(spelled: Spelled, places: KeyPlaces) -> FloatArray:
    letter, offsets = spelled
    result = np.zeros(len(offsets) - 1)
    for w in range(len(result)):
        for i in range(offsets[w] + 1, offsets[w + 1]):
            result[w] += places.apart[letter[i - 1], letter[i]]
    return result


@kernel
def _template(
    spelled: Spelled, w: int, length: float, places: KeyPlaces, trail: Trail, limit: float, out: FloatArray
) -> float:
    """Write the resampled template of a word into `out`; returns its mean squared distance from the trail.

    Where the distance exceeds `limit`, the rest of the template is left out, also of the distance.
    """
    letter, (centre, apart), points = spelled.letter, places, trail.points
    first, last = spelled.offsets[w], spelled.offsets[w + 1] - 1
    spacing = length / (len(out) - 1)
    i, along, total = first + 1, 0.0, 0.0
    for axis in range(2):
        out[0, axis] = centre[letter[first], axis]
        total += (points[0, axis] - out[0, axis]) ** 2
    for k in range(1, len(out)):
        if total > limit * len(out):
            break
        wanted, piece = k * spacing, 0.0
        while i <= last:
            piece = apart[letter[i - 1], letter[i]]
            if along + piece >= wanted and piece > 0.0:
                break
            along += piece
            i += 1
        a, b, share = letter[last], letter[last], 0.0
        if i <= last:
            a, b, share = letter[i - 1], letter[i], (wanted - along) / piece
        for axis in range(2):
            out[k, axis] = centre[a, axis] + share * (centre[b, axis] - centre[a, axis])
            total += (points[k, axis] - out[k, axis]) ** 2
    return total / len(out)


@kernel
def warped(a: FloatArray, b: FloatArray, band: int, rows: FloatArray, limit: float) -> float:
    """The distance by dynamic time warping within a band: the least mean squared distance per point of both lines.

    `rows` is memory of two rows of len(a) + 1. The result is infinite if it is more than `limit`.
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
            # a step along both lines counts twice, so that all paths have the same total weight
            now[j] = min(last[j - 1] + 2.0 * squared, last[j] + squared, now[j - 1] + squared)
            least = min(least, now[j])
        if least > limit * 2 * n:
            return np.inf
        if i == 1:
            last[0] = np.inf
    mean: float = rows[n & 1, n] / (2 * n)
    return mean


@kernel
def _decode(
    trail: Trail, places: KeyPlaces, templates: Templates, arrays: FileArrays, state: LongArray, best: Ranked
) -> None:
    """Fill `best` with the word ids for a trail."""
    shortlist = Ranked(np.full(_SHORTLIST, -np.inf), np.full(_SHORTLIST, -1, np.int64))
    template, rows = np.empty_like(trail.points), np.empty((2, len(trail.points) + 1))
    _shorten(trail, places, templates, template, shortlist)
    opened, last = open_lists(arrays, state), len(best.item) - 1
    for n in range(_SHORTLIST):
        w = shortlist.item[n]
        if w < 0:
            break
        likely = log_prob(arrays, opened, templates.word_id[w])
        limit = (likely - best.worth[last]) / trail.sharpness
        if limit > 0.0:
            _template(templates.spelled, w, templates.length[w], places, trail, np.inf, template)
            away = warped(trail.points, template, BAND, rows, limit)
            insert(best, likely - trail.sharpness * away, templates.word_id[w])


@kernel
def _shorten(trail: Trail, places: KeyPlaces, templates: Templates, template: FloatArray, shortlist: Ranked) -> None:
    """Fill the shortlist with the words that are nearest point by point, weighed by their probability."""
    letters, last = len(places.centre), len(shortlist.item) - 1
    for a in range(letters):
        if _distance(places.centre[a], trail.points[0]) > trail.reach:
            continue
        for b in range(letters):
            if _distance(places.centre[b], trail.points[-1]) > trail.reach:
                continue
            for n in range(templates.first[a * letters + b], templates.first[a * letters + b + 1]):
                w = templates.by_ends[n]
                limit = (templates.log_p[w] - shortlist.worth[last]) / trail.sharpness
                if limit <= 0.0:  # at any distance, this word and those after it would not enter the shortlist
                    break
                if _is_about_as_long(templates.length[w], trail.length):
                    away = _template(templates.spelled, w, templates.length[w], places, trail, limit, template)
                    insert(shortlist, templates.log_p[w] - trail.sharpness * away, w)


@kernel
def _distance(a: FloatArray, b: FloatArray) -> float:
    between: float = np.hypot(a[0] - b[0], a[1] - b[1])
    return between


@kernel
def _is_about_as_long(length: float, trail_length: float) -> bool:
    return 0.6 * length - 1.0 <= trail_length <= 1.5 * length + 2.0


@kernel
def _trace(trail: Trail, places: KeyPlaces, spelled: Spelled) -> FloatArray:
    """The score of a trail for each of a few words; −inf where its ends or its length do not fit the word."""
    letter, offsets = spelled
    lengths = _template_lengths(spelled, places)
    result = np.full(len(lengths), -np.inf)
    template, rows = np.empty_like(trail.points), np.empty((2, len(trail.points) + 1))
    for w in range(len(lengths)):
        a, b = places.centre[letter[offsets[w]]], places.centre[letter[offsets[w + 1] - 1]]
        away = max(_distance(a, trail.points[0]), _distance(b, trail.points[-1]))
        if away <= trail.reach and _is_about_as_long(lengths[w], trail.length):
            _template(spelled, w, lengths[w], places, trail, np.inf, template)
            result[w] = -trail.sharpness * warped(trail.points, template, BAND, rows, np.inf)
    return result


def synthesize_trail(
    layout: Layout, word_key: str, rng: np.random.Generator, *, sigma: float = 0.2, overlap: float = 0.4
) -> FloatArray:
    """A human-like trail: minimum-jerk movements from letter to letter that overlap, so that corners are cut.

    The standard deviation of the distance from each letter is `sigma` key widths. Each movement begins before the last
    one ends, by the fraction `overlap` of its duration.
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
