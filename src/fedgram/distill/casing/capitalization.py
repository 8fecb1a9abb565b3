"""Capitalisation: cased sentences and cased probabilities from uncased ones, with a cased n-gram model A_W.

People type capitals carelessly, so the network is trained on lower-case words. A_W over the cased vocabulary Δ restores
the capitals, by four rules:

1. Best path (`best_casing`): a sentence gets the casing that is most probable under A_W.
2. Case-aware backoff (`case_backoff`): in this search, the backoff weights depend on the case of the word.
3. Unknown words (`word_endings`): a word that Δ lacks is capitalised by its ending and its context.
4. First words: if A_W begins its sentences with capitals, so does the result.

The last three are our own. They help where A_W has seen too little text. Probabilities (`case_ratios`) are those of A_W
itself: the network's probability of a lower-case word is split over its variants by the ratio r(y|q). Paper: §5.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import weighted_arcs
from fedgram.core.arrays import ByteArray, FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.distill.casing.best_casing import CasedModel, best_casings
from fedgram.distill.casing.case_backoff import split_backoffs
from fedgram.distill.casing.case_classes import CaseClasses, capitalized_form
from fedgram.distill.casing.case_ratios import pair_log_ratios, update_ratios
from fedgram.distill.casing.word_endings import capital_logit, suffix_logits
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, UNK

_START_SHARE = 0.9  # the share of capitals after <s> from which a model begins its sentences with capitals


class Capitalizer:
    """Restores capitals with a cased n-gram model A_W.

    The model should have n-grams that begin with `<s>`: they distinguish the capital of a first word from that of a
    name. With `rules=False` only the best path of A_W counts, and unknown words stay in lower case.
    """

    def __init__(self, model: NGramModel, *, rules: bool = True) -> None:
        self.model = model
        self.rules = rules
        self.classes = CaseClasses.of(model.vocabulary)
        self._arcs, self._class_arrays = weighted_arcs(model), self.classes.arrays
        every_word = np.arange(len(model.vocabulary), dtype=np.int32)
        self._unigram_ratio = np.exp(self.case_log_ratios(np.zeros_like(every_word), every_word))
        is_capital = np.array([word[:1].isupper() for word in model.vocabulary.words], np.uint8)
        split = split_backoffs(model, is_capital)
        others = self._arcs._replace(log_backoff=model.log_backoff + split.others * rules)
        capitals = self._arcs._replace(log_backoff=model.log_backoff + split.capitals * rules)
        self._search = CasedModel((others, capitals), is_capital, self._class_arrays, model.topology.start)
        self._context_logit = split.logit
        self._capital_starts = rules and _starts_with_capitals(model, is_capital)

    def capitalize(self, sentences: Ragged) -> Ragged:
        """The most probable casing of every sentence, its end included.

        Before the rule for first words, no casing of a sentence has a greater probability under A_W with case-aware
        backoff; among equals, the choice is deterministic. The rule for first words only uses words of Δ.

        Args:
            sentences: Ids of `classes.uncased`, without `<s>` and `</s>`. `<unk>` stays. A model without `<unk>`
                continues from the empty history after it.

        Returns:
            As many ids of the model's vocabulary.
        """
        ids = sentences.values
        _check_range(ids, len(self.classes.uncased), "an uncased word")
        if bool(np.any((ids == BOS) | (ids == EOS))):
            raise InvariantError("sentences to capitalise must not contain <s> or </s>")
        cased, _ = best_casings(self._search, ids, sentences.offsets)
        first = self._first_words(sentences.offsets)
        cased[first] = self._capitalized_id[cased[first]]
        return Ragged(cased, sentences.offsets)

    @cached_property
    def _capitalized_id(self) -> IntArray:
        """The id of each word with a capital; a word of which Δ has no such form stays as it is."""
        index, words = self.model.vocabulary.index, self.model.vocabulary.words
        return np.array([index.get(capitalized_form(word), i) for i, word in enumerate(words)], np.int32)

    def capitalize_words(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The most probable casing of sentences of words; the capitals that they have are ignored.

        The model reads `<unk>` for a word that it does not know in any casing, or continues from the empty history if
        it has no `<unk>`.
        """
        index, words = self.classes.uncased.index, self.model.vocabulary.words
        lower = [uncase(word) for sentence in sentences for word in sentence]
        ids = np.fromiter((index.get(word, UNK) for word in lower), np.int32, len(lower))
        ids[ids < len(SPECIAL)] = UNK
        ends = np.cumsum([0, *(len(sentence) for sentence in sentences)], dtype=np.int64)
        cased, before = best_casings(self._search, ids, ends)
        result = [words[y] for y in cased.tolist()]
        for i in np.flatnonzero(ids == UNK).tolist():
            result[i] = self._unknown_word(lower[i], int(before[i]))
        for i in self._first_words(ends):
            result[i] = capitalized_form(result[i])
        return [result[ends[i] : ends[i + 1]] for i in range(len(sentences))]

    def _unknown_word(self, word: str, state: int) -> str:
        """A lower-case word that Δ lacks, with or without a capital, by its ending and the state before it."""
        logit = capital_logit(self._suffix_logits, word) + self._context_logit[state]
        return capitalized_form(word) if logit > 0.0 else word

    @cached_property
    def _suffix_logits(self) -> dict[str, float]:
        """From the words that never begin a sentence in an n-gram: their capitals are not due to their position."""
        if not self.rules:
            return {"": -np.inf}
        t, words = self.model.topology, self.model.vocabulary.words
        first = t.label[t.first_arc[t.start] : t.first_arc[t.start + 1]] if t.start else t.label[:0]
        return suffix_logits(words[y] for y in np.setdiff1d(np.arange(len(SPECIAL), len(words)), first))

    def _first_words(self, offsets: LongArray) -> LongArray:
        """The positions of the first words of sentences, if they are to be capitalised."""
        first: LongArray = offsets[:-1][offsets[:-1] < offsets[1:]]
        return first if self._capital_starts else first[:0]

    def case_ratios(self, state: int) -> FloatArray:
        """r(y|q) for every word y of Δ, at a state q of A_W; see `distill.casing.case_ratios`.

        Guarantees: the ratios of a class sum to 1 ± 1e-12, and that of a word without other variants is exactly 1.
        """
        _check_range(np.array([state], np.int32), self.model.topology.states, "a state")
        ratio = self._unigram_ratio.copy()
        update_ratios(self._arcs, self._class_arrays, state, ratio)
        return ratio

    def case_log_ratios(self, states: IntArray, word_ids: IntArray) -> FloatArray:
        """Log r(y|q) for pairs of a state q of A_W and the id of a cased word y."""
        if states.shape != word_ids.shape or states.ndim != 1:
            raise InvariantError("case ratios: states and word ids must be two lists of the same length")
        _check_range(states, self.model.topology.states, "a state")
        _check_range(word_ids, len(self.model.vocabulary), "a cased word")
        return pair_log_ratios(self._arcs, self._class_arrays, states, word_ids)

    def __repr__(self) -> str:
        return f"Capitalizer({self.model}, {self.classes})"


def _starts_with_capitals(model: NGramModel, is_capital: ByteArray) -> bool:
    """Whether the words that the model reads after `<s>` are almost always capitalised."""
    t = model.topology
    first = slice(*t.first_arc[t.start : t.start + 2])
    p = np.exp(model.log_weight[first])
    return bool(p @ is_capital[t.label[first]] > _START_SHARE * p.sum())


def _check_range(ids: IntArray, end: int, what: str) -> None:
    if len(ids) and not (ids.min() >= 0 and ids.max() < end):
        raise InvariantError(f"a number is not the id of {what}; ids are between 0 and {end - 1}")


def capitalize_unigrams(frequency: Mapping[str, float], capitalizer: Capitalizer) -> dict[str, float]:
    """Split the frequency of each uncased word over its cased variants; the sum of all frequencies stays the same.

    The split follows the ratio of the unigram weights. In a Kneser-Ney or KL-minimal model these are backoff weights,
    which count a word where no longer n-gram explains it. The capitals of first words are explained by n-grams with
    `<s>`, so they hardly count there. In a model of plain relative frequencies (Katz, Witten-Bell, absolute) they count
    in full. A word that the model does not know is unchanged.
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
