"""How a source of word pieces spells words, and how its samples are read as words.

A source of word pieces spells words with its own tokenizer, or with an inventory of `WordPieces`. Each word has one
code, a sequence of labels. Samples may spell a word in other ways; these count as unknown words, as they do when
counting on B = M ∘ A. Paper: §6.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from fedgram.automata.lexicon import Lexicon, spell_words
from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.distill.source import SourceModel
from fedgram.text.corpus import Corpus
from fedgram.text.vocabulary import SPECIAL, UNK, Vocabulary
from fedgram.text.wordpieces import MARK, WordPieces


@runtime_checkable
class SpellsItself(Protocol):
    """A source of word pieces with a tokenizer of its own."""

    def spell(self, words: Vocabulary) -> Lexicon:
        """The lexicon of a vocabulary over the source's labels."""

    def read_word(self, code: Sequence[int]) -> str:
        """The word that a sequence of labels spells; the last label ends the word."""


def spell(source: SourceModel, pieces: WordPieces | None, words: Vocabulary) -> Lexicon:
    """The lexicon of a vocabulary over a source's labels; `pieces` is None for a source that spells itself."""
    if isinstance(source, SpellsItself):
        return source.spell(words)
    if pieces is None:
        raise FedgramError("the source has no word pieces of its own; pass those that it was trained with")
    return spell_words(words, pieces, source.vocabulary)


def spellable_words(source: SourceModel, pieces: WordPieces | None, words: Vocabulary) -> Vocabulary:
    """The words of a vocabulary that the source can spell; an error if it can spell none."""
    coded = spell(source, pieces, words).word_node >= 0
    known = Vocabulary.of(word for word, has_code in zip(words.words, coded.tolist(), strict=True) if has_code)
    if len(words) > len(known) == len(SPECIAL):
        raise FedgramError(
            "none of the topology's words can be spelled with the source's word pieces; "
            "check that both have the same language and case"
        )
    return known


def read_words(
    source: SourceModel, pieces: WordPieces | None, samples: Ragged, *, min_count: int, max_words: int
) -> Corpus:
    """Samples of word pieces as sentences of words.

    The vocabulary is the at most `max_words` most frequent words that occur at least `min_count` times in their own
    code. All other words are `<unk>`. An incomplete word at the end of a sample is left out.
    """
    ends_word = spell(source, pieces, Vocabulary.of([])).is_final
    code_of, codes, words_in = _distinct_codes(samples, ends_word[samples.values])
    times = Counter(code_of.tolist())
    frequent = sorted((c for c in times if times[c] >= min_count), key=lambda c: (-times[c], codes[c]))
    spelled = {c: _word(source, codes[c]) for c in frequent}
    lexicon = spell(source, pieces, candidates := Vocabulary.of(word for word in spelled.values() if word))
    own = [c for c, word in spelled.items() if word and lexicon.code(candidates[word]) == codes[c]][:max_words]
    word_id = np.full(len(codes), UNK, np.int32)
    word_id[own] = np.arange(len(own)) + len(SPECIAL)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(words_in)])
    return Corpus(Ragged(word_id[code_of], offsets), Vocabulary.of(spelled[c] for c in own))


def _distinct_codes(samples: Ragged, ends_word: BoolArray) -> tuple[IntArray, list[tuple[int, ...]], LongArray]:
    """The number of the code of every word, the codes by number, and the number of words of each sample."""
    last = np.flatnonzero(ends_word)
    sample = np.searchsorted(samples.offsets, last, side="right") - 1
    first = np.maximum(np.concatenate([np.zeros(1, np.int64), last[:-1] + 1])[: len(last)], samples.offsets[sample])
    content, size = samples.values.tobytes(), samples.values.itemsize
    number: dict[bytes, int] = {}
    code_of = np.empty(len(last), np.int32)
    for i, (begin, end) in enumerate(zip(first.tolist(), (last + 1).tolist(), strict=True)):
        code_of[i] = number.setdefault(content[begin * size : end * size], len(number))
    codes = [tuple(np.frombuffer(code, samples.values.dtype).tolist()) for code in number]
    return code_of, codes, np.bincount(sample, minlength=len(samples))


def _word(source: SourceModel, code: tuple[int, ...]) -> str:
    """The word that a code spells, or an empty string if it does not spell a word."""
    if UNK in code:
        return ""
    if isinstance(source, SpellsItself):
        word = source.read_word(code)
    else:
        word = "".join(source.vocabulary.words[x] for x in code).removesuffix(MARK)
    return word if word.split() == [word] and word not in SPECIAL else ""
