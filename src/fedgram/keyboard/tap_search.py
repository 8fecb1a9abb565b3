"""The search through the lexicon that taps lead: which beginnings of words they may mean.

A hypothesis is a node of the lexicon with a score, the log-likelihood of the taps so far relative to perfect ones. A
tap may be for a child's letter; for nothing (an insertion); for a grandchild's letter, one having been missed (a
deletion); or be swapped with the tap before (a transposition). A hypothesis is worth its score and what the best word
below it promises; after each tap those that are worth most go on.

Most ways to miss or swap a letter lead to nothing that goes on. What plain letters give already says how much a
hypothesis must be worth, and since children come the most promising first, the rest of them need not be looked at.
Paper: §1.1.
"""

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.fgram.bits import Words
from fedgram.fgram.query import log_prob

ROOM = 1 << 14  # hypotheses that are looked at after one tap
_BINS = 512


@kernel
def advance(
    letter: IntArray, child: IntArray, sibling: IntArray, best: FloatArray, nodes: IntArray, score: FloatArray,
    before: IntArray, before_score: FloatArray, cost: FloatArray, last: FloatArray, costs: FloatArray, most: int,
    seen: IntArray, place: IntArray, out: IntArray, out_score: FloatArray, round_: int,
) -> tuple[IntArray, FloatArray]:  # fmt: skip
    """The hypotheses after one more tap, `cost` being what it is worth for each letter and `last` the tap before.

    `seen`, `place`, `out` and `out_score` are memory to work in; no earlier round had this number.
    """
    insertion, deletion, transposition, weight, width = costs[0], costs[1], costs[2], costs[3], costs[4]
    count, nearest, last_nearest = 0, cost.max(), last.max()
    for i in range(len(nodes)):
        count = _keep(nodes[i], score[i] + insertion, out, out_score, count, seen, place, round_)
        c = child[nodes[i]]
        while c >= 0:
            count = _keep(c, score[i] + cost[letter[c]], out, out_score, count, seen, place, round_)
            c = sibling[c]
    top, limit = _limit(out[:count], out_score[:count], best, weight, width, most)
    least = out_score[top] + weight * best[out[top]] - width * (limit + 1) / _BINS  # what more than `most` are worth
    for i in range(len(nodes)):
        hope = score[i] + deletion + nearest
        c = child[nodes[i]]
        while c >= 0 and hope + weight * best[c] >= least:
            d = child[c]
            while d >= 0 and hope + weight * best[d] >= least:
                value = score[i] + deletion + cost[letter[d]]
                if value + weight * best[d] >= least:
                    count = _keep(d, value, out, out_score, count, seen, place, round_)
                d = sibling[d]
            c = sibling[c]
    for i in range(len(before)):
        hope = before_score[i] + transposition + nearest + last_nearest
        c = child[before[i]]
        while c >= 0 and hope + weight * best[c] >= least:
            swapped = before_score[i] + transposition + cost[letter[c]]
            d = child[c]
            while d >= 0 and hope + weight * best[d] >= least:
                value = swapped + last[letter[d]]
                if value + weight * best[d] >= least:
                    count = _keep(d, value, out, out_score, count, seen, place, round_)
                d = sibling[d]
            c = sibling[c]
    return _prune(out[:count], out_score[:count], best, weight, width, most)


@kernel
def _keep(
    node: int,
    score: float,
    out: IntArray,
    out_score: FloatArray,
    count: int,
    seen: IntArray,
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
def _limit(
    nodes: IntArray, score: FloatArray, best: FloatArray, weight: float, width: float, most: int
) -> tuple[int, int]:
    """(the place of the best hypothesis, how many bins below it at most about `most` others are in)."""
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
    return first, limit


@kernel
def _prune(
    nodes: IntArray, score: FloatArray, best: FloatArray, weight: float, width: float, most: int
) -> tuple[IntArray, FloatArray]:
    """The hypotheses within `width` of the best, at most about `most`, the best first."""
    first, limit = _limit(nodes, score, best, weight, width, most)
    top = score[first] + weight * best[nodes[first]]
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
def best_words(
    data: Words, frame: LongArray, tables: FloatArray, lists: LongArray, above: FloatArray, greatest: float,
    child: IntArray, sibling: IntArray, first_word: IntArray, words: IntArray, nodes: IntArray, score: FloatArray,
    costs: FloatArray, worth: FloatArray, best: LongArray,
) -> int:  # fmt: skip
    """Fill `best` with the words that end at the hypotheses or one missed letter behind; returns their number.

    No word of this context has a log-probability above `greatest`.
    """
    deletion, weight, last = costs[1], costs[3], len(best) - 1
    for j in range(len(best)):
        worth[j], best[j] = -np.inf, -1
    for i in range(len(nodes)):
        if score[i] + weight * greatest > worth[last]:
            _offer_words(data, frame, tables, lists, above, first_word, words, nodes[i], score[i], weight, worth, best)
    for i in range(len(nodes)):
        missed = score[i] + deletion
        c = child[nodes[i]]
        while c >= 0 and missed + weight * greatest > worth[last]:
            _offer_words(data, frame, tables, lists, above, first_word, words, c, missed, weight, worth, best)
            c = sibling[c]
    found = 0
    while found < len(best) and best[found] >= 0:
        found += 1
    return found


@kernel
def _offer_words(
    data: Words, frame: LongArray, tables: FloatArray, lists: LongArray, above: FloatArray, first_word: IntArray,
    words: IntArray, node: int, score: float, weight: float, worth: FloatArray, best: LongArray,
) -> None:  # fmt: skip
    """Put the words of a node in their places among the best."""
    last = len(best) - 1
    for w in range(first_word[node], first_word[node + 1]):
        value = score + weight * log_prob(data, frame, tables, lists, above, words[w])
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
