"""Reading `lm.fgram`: the file mapped into memory, and compiled questions to it.

Opening a file checks its frame and its checksum and copies nothing but its tables; the words are spelled out when they
are asked for. A file that passes may still have been made to deceive: its answers are then worthless, but every kernel
stays inside the file and comes to an end.
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
from fedgram.fgram.bits import Words
from fedgram.fgram.frame import (
    F_ALPHABET,
    HEADER_BYTES,
    MAGIC,
    MAX_BYTES,
    MAX_WORD_SYMBOLS,
    Header,
    make_frame,
    read_header,
)
from fedgram.fgram.query import score_sentences, step, top_words, walk
from fedgram.fgram.spelling import FIRST_WORD, Alphabet, find_spelling, key_ranges, read_alphabet, spell, spell_all
from fedgram.fgram.unpack import Unpacked, score_unpacked, unigram_codes, unpack
from fedgram.text.vocabulary import BOS, SPECIAL, UNK

MAX_PREDICTIONS = 1000
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # all pages at once, for the checksum that reads them all
UNPACK_FROM = 200_000  # words in a batch from which it pays to spread the model out


@dataclass(frozen=True, slots=True)
class Prediction:
    """A word that may come next."""

    word: str
    log_p: float


@dataclass(frozen=True, eq=False)
class PackedModel:
    """An open `lm.fgram`. States are arrays: pass back what a method gave."""

    path: Path
    header: Header
    data: Words
    frame: LongArray
    tables: FloatArray
    alphabet: Alphabet

    def __len__(self) -> int:
        return self.header.words

    def __repr__(self) -> str:
        return f"PackedModel(order {self.header.order}, {self.header.ngrams} n-grams, {8 * len(self.data)} bytes)"

    def word(self, number: int) -> str:
        """The word of an id."""
        if not 0 <= number < len(self):
            raise InvariantError("a word's id is not one of the model's vocabulary")
        if number < FIRST_WORD:
            return SPECIAL[number]
        buffer = np.empty(MAX_WORD_SYMBOLS + 1, np.int32)
        n = spell(self.data, self.frame, self.alphabet.codes, self.alphabet.by_code, number, buffer)
        return "".join(map(chr, self.alphabet.point[buffer[:n]].tolist()))

    def word_id(self, word: str) -> int:
        """The id of a word, that of `<unk>` for one that is not known."""
        if word in SPECIAL:
            return SPECIAL.index(word)
        points = np.array([ord(c) for c in word], np.int32)
        symbols = np.searchsorted(self.alphabet.point, points).astype(np.int32)
        known = symbols < len(self.alphabet.point)
        if not known.all() or (self.alphabet.point[symbols] != points).any():
            return UNK
        ranges = self._ranges(word, only_prefix=False)
        found = find_spelling(self.data, self.frame, self.alphabet.codes, self.alphabet.by_code, ranges, symbols)
        return found if found >= 0 else UNK

    def _ranges(self, text: str, *, only_prefix: bool) -> LongArray:
        """A range of ids a tier: of the words whose key is the text's, or begins with it."""
        a = self.alphabet
        key = np.frombuffer(text.translate(self._letter_keys).encode("utf-32-le", "surrogatepass"), np.int32)
        return key_ranges(self.data, self.frame, a.codes, a.by_code, a.key, key, only_prefix)

    @cached_property
    def _begun(self) -> Callable[[str], LongArray]:
        """The ranges of words that a prefix begins; few are typed again and again."""
        return lru_cache(maxsize=4096)(partial(self._ranges, only_prefix=True))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words by id."""
        symbols, offsets = spell_all(self.data, self.frame, self.alphabet.codes, self.alphabet.by_code)
        text = self.alphabet.point[symbols].astype("<u4").tobytes().decode("utf-32-le")
        ends = offsets.tolist()
        return (*SPECIAL, *(text[a:b] for a, b in pairwise(ends[FIRST_WORD:])))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """What one types for each word."""
        return tuple(word.translate(self._letter_keys) for word in self.words)

    @cached_property
    def _letter_keys(self) -> dict[int, str]:
        return self.alphabet.letter_keys()

    def log_unigrams(self) -> FloatArray:
        """The log-probabilities of all words without context; −99 for those that nothing reads."""
        found: FloatArray = self.tables[0, unigram_codes(self.data, self.frame)]
        return found

    @cached_property
    def index(self) -> dict[str, int]:
        """The id of every word; for encoding much text."""
        return {word: i for i, word in enumerate(self.words)}

    def encode(self, sentences: Sequence[Sequence[str]]) -> Ragged:
        """Ids of the words of sentences, that of `<unk>` for those not known."""
        index = self.index
        return Ragged.from_rows([[index.get(word, UNK) for word in sentence] for sentence in sentences])

    def state(self, context: Sequence[str] = ()) -> LongArray:
        """The state behind these words at a sentence's beginning; those not known are tried in lower case."""
        ids = np.array([self._known_id(word) for word in context[-self.header.order :]], np.int32)
        return walk(self.data, self.frame, self.tables, ids, BOS)

    def _known_id(self, word: str) -> int:
        """The id of a word as it stands, or else in lower case."""
        found = self.word_id(word)
        return found if found != UNK else self.word_id(word.lower())

    def step(self, state: LongArray, word: int) -> tuple[float, LongArray]:
        """(log p(word | state), the state behind it)."""
        after = np.zeros_like(state)
        return step(self.data, self.frame, self.tables, state, word, after), after

    def log_probs(self, sentences: Ragged) -> FloatArray:
        """Log p of every word of every sentence, each followed by that of its end; −inf where nothing reads it."""
        ids: IntArray = sentences.values
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise InvariantError("a word's id is not one of the model's vocabulary")
        if len(ids) < UNPACK_FROM:
            return score_sentences(self.data, self.frame, self.tables, ids, sentences.offsets, BOS)
        u = self.unpacked
        return score_unpacked(
            u.log_unigram, u.first_context, u.table, u.log_backoff, self.tables, ids, sentences.offsets, BOS
        )

    @cached_property
    def unpacked(self) -> Unpacked:
        """The model spread out in memory."""
        return unpack(self.data, self.frame, self.header, self.tables)

    def predict(self, context: Sequence[str], k: int = 3, prefix: str = "") -> list[Prediction]:
        """The k most probable words behind the context, most probable first, of those that the typed prefix begins.

        A prefix is compared by keys, so that capitals, accents, apostrophes and hyphens need not be typed.
        """
        words, log_p = self.predict_ids(self.state(context), k, prefix)
        return [Prediction(self.word(w), p) for w, p in zip(words.tolist(), log_p.tolist(), strict=True)]

    def predict_ids(self, state: LongArray, k: int = 3, prefix: str = "") -> tuple[LongArray, FloatArray]:
        """(ids, log p) of the k most probable words in a state."""
        if not 1 <= k <= MAX_PREDICTIONS:
            raise InvariantError(f"between 1 and {MAX_PREDICTIONS} words can be predicted, not {k}")
        everything = np.array([[FIRST_WORD, len(self)]], np.int64)
        ranges = self._begun(prefix) if prefix else everything
        best_log, best = np.empty(k), np.empty(k, np.int64)
        found = top_words(self.data, self.frame, self.tables, state, ranges, best_log, best)
        return best[:found], best_log[:found]


def open_model(path: str | Path, *, verify: bool = True) -> PackedModel:
    """Map a file into memory; refuse one that is damaged, of another version, or makes no sense.

    `verify=False` leaves out the checksum of the content.
    """
    path = Path(path)
    with path.open("rb") as file:
        if file.read(8) != MAGIC:
            raise InputError(path, "is not an lm.fgram file", remedy="write one with: fedgram pack MODEL -o lm.fgram")
        size = os.fstat(file.fileno()).st_size
        if size % 8 or not HEADER_BYTES < size < MAX_BYTES:
            raise InputError(path, "is cut short or too large", remedy="copy it again")
        flags = mmap.MAP_SHARED | (_POPULATE if verify else 0)
        data = np.frombuffer(mmap.mmap(file.fileno(), size, flags=flags, prot=mmap.PROT_READ), np.uint64)
    header = read_header(data, path, verify=verify)
    frame, tables = make_frame(header, data, path)
    alphabet = read_alphabet(data, int(frame[F_ALPHABET]), header.symbols, path)
    return PackedModel(path, header, data, frame, tables, alphabet)
