"""Reading `lm.fgram`: the file is mapped into memory and queried by compiled kernels.

Opening a file checks its header and its checksum, and copies nothing but its tables. Words are spelled when they are
needed. A file that passes the checks may still be crafted: its answers are then meaningless, but every kernel stays
inside the file and ends.
"""

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InputError, InvariantError
from fedgram.fgram.frame import (
    F_ALPHABET,
    HEADER_BYTES,
    MAGIC,
    MAX_BYTES,
    MAX_WORD_SYMBOLS,
    FgramFile,
    FileArrays,
    Header,
    make_file,
    read_header,
)
from fedgram.fgram.query import score_sentences, step, top_words, walk
from fedgram.fgram.spelling import FIRST_WORD, Alphabet, find_word, key_ranges, read_alphabet, spell, spell_all
from fedgram.fgram.unpack import Unpacked, score_unpacked, unigram_codes, unpack
from fedgram.text.normalize import last_sentence
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, UNK

MAX_PREDICTIONS = 1000
UNPACK_FROM = 200_000  # words in a batch from which unpacking the model pays
_END = SPECIAL[EOS]
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # load all pages at once, for the checksum, which reads them all


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted word and its natural log-probability."""

    word: str
    log_p: float


def context_words(context: str | Sequence[str]) -> Sequence[str]:
    """The words of a context: those of the last sentence of a text, or the words given, after the last `</s>`."""
    if isinstance(context, str):
        return last_sentence(context)
    if _END not in context:
        return context
    return context[len(context) - list(reversed(context)).index(_END) :]


@dataclass(frozen=True, eq=False)
class PackedModel:
    """An open `lm.fgram`; `open_model` opens one.

    A context is text as it was typed, of which only the last sentence counts, or the words since the beginning of the
    sentence. States are arrays that callers pass back unchanged.
    """

    path: Path
    header: Header
    file: FgramFile
    alphabet: Alphabet

    def __len__(self) -> int:
        return self.header.words

    def __repr__(self) -> str:
        words, size = len(self) - len(SPECIAL), 8 * len(self.file.bits)
        return (
            f"PackedModel(order {self.header.order}, {self.header.ngrams:,} n-grams, {words:,} words, {size:,} bytes)"
        )

    def predict(self, context: str | Sequence[str] = (), k: int = 3, prefix: str = "") -> list[Prediction]:
        """The k most probable words after a context that start with a typed prefix, the most probable first.

        A prefix is compared by keys, so that capitals, accents, apostrophes and hyphens need not be typed.
        """
        word_ids, log_p = self.predict_ids(self.state(context), k, prefix)
        return [Prediction(self.word(w), p) for w, p in zip(word_ids.tolist(), log_p.tolist(), strict=True)]

    def predict_ids(self, state: LongArray, k: int = 3, prefix: str = "") -> tuple[LongArray, FloatArray]:
        """(ids, log p) of the k most probable words in a state."""
        if not 1 <= k <= MAX_PREDICTIONS:
            raise InvariantError(f"k must be between 1 and {MAX_PREDICTIONS}, not {k}")
        ranges = self._completions(prefix) if prefix else self._all_ids
        best_log, best = np.empty(k), np.empty(k, np.int64)
        found = top_words(self.arrays, state, ranges, best_log, best)
        return best[:found], best_log[:found]

    def score(self, sentence: str | Sequence[str]) -> float:
        """The natural logarithm of a sentence's probability, its end included; unknown words are `<unk>`.

        Words are separated by blanks. Without `<unk>` in the vocabulary, unknown words are left out.
        """
        words = sentence.split() if isinstance(sentence, str) else sentence
        word_ids = np.array([self.word_id(word) for word in words], np.int32)
        log_p = score_sentences(self.arrays, word_ids, np.array([0, len(word_ids)]), BOS)
        return float(log_p[np.isfinite(log_p)].sum())

    def log_probs(self, sentences: Ragged) -> FloatArray:
        """Log p of every word of every sentence, each followed by that of its end; −inf for words without probability.

        Sentences are word ids, such as `encode` returns.
        """
        ids: IntArray = sentences.values
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise InvariantError("a word id is outside the model's vocabulary")
        if len(ids) < UNPACK_FROM:
            return score_sentences(self.arrays, ids, sentences.offsets, BOS)
        return score_unpacked(self.unpacked, ids, sentences.offsets, BOS)

    def state(self, context: str | Sequence[str] = ()) -> LongArray:
        """The state after a context; words that are unknown as written are tried in lower case."""
        words = context_words(context)[-self.header.order :]
        return walk(self.arrays, np.array([self.known_id(word) for word in words], np.int32), BOS)

    def step(self, state: LongArray, word: int) -> tuple[float, LongArray]:
        """(log p(word | state), the next state)."""
        after = np.zeros_like(state)
        return step(self.arrays, state, word, after), after

    def encode(self, sentences: Sequence[Sequence[str]]) -> Ragged:
        """The word ids of sentences; that of `<unk>` for unknown words."""
        index = self.index
        return Ragged.from_rows([[index.get(word, UNK) for word in sentence] for sentence in sentences])

    def word(self, word_id: int) -> str:
        """The word with this id."""
        if not 0 <= word_id < len(self):
            raise InvariantError("a word id is outside the model's vocabulary")
        if word_id < FIRST_WORD:
            return SPECIAL[word_id]
        buffer = np.empty(MAX_WORD_SYMBOLS, np.int32)
        n = spell(self.arrays, self.alphabet, word_id, buffer)
        return "".join(map(chr, self.alphabet.point[buffer[:n]].tolist()))

    def word_id(self, word: str) -> int:
        """The id of a word; that of `<unk>` for an unknown one."""
        if word in SPECIAL:
            return SPECIAL.index(word)
        points, known = np.array([ord(c) for c in word], np.int32), self.alphabet.point
        symbols = np.searchsorted(known, points).astype(np.int32)
        if not (symbols < len(known)).all() or (known[symbols] != points).any():
            return UNK
        found = find_word(self.arrays, self.alphabet, self._key(word), symbols)
        return found if found >= 0 else UNK

    def known_id(self, word: str) -> int:
        """The id of a word as it is written, or else in lower case."""
        found = self.word_id(word)
        return found if found != UNK else self.word_id(word.lower())

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words by id."""
        symbols, offsets = spell_all(self.arrays, self.alphabet)
        text = self.alphabet.point[symbols].astype("<u4").tobytes().decode("utf-32-le")
        return (*SPECIAL, *(text[a:b] for a, b in pairwise(offsets.tolist()[FIRST_WORD:])))

    @cached_property
    def index(self) -> dict[str, int]:
        """The id of every word, for encoding much text."""
        return {word: i for i, word in enumerate(self.words)}

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """What one types for each word."""
        return tuple(word.translate(self._letter_keys) for word in self.words)

    def log_unigrams(self) -> FloatArray:
        """The log-probabilities of all words without context; −99 for words without probability."""
        found: FloatArray = self.file.tables[0, unigram_codes(self.arrays)]
        return found

    @cached_property
    def arrays(self) -> FileArrays:
        """The file as kernels take it."""
        return self.file.arrays

    @cached_property
    def unpacked(self) -> Unpacked:
        """The model as a hash table in memory."""
        return unpack(self.file, self.header)

    @cached_property
    def _all_ids(self) -> LongArray:
        """The range of all words but the special ones."""
        return np.array([[FIRST_WORD, len(self)]], np.int64)

    @cached_property
    def _completions(self) -> Callable[[str], LongArray]:
        """The id ranges of the words that start with a prefix, per tier; the same few prefixes are typed often."""
        return lru_cache(maxsize=4096)(partial(self._ranges, is_prefix=True))

    def _ranges(self, text: str, *, is_prefix: bool) -> LongArray:
        """Per tier, the range of ids of the words whose key is that of the text, or starts with it."""
        return key_ranges(self.arrays, self.alphabet, self._key(text), is_prefix)

    def _key(self, text: str) -> IntArray:
        """The code points that one types for a text."""
        typed = text.translate(self._letter_keys)
        return np.frombuffer(typed.encode("utf-32-le", "surrogatepass"), np.int32)

    @cached_property
    def _letter_keys(self) -> dict[int, str]:
        return self.alphabet.letter_keys()


def open_model(path: str | Path, *, verify: bool = True) -> PackedModel:
    """Map a file into memory; refuse one that is damaged, invalid, or of another version.

    `verify=False` skips the checksum of the content.
    """
    path = Path(path)
    with path.open("rb") as file:
        if file.read(8) != MAGIC:
            raise InputError(
                path, "is not an lm.fgram file", remedy="write one with: fedgram phone pack MODEL -o lm.fgram"
            )
        size = os.fstat(file.fileno()).st_size
        if size % 8 or not HEADER_BYTES < size < MAX_BYTES:
            raise InputError(path, "is truncated or too large", remedy="copy it again")
        flags = mmap.MAP_SHARED | (_POPULATE if verify else 0)
        bits = np.frombuffer(mmap.mmap(file.fileno(), size, flags=flags, prot=mmap.PROT_READ), np.uint64)
    header = read_header(bits, path, verify=verify)
    mapped = make_file(header, bits, path)
    return PackedModel(path, header, mapped, read_alphabet(bits, int(mapped.frame[F_ALPHABET]), header.symbols, path))
