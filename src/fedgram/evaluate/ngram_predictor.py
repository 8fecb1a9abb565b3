"""An n-gram model as a predictor: exact ranks along the backoff path, without scoring the whole vocabulary.

The candidates of each state are sorted by weight once. The words that beat a target with the score s = log p(w|q) are
found by following the backoff path. At a state that is reached with the sum `total` of backoff weights, candidates are
read in descending order while total + weight ≥ s. A word that also has an arc at the previous state gets its score
there and is skipped; because L[q] ⊆ L[backoff q], checking the previous state is enough. The search ends when
`SUGGESTIONS` words are found, so a position needs only a few lookups, whatever the size of the vocabulary.

For prefixes, the same candidates are sorted a second time by the rank of their letters, so the candidates with a prefix
are a range. At the unigram state, each prefix has its own list, sorted by weight.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import WeightedArcs, step_on, weighted_arcs
from fedgram.automata.topology import arc_sources, find_arc
from fedgram.core.arrays import FloatArray, IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.evaluate.forms import Prefixes, WordForms
from fedgram.evaluate.predictor import SUGGESTIONS, Judgement
from fedgram.evaluate.typed_text import TypedText, read_as
from fedgram.text.vocabulary import EOS, UNK


class Candidates(NamedTuple):
    """The candidates `first[q]:first[q+1]` of each state q by descending weight, and again by ascending letter rank.

    `listed[list_first[n]:list_first[n+1]]` are the words with prefix n by descending unigram weight `unigram[word]`.
    """

    first: LongArray
    label: IntArray
    weight: FloatArray
    rank: IntArray
    rank_label: IntArray
    rank_weight: FloatArray
    unigram: FloatArray
    list_first: LongArray
    listed: IntArray


class NGramPredictor:
    """Judges text and suggests words with an n-gram model."""

    def __init__(self, model: NGramModel, *, cased: bool) -> None:
        t = model.topology
        unigram = np.full(len(model.vocabulary), -np.inf)
        unigram[t.label[: t.first_arc[1]]] = model.log_weight[: t.first_arc[1]]
        self.model = model
        self.forms = WordForms.of(model.vocabulary, cased=cased, weight=unigram)
        self._arcs = weighted_arcs(model)
        self._candidates = _sort_candidates(model, self.forms, unigram)

    def judge(self, text: TypedText) -> Judgement:
        """Judge a text; see `evaluate.predictor`."""
        variants = self.forms.variants
        log_prob, rank, letters, end_log_prob = _judge(
            self._arcs, self._candidates, self.forms.prefixes, self.forms.form, variants.values, variants.offsets,
            self.model.topology.start, text.read.values, text.read.offsets, text.target, text.letters, SUGGESTIONS,
        )  # fmt: skip
        return Judgement(log_prob, rank, letters, end_log_prob)

    def suggest(self, history: Sequence[str], count: int = SUGGESTIONS) -> list[tuple[str, float]]:
        """The best next words after the start of a sentence, with their probabilities."""
        q = self.model.topology.start
        for word in history:
            q = step_on(self._arcs, q, read_as(word, self.forms))[1]
        words, scores = _best(self._arcs, self._candidates, self.forms.form, q, count)
        names = self.model.vocabulary.words
        return [(names[x], float(np.exp(score))) for x, score in zip(words.tolist(), scores.tolist(), strict=True)]


def _sort_candidates(model: NGramModel, forms: WordForms, unigram: FloatArray) -> Candidates:
    t = model.topology
    kept = np.flatnonzero(forms.candidate[forms.form[t.label]])
    label, weight, source = t.label[kept], model.log_weight[kept], arc_sources(t)[kept]
    first = np.searchsorted(source, np.arange(t.states + 1)).astype(np.int64)
    rank = forms.prefixes.rank[forms.form[label]]
    by_weight = np.lexsort((label, -weight, source))
    by_rank = np.lexsort((rank, source))
    list_first, listed = _list_prefixes(label[by_weight[: first[1]]], forms.form, forms.prefixes)
    return Candidates(
        first, label[by_weight], weight[by_weight], rank[by_rank], label[by_rank], weight[by_rank], unigram, list_first,
        listed,
    )  # fmt: skip


@kernel
def _list_prefixes(ranked: IntArray, form: IntArray, p: Prefixes) -> tuple[LongArray, IntArray]:
    """The words of each node in the order of `ranked`, by descending weight."""
    first = np.zeros(len(p.node_first) + 2, np.int64)
    for x in ranked:
        for i in range(p.first_letter[form[x]], p.first_letter[form[x] + 1]):
            first[p.nodes[i] + 2] += 1
    for n in range(2, len(first)):
        first[n] += first[n - 1]
    listed = np.empty(first[-1], np.int32)
    for x in ranked:
        for i in range(p.first_letter[form[x]], p.first_letter[form[x] + 1]):
            listed[first[p.nodes[i] + 1]] = x
            first[p.nodes[i] + 1] += 1
    return first[:-1].copy(), listed


@kernel
def _judge(
    a: WeightedArcs, c: Candidates, prefixes: Prefixes, form: IntArray, variants: IntArray, first_variant: LongArray,
    start: int, read: IntArray, offsets: LongArray, target: IntArray, lengths: IntArray, k: int,
) -> tuple[FloatArray, IntArray, IntArray, FloatArray]:  # fmt: skip
    log_prob, end_log_prob = np.empty(len(read)), np.empty(len(offsets) - 1)
    rank, letters = np.full(len(read), k, np.int32), lengths.copy()
    found = np.empty(k, np.int32)
    for s in range(len(offsets) - 1):
        q = start
        for i in range(offsets[s], offsets[s + 1]):
            f, after = target[i], -2
            if f < 0:
                log_prob[i] = step_on(a, q, UNK)[0]
            else:
                score, best, p = -np.inf, 0, 0.0
                for v in variants[first_variant[f] : first_variant[f + 1]]:
                    log_p, dest = step_on(a, q, v)
                    p += np.exp(log_p)
                    if log_p > score:
                        score, best = log_p, v
                    if v == read[i]:
                        after = dest
                single = first_variant[f + 1] - first_variant[f] == 1
                log_prob[i] = score if single else np.log(p) if p > 0.0 else -np.inf
                if prefixes.rank[f] >= 0 and score > -np.inf:
                    rank[i] = _rank(a, c, form, q, score, best, k, found)
                    letters[i] = 0 if rank[i] < k else _letters(a, c, prefixes, form, q, f, score, best, k, found)
            q = after if after != -2 else step_on(a, q, read[i])[1]
        end_log_prob[s] = step_on(a, q, EOS)[0]
    return log_prob, rank, letters, end_log_prob


@kernel
def _reads(a: WeightedArcs, q: int, x: int) -> bool:
    return find_arc(a.label, a.first_arc[q], a.first_arc[q + 1], x) >= 0


@kernel
def _is_new(found: IntArray, count: int, f: int) -> bool:
    for i in range(count):  # noqa: SIM110 - a kernel has no generators
        if found[i] == f:
            return False
    return True


@kernel
def _counted(a: WeightedArcs, before: int, x: int, form: IntArray, found: IntArray, count: int) -> int:
    """Count word x and note its form, unless the longer context `before` has the word or its form is counted."""
    if (before >= 0 and _reads(a, before, x)) or not _is_new(found, count, form[x]):
        return count
    found[count] = form[x]
    return count + 1


@kernel
def _rank(
    a: WeightedArcs, c: Candidates, form: IntArray, q: int, score: float, best: int, k: int, found: IntArray
) -> int:
    """The number of forms with a word better than (score, best), at most k."""
    count, total, before = 0, 0.0, -1
    while True:
        for e in range(c.first[q], c.first[q + 1]):
            other, x = total + c.weight[e], c.label[e]
            if other < score:
                break
            if other == score and x >= best:
                continue
            count = _counted(a, before, x, form, found, count)
            if count == k:
                return k
        if a.backoff[q] < 0:
            return count
        total += a.log_backoff[q]
        before, q = q, a.backoff[q]


@kernel
def _letters(
    a: WeightedArcs, c: Candidates, prefixes: Prefixes, form: IntArray, q: int, f: int, score: float, best: int, k: int,
    found: IntArray,
) -> int:  # fmt: skip
    """The number of letters of form f to type until fewer than k better forms start with them; at least 1.

    The search goes from the whole word down to one letter: longer prefixes have shorter lists.
    """
    begin, end = prefixes.first_letter[f], prefixes.first_letter[f + 1]
    for length in range(end - begin, 0, -1):
        node = prefixes.nodes[begin + length - 1]
        if _better_with_prefix(a, c, prefixes, form, q, node, score, best, k, found) == k:
            return int(min(length + 1, end - begin))
    return 1


@kernel
def _better_with_prefix(
    a: WeightedArcs, c: Candidates, prefixes: Prefixes, form: IntArray, q: int, node: int, score: float, best: int,
    k: int, found: IntArray,
) -> int:  # fmt: skip
    """The number of forms with this prefix that have a word better than (score, best), at most k."""
    count, total, before = 0, 0.0, -1
    low, high = prefixes.node_first[node], prefixes.node_end[node]
    while q != 0:
        begin, end = c.first[q], c.first[q + 1]
        for e in range(begin + np.searchsorted(c.rank[begin:end], low), end):
            if c.rank[e] >= high:
                break
            other, x = total + c.rank_weight[e], c.rank_label[e]
            if other < score or (other == score and x >= best):
                continue
            count = _counted(a, before, x, form, found, count)
            if count == k:
                return k
        total += a.log_backoff[q]
        before, q = q, a.backoff[q]
    for i in range(c.list_first[node], c.list_first[node + 1]):
        x = c.listed[i]
        other = total + c.unigram[x]
        if other < score:
            break
        if other == score and x >= best:
            continue
        count = _counted(a, before, x, form, found, count)
        if count == k:
            return k
    return count


@kernel
def _best(a: WeightedArcs, c: Candidates, form: IntArray, q: int, k: int) -> tuple[IntArray, FloatArray]:
    """The k best words of different forms and their scores, best first."""
    words, scores, count = np.empty(k + 1, np.int32), np.empty(k + 1), 0
    total, before = 0.0, -1
    while True:
        for e in range(c.first[q], c.first[q + 1]):
            score, x = total + c.weight[e], c.label[e]
            if count == k and (score < scores[k - 1] or (score == scores[k - 1] and x > words[k - 1])):
                if score < scores[k - 1]:
                    break
                continue
            if before < 0 or not _reads(a, before, x):
                count = _insert(words, scores, count, form, x, score, k)
        if a.backoff[q] < 0:
            return words[:count].copy(), scores[:count].copy()
        total += a.log_backoff[q]
        before, q = q, a.backoff[q]


@kernel
def _insert(words: IntArray, scores: FloatArray, count: int, form: IntArray, x: int, score: float, k: int) -> int:
    """Insert a word among the best, and remove a worse variant of the same form; returns the new number of words."""
    at = count
    while at > 0 and (scores[at - 1] < score or (scores[at - 1] == score and words[at - 1] > x)):
        at -= 1
    for i in range(at):
        if form[words[i]] == form[x]:
            return count
    last = count
    for i in range(at, count):
        if form[words[i]] == form[x]:
            last = i
            break
    for i in range(last, at, -1):
        words[i], scores[i] = words[i - 1], scores[i - 1]
    words[at], scores[at] = x, score
    return min(count + 1, k) if last == count else count
