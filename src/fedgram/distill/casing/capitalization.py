"""Capitalisation: cased sentences and cased probabilities from uncased ones, with a cased n-gram model A_W.

People type with careless capitals, so the network is trained on lower-case words x. For a cased word y of the
vocabulary Δ, u(y) is its lower-case form; the words with one u(y) are the case variants of a class, as york and York.
`CaseClasses` numbers the classes: `uncased` is the vocabulary of all u(y), `uncased_id[y]` is the id of u(y), and row u
of `variants` holds the ids of the class's words, rising. `<unk>`, `<s>` and `</s>` are classes of their own.

A sentence gets the capitals of the best path of  acceptor(x̄) ∘ V ∘ A_W,  where V rewrites u(y) to y: a Viterbi search
over the states of A_W. A hypothesis is a row of a lattice: the state it is in, its last word, and the hypothesis that
it extends. Hypotheses in one state have one future, so only the best of them is kept, and no beam is needed.

Three rules of our own help where A_W has seen too little:

- Case-aware backoff: the words that a state reads tell how many of those that it does not read are capitalised, so
  that after *University of* an unexpected word is a name; see `_split_backoffs`.
- Unknown words: one that Δ lacks is capitalised by its last letters, as words of Δ that end so are, and by its
  context, as case-aware backoff has it.
- First words: if A_W begins its sentences with capitals, so does the result, whatever the best path read.

p_cap is A_W itself, without the rules; a class's share of the network's probability is split by the ratio r(y|q).
Paper: §5.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedgram.automata.model import MIN_LOG, NGramModel
from fedgram.automata.scoring import step
from fedgram.automata.topology import backoff_arcs
from fedgram.core.arrays import ByteArray, FloatArray, IntArray, LongArray, Ragged, frozen
from fedgram.core.errors import InvariantError
from fedgram.core.jit import kernel
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, UNK, Vocabulary

# first_arc, label, dest, backoff, log_weight, log_backoff: the model as `step` takes it
Automaton = tuple[LongArray, IntArray, IntArray, IntArray, FloatArray, FloatArray]

_STATE, _WORD, _PREVIOUS = 0, 1, 2  # the columns of a lattice
_LATTICE_ROWS = 1024
# Tuned on sentences 5, 15, 25 … of the supplements; the tests measure on sentences 0, 10, 20 …
_BACKOFF_PRIOR = 10.0  # the share of capitals by a state's backoff counts like so many words that the state reads
_SUFFIX_LETTERS, _SUFFIX_PRIOR = 4, 5.0  # and that by a shorter suffix like so many words with the longer one
_START_SHARE = 0.9  # of capitals after <s>, from which on the model is taken to begin its sentences with them


@dataclass(frozen=True, slots=True, eq=False)
class CaseClasses:
    """The words of a cased vocabulary by their lower-case form; see the module for the representation.

    >>> classes = CaseClasses.of(Vocabulary.of(["new", "York", "New"]))
    >>> classes.uncased.words[3:], classes.variants[classes.uncased["new"]].tolist()
    (('new', 'york'), [3, 5])
    """

    cased: Vocabulary
    uncased: Vocabulary
    uncased_id: IntArray
    variants: Ragged

    @classmethod
    def of(cls, cased: Vocabulary) -> "CaseClasses":
        """The classes of a vocabulary, in the order in which their first words stand in it."""
        lower = [uncase(word) for word in cased.words]
        uncased = Vocabulary.of(lower)
        uncased_id = np.array([uncased.index[word] for word in lower], np.int32)
        sizes = np.bincount(uncased_id, minlength=len(uncased))
        members = np.argsort(uncased_id, kind="stable").astype(np.int32)
        variants = Ragged(frozen(members), frozen(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)))
        return cls(cased, uncased, frozen(uncased_id), variants)

    @property
    def ambiguous(self) -> int:
        """Number of classes with more than one word."""
        return int(np.sum(np.diff(self.variants.offsets) > 1))

    def __repr__(self) -> str:
        return f"CaseClasses({len(self.cased)} words in {len(self.uncased)} classes, {self.ambiguous} ambiguous)"


def capitalized_form(word: str) -> str:
    """A lower-case word with a capital; a word with a capital, or without a letter for one, stays.

    >>> capitalized_form("zürich"), capitalized_form("iPhone"), capitalized_form("2nd")
    ('Zürich', 'iPhone', '2nd')
    """
    capitalized = word.capitalize()
    return capitalized if word == word.lower() == capitalized.lower() else word


def suffix_logits(words: Iterable[str]) -> dict[str, float]:
    """Log odds of a capital for every suffix of at most four letters of the words.

    The prior of a suffix's share of capitals is that of the next shorter one, and 1/2 for the empty one.

    >>> logits = suffix_logits(["Anton", "Milton", "nation"])
    >>> logits["ton"] > logits["on"] > logits["ion"]
    True
    """
    total: Counter[str] = Counter()
    capitals: Counter[str] = Counter()
    for word in words:
        suffixes = _suffixes(word.lower())
        total.update(suffixes)
        if word[:1].isupper():
            capitals.update(suffixes)
    share = {"": 0.5}
    for suffix in sorted(total, key=len):
        share[suffix] = (capitals[suffix] + _SUFFIX_PRIOR * share[suffix[1:]]) / (total[suffix] + _SUFFIX_PRIOR)
    return {suffix: float(np.log(p / (1.0 - p))) for suffix, p in share.items()}


def _suffixes(word: str) -> list[str]:
    """The longest first, the empty one last."""
    return [word[i:] for i in range(max(0, len(word) - _SUFFIX_LETTERS), len(word) + 1)]


class Capitalizer:
    """Puts capitals where a cased n-gram model A_W expects them.

    The model should hold n-grams that begin with `<s>`: they tell the capital of a sentence's first word from that of
    a name. With `rules=False` the result is the best path of A_W itself, and unknown words come back in lower case.
    """

    def __init__(self, model: NGramModel, *, rules: bool = True) -> None:
        t = model.topology
        self.model = model
        self.rules = rules
        self.classes = CaseClasses.of(model.vocabulary)
        self._automaton: Automaton = (t.first_arc, t.label, t.dest, t.backoff, model.log_weight, model.log_backoff)
        self._variants = self.classes.variants.offsets, self.classes.variants.values
        every_word = np.arange(len(model.vocabulary), dtype=np.int32)
        self._unigram_ratio = np.exp(self.case_log_ratios(np.zeros_like(every_word), every_word))
        capital = np.array([word[:1].isupper() for word in model.vocabulary.words], np.uint8)
        shift, self._context_logit = _split_backoffs(self._automaton, backoff_arcs(t), capital)
        first = slice(*t.first_arc[t.start : t.start + 2])
        p = np.exp(model.log_weight[first])
        self._capital_starts = rules and bool(p @ capital[t.label[first]] > _START_SHARE * p.sum())
        shape, (others, capitals) = self._automaton[:5], model.log_backoff + shift * rules
        self._search = ((*shape, others), (*shape, capitals)), capital, t.start, *self._variants

    def capitalize(self, sentences: Ragged) -> Ragged:
        """The most probable casing of every sentence, its end included.

        No casing of the sentence has a greater probability, under A_W with case-aware backoff, than the result before
        the rule for first words, which keeps to words of Δ; among equals the choice is fixed.

        Args:
            sentences: ids of `classes.uncased`, without `<s>` and `</s>`. `<unk>` stays; a model without `<unk>` reads
                on from the empty history.

        Returns:
            As many ids of the model's vocabulary.
        """
        ids, vocabulary = sentences.values, self.model.vocabulary
        _check_range(ids, len(self.classes.uncased), "an uncased word")
        if bool(np.any((ids == BOS) | (ids == EOS))):
            raise InvariantError("sentences to capitalise may not hold <s> or </s>")
        cased, _ = _best_casings(*self._search, ids, sentences.offsets)
        for i in self._first_words(sentences.offsets):
            cased[i] = vocabulary.index.get(capitalized_form(vocabulary.words[cased[i]]), cased[i])
        return Ragged(cased, sentences.offsets)

    def capitalize_words(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The most probable casing of sentences of words, whatever their capitals were.

        A word that the model does not know in any casing is capitalised by the module's rules. The model reads `<unk>`
        for it, or reads on from the empty history if it has none.
        """
        index, words = self.classes.uncased.index, self.model.vocabulary.words
        lower = [uncase(word) for sentence in sentences for word in sentence]
        found = np.fromiter((index.get(word, UNK) for word in lower), np.int32, len(lower))
        found[found < len(SPECIAL)] = UNK
        ends = np.cumsum([0, *(len(sentence) for sentence in sentences)], dtype=np.int64)
        cased, before = _best_casings(*self._search, found, ends)
        flat = [words[y] for y in cased.tolist()]
        for i in np.flatnonzero(found == UNK).tolist():
            suffix = next(suffix for suffix in _suffixes(lower[i]) if suffix in self._suffix_logit)
            logit = self._suffix_logit[suffix] + self._context_logit[before[i]]
            flat[i] = capitalized_form(lower[i]) if logit > 0.0 else lower[i]
        for i in self._first_words(ends):
            flat[i] = capitalized_form(flat[i])
        return [flat[ends[i] : ends[i + 1]] for i in range(len(sentences))]

    def _first_words(self, offsets: LongArray) -> list[int]:
        """Where the sentences begin, if their first words are to have capitals."""
        first: list[int] = offsets[:-1][offsets[:-1] < offsets[1:]].tolist()
        return first if self._capital_starts else []

    @cached_property
    def _suffix_logit(self) -> dict[str, float]:
        """Of the words that no n-gram puts at the start of a sentence: their capitals are their own."""
        if not self.rules:
            return {"": -np.inf}
        t, words = self.model.topology, self.model.vocabulary.words
        first = t.label[t.first_arc[t.start] : t.first_arc[t.start + 1]] if t.start else t.label[:0]
        return suffix_logits(words[y] for y in np.setdiff1d(np.arange(len(SPECIAL), len(words)), first))

    def case_ratios(self, state: int) -> FloatArray:
        """r(y|q) = p_cap(y|q) / Σ_{y': u(y')=u(y)} p_cap(y'|q) for every word y of Δ, at a state q of A_W.

        Guarantees: the ratios of a class sum to 1 ± 1e-12, and that of a word without variants is exactly 1. Where the
        class has no probability (no variant has more than the effective zero e^-99), the ratio of the unigrams holds;
        where they have none, every variant gets the same.
        """
        _check_range(np.array([state], np.int32), self.model.topology.states, "a state")
        ratio = self._unigram_ratio.copy()
        _update_ratios(self._automaton, state, *self._variants, self.classes.uncased_id, ratio)
        return ratio

    def case_log_ratios(self, states: IntArray, words: IntArray) -> FloatArray:
        """Log r(y|q) for pairs of a state q of A_W and a cased word y; see `case_ratios`."""
        if states.shape != words.shape or states.ndim != 1:
            raise InvariantError("case ratios: states and words must be two lists of one length")
        _check_range(states, self.model.topology.states, "a state")
        _check_range(words, len(self.model.vocabulary), "a cased word")
        return _pair_log_ratios(self._automaton, *self._variants, self.classes.uncased_id, states, words)

    def __repr__(self) -> str:
        return f"Capitalizer({self.model}, {self.classes})"


def capitalize_unigrams(frequency: Mapping[str, float], capitalizer: Capitalizer) -> dict[str, float]:
    """Split the frequency of each uncased word over its cased variants; the sum of all frequencies stays.

    The split follows the ratio of the unigram weights. In a Kneser-Ney or KL-minimal model these are backoff weights,
    which count a word where no longer n-gram explains it; the capitals of first words, which n-grams with `<s>`
    explain, hardly enter. In a model of plain relative frequencies (Katz, Witten-Bell, absolute) they enter in full.
    A word that the model does not know stays as it is.
    """
    classes, ratio = capitalizer.classes, capitalizer.case_ratios(0)
    result: dict[str, float] = {}
    for word, amount in frequency.items():
        if word not in classes.uncased:
            result[word] = result.get(word, 0.0) + amount
            continue
        for y in classes.variants[classes.uncased[word]].tolist():
            cased = classes.cased.words[y]
            result[cased] = result.get(cased, 0.0) + amount * float(ratio[y])
    return result


def _check_range(ids: IntArray, end: int, what: str) -> None:
    if len(ids) and not (ids.min() >= 0 and ids.max() < end):
        raise InvariantError(f"a number is not the id of {what}: they end at {end - 1}")


@kernel
def _split_backoffs(automaton: Automaton, lower: IntArray, capital: ByteArray) -> tuple[FloatArray, FloatArray]:
    """Case-aware backoff: split what a state q leaves to its backoff b into capitalised and other words.

    By b, the share of capitals in the words that q does not read is s_q. The n words that q reads, n' of them
    capitalised, make it t_q. For other words w_q[φ] is multiplied by (1 - t_q) / (1 - s_q), for capitalised ones by
    t_q / s_q, so that all probabilities still sum to 1; m_q is that of all capitalised words (Σ' is over these):

        s_q = (m_b - Σ'_{y∈L[q]} w_b[y]) / r_q,  r_q = 1 - Σ_{y∈L[q]} w_b[y],  t_q = (n' + 10 s_q) / (n + 10),
        m_q = Σ'_{y∈L[q]} w_q[y] + w_q[φ] r_q t_q.

    Where only one case is left to back off to, t_q = s_q. Returns what to add to log w[φ] for other and for capitalised
    words, and by how much all backoffs from a state together raise the log odds of a capital.
    """
    first_arc, label, _, backoff, log_weight, log_backoff = automaton
    m, shift, logit = np.zeros(len(backoff)), np.zeros((2, len(backoff))), np.zeros(len(backoff))
    for e in range(first_arc[1]):
        m[0] += np.exp(log_weight[e]) * capital[label[e]]
    for q in range(1, len(backoff)):
        b = backoff[q]
        rest, rest_capitals, n_capitals = 1.0, m[b], 0.0
        for e in range(first_arc[q], first_arc[q + 1]):
            is_capital, w_b = capital[label[e]], np.exp(log_weight[lower[e]])
            m[q] += np.exp(log_weight[e]) * is_capital
            n_capitals += is_capital
            rest -= w_b
            rest_capitals -= w_b * is_capital
        if min(rest_capitals, rest - rest_capitals) > 1e-6:
            s = rest_capitals / rest
            t = (n_capitals + _BACKOFF_PRIOR * s) / (first_arc[q + 1] - first_arc[q] + _BACKOFF_PRIOR)
            shift[0, q], shift[1, q] = np.log((1.0 - t) / (1.0 - s)), np.log(t / s)
            rest_capitals = rest * t
        m[q] += np.exp(log_backoff[q]) * rest_capitals
        logit[q] = logit[b] + shift[1, q] - shift[0, q]
    return shift, logit


@kernel
def _best_casings(
    automata: tuple[Automaton, Automaton], capital: ByteArray, start: int, first_variant: LongArray,
    variant: IntArray, values: IntArray, offsets: LongArray,
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """The Viterbi search, sentence by sentence; the rows `begin:end` of the lattice are the newest hypotheses."""
    result, before = np.empty(len(values), np.int32), np.empty(len(values), np.int32)
    row_of_state = np.empty(len(automata[0][3]), np.int64)
    lattice = np.empty((_LATTICE_ROWS, 3), np.int32)
    score = np.empty(_LATTICE_ROWS)
    for s in range(len(offsets) - 1):
        lattice[0, _STATE], score[0] = start, 0.0
        begin, end = 0, 1
        for i in range(offsets[s], offsets[s + 1]):
            variants = variant[first_variant[values[i]] : first_variant[values[i] + 1]]
            most = end + (end - begin) * len(variants)
            if most > len(score):
                lattice = np.concatenate((lattice[:end], np.empty((2 * most, 3), np.int32)))
                score = np.concatenate((score[:end], np.empty(2 * most)))
            begin, end = end, _extend(automata, capital, lattice, score, begin, end, variants, row_of_state)
        row = _best_end(automata[0], lattice, score, begin, end)
        for i in range(offsets[s + 1] - 1, offsets[s] - 1, -1):
            result[i] = lattice[row, _WORD]
            row = lattice[row, _PREVIOUS]
            before[i] = lattice[row, _STATE]
    return result, before


@kernel
def _extend(
    automata: tuple[Automaton, Automaton], capital: ByteArray, lattice: IntArray, score: FloatArray, begin: int,
    end: int, variants: IntArray, row_of_state: LongArray,
) -> int:  # fmt: skip
    """Read one more word in each of its variants, with one new row for each state reached; returns their end.

    `row_of_state` is never cleared: an entry counts if it names a new row that is in the state.
    """
    new = end
    for h in range(begin, end):
        for y in variants:
            log_p, q = step(*automata[capital[y]], lattice[h, _STATE], y)
            total = score[h] + (log_p if log_p > -np.inf else 0.0)
            row = row_of_state[q]
            if not (end <= row < new and lattice[row, _STATE] == q):
                row = new
                row_of_state[q] = new
                new += 1
            elif total <= score[row]:
                continue
            lattice[row, _STATE], lattice[row, _WORD], lattice[row, _PREVIOUS] = q, y, h
            score[row] = total
    return new


@kernel
def _best_end(automaton: Automaton, lattice: IntArray, score: FloatArray, begin: int, end: int) -> int:
    """The hypothesis that is best once the sentence end is read."""
    best, best_total = begin, -np.inf
    for h in range(begin, end):
        log_p, _ = step(*automaton, lattice[h, _STATE], EOS)
        if score[h] + log_p > best_total:
            best, best_total = h, score[h] + log_p
    return best


@kernel
def _class_log_ratios(automaton: Automaton, q: int, variants: IntArray) -> FloatArray:
    """Log r(y|q) of the words of one class: at q, else at the unigrams, else all the same."""
    log_p = np.array([step(*automaton, q, y)[0] for y in variants])
    if log_p.max() <= MIN_LOG:
        log_p = np.array([step(*automaton, 0, y)[0] for y in variants])
    if log_p.max() <= MIN_LOG:
        log_p[:] = 0.0
    log_p -= log_p.max()
    log_p -= np.log(np.exp(log_p).sum())
    return log_p


@kernel
def _pair_log_ratios(
    automaton: Automaton, first_variant: LongArray, variant: IntArray, uncased_id: IntArray, states: IntArray,
    words: IntArray,
) -> FloatArray:  # fmt: skip
    result = np.zeros(len(words))
    for i in range(len(words)):
        u = uncased_id[words[i]]
        variants = variant[first_variant[u] : first_variant[u + 1]]
        if len(variants) > 1:
            result[i] = _class_log_ratios(automaton, states[i], variants)[np.searchsorted(variants, words[i])]
    return result


@kernel
def _update_ratios(
    automaton: Automaton, q: int, first_variant: LongArray, variant: IntArray, uncased_id: IntArray, ratio: FloatArray
) -> None:
    """Turn the unigrams' ratios into those of q. Only classes that q or a state it backs off to reads can differ."""
    first_arc, label, _, backoff, _, _ = automaton
    at = q
    while at > 0:
        for e in range(first_arc[at], first_arc[at + 1]):
            u = uncased_id[label[e]]
            variants = variant[first_variant[u] : first_variant[u + 1]]
            if len(variants) > 1:
                ratio[variants] = np.exp(_class_log_ratios(automaton, q, variants))
        at = backoff[at]
