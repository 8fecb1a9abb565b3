"""The search of a lexicon for the words that taps may mean.

A hypothesis is a node of the lexicon, the prefix that was typed so far, with a score: the log-likelihood of the taps
relative to perfect ones. A tap may be for the letter of a child; for nothing (an insertion); for the letter of a
grandchild, one letter having been missed (a deletion); or swapped with the tap before it (a transposition). The worth
of a hypothesis is its score plus the weighted log-probability of the best word below its node. After each tap, the
hypotheses of the greatest worth are kept.

Most deletions and transpositions lead to hypotheses that are not kept. The hypotheses of plain letters already show
how much worth is needed. Since children are sorted by their best word, the search of a node ends at the first child
that is worth less. Paper: §1.1.
"""

from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray
from fedgram.core.jit import kernel, lean_kernel
from fedgram.fgram.frame import FileArrays
from fedgram.fgram.query import OpenState, log_prob
from fedgram.keyboard.lexicon import Trie
from fedgram.keyboard.ranked import Ranked, insert_once

ROOM = 1 << 14  # hypotheses considered after one tap
_BINS = 512


class TapCosts(NamedTuple):
    """The numbers of `TapOptions` that kernels need."""

    insertion: float
    deletion: float
    transposition: float
    completion: float
    weight: float
    width: float
    hypotheses: int


class Beam(NamedTuple):
    """Hypotheses: nodes of the lexicon, and their scores."""

    node: IntArray
    score: FloatArray


class Workspace(NamedTuple):
    """Memory of the search: `node` and `score` are the hypotheses of one tap.

    Node n is one of them if `seen[n]` is the number of the tap; `place[n]` is then its index.
    """

    seen: IntArray
    place: IntArray
    node: IntArray
    score: FloatArray

    @classmethod
    def of(cls, nodes: int) -> "Workspace":
        """The workspace for a lexicon of so many nodes."""
        return cls(np.zeros(nodes, np.int32), np.zeros(nodes, np.int32), np.empty(ROOM, np.int32), np.empty(ROOM))


class ContextModel(NamedTuple):
    """A packed model in one state; no word has a log-probability above `greatest` in it."""

    arrays: FileArrays
    state: OpenState
    greatest: float


@kernel
def advance(
    trie: Trie, beam: Beam, before: Beam, taps: tuple[FloatArray, FloatArray], costs: TapCosts, work: Workspace,
    number: int,
) -> Beam:  # fmt: skip
    """The hypotheses after one more tap, given those after the last two taps.

    `taps` are the log-likelihoods of the new tap and of the last one for each letter. `number` is the number of the new
    tap, which no earlier call for the same workspace had.
    """
    child, sibling, letter, best, weight = trie.child, trie.sibling, trie.letter, trie.best, costs.weight
    tap, last = taps
    count, nearest, last_nearest = 0, tap.max(), last.max()
    for i in range(len(beam.node)):
        count = _add(work, count, number, beam.node[i], beam.score[i] + costs.insertion)
        c = child[beam.node[i]]
        while c >= 0:
            count = _add(work, count, number, c, beam.score[i] + tap[letter[c]])
            c = sibling[c]
    least = _least_worth(Beam(work.node[:count], work.score[:count]), best, costs)
    for i in range(len(beam.node)):
        missed = beam.score[i] + costs.deletion
        c = child[beam.node[i]]
        while c >= 0 and missed + nearest + weight * best[c] >= least:
            d = child[c]
            while d >= 0 and missed + nearest + weight * best[d] >= least:
                value = missed + tap[letter[d]]
                if value + weight * best[d] >= least:
                    count = _add(work, count, number, d, value)
                d = sibling[d]
            c = sibling[c]
    for i in range(len(before.node)):
        swapped = before.score[i] + costs.transposition
        c = child[before.node[i]]
        while c >= 0 and swapped + nearest + last_nearest + weight * best[c] >= least:
            d = child[c]
            while d >= 0 and swapped + nearest + last_nearest + weight * best[d] >= least:
                value = swapped + tap[letter[c]] + last[letter[d]]
                if value + weight * best[d] >= least:
                    count = _add(work, count, number, d, value)
                d = sibling[d]
            c = sibling[c]
    return _prune(Beam(work.node[:count], work.score[:count]), best, costs)


@lean_kernel
def _add(work: Workspace, count: int, number: int, node: int, score: float) -> int:
    """Add a hypothesis to the `count` of this tap, or improve the score of one; returns the new count."""
    if work.seen[node] == number:
        work.score[work.place[node]] = max(work.score[work.place[node]], score)
        return count
    if count >= len(work.node):
        return count
    work.seen[node], work.place[node] = number, count
    work.node[count], work.score[count] = node, score
    return count + 1


@kernel
def _cutoff(beam: Beam, best: FloatArray, costs: TapCosts) -> tuple[int, int]:
    """(the index of the best hypothesis, the number of bins below it to keep).

    A bin is 1/512 of `width`. The bins to keep hold at most `hypotheses` in all.
    """
    top, first = -np.inf, 0
    for i in range(len(beam.node)):
        worth = beam.score[i] + costs.weight * best[beam.node[i]]
        if worth > top:
            top, first = worth, i
    bins = np.zeros(_BINS + 1, np.int64)
    for i in range(len(beam.node)):
        gap = (top - beam.score[i] - costs.weight * best[beam.node[i]]) / costs.width * _BINS
        bins[int(min(gap, _BINS))] += 1
    kept, total = 0, 0
    while kept < _BINS and total + bins[kept] <= costs.hypotheses:
        total += bins[kept]
        kept += 1
    return first, kept


@kernel
def _least_worth(beam: Beam, best: FloatArray, costs: TapCosts) -> float:
    """A worth that enough hypotheses exceed: those that are worth less will not be kept."""
    first, kept = _cutoff(beam, best, costs)
    top = beam.score[first] + costs.weight * best[beam.node[first]]
    least: float = top - costs.width * (kept + 1) / _BINS
    return least


@kernel
def _prune(beam: Beam, best: FloatArray, costs: TapCosts) -> Beam:
    """The hypotheses within `width` of the best, at most about `hypotheses`; the best is first."""
    first, bins = _cutoff(beam, best, costs)
    top = beam.score[first] + costs.weight * best[beam.node[first]]
    node, score = np.empty(len(beam.node), np.int32), np.empty(len(beam.node))
    node[0], score[0] = beam.node[first], beam.score[first]
    count = 1
    for i in range(len(beam.node)):
        gap = (top - beam.score[i] - costs.weight * best[beam.node[i]]) / costs.width * _BINS
        if i != first and gap < bins:
            node[count], score[count] = beam.node[i], beam.score[i]
            count += 1
    return Beam(node[:count].copy(), score[:count].copy())


@lean_kernel
def best_words(model: ContextModel, trie: Trie, beam: Beam, costs: TapCosts, best: Ranked) -> None:
    """Fill `best` with the words that end at the hypotheses, or one missed letter after them."""
    greatest, last = costs.weight * model.greatest, len(best.item) - 1
    for i in range(len(beam.node)):
        if beam.score[i] + greatest > best.worth[last]:
            _offer_words(model, trie, beam.node[i], beam.score[i], costs.weight, best)
    for i in range(len(beam.node)):
        missed = beam.score[i] + costs.deletion
        c = trie.child[beam.node[i]]
        while c >= 0 and missed + greatest > best.worth[last]:
            _offer_words(model, trie, c, missed, costs.weight, best)
            c = trie.sibling[c]


@lean_kernel
def _offer_words(model: ContextModel, trie: Trie, node: int, score: float, weight: float, best: Ranked) -> None:
    """Offer the words that end at a node."""
    for w in range(trie.first_word[node], trie.first_word[node + 1]):
        word_id = trie.word_id[w]
        insert_once(best, score + weight * log_prob(model.arrays, model.state, word_id), word_id)
