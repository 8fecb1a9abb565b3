"""Writing `lm.fgram`: an n-gram model in a few megabytes, words included.

Words get new ids. The 512 words that follow the most contexts form the first tier, the next few thousand the second,
and so on, because a set of numbers takes fewer bits the fewer numbers there are to choose from. Within a tier, ids rise
with the words' keys. The words that can follow a context are a sorted set with one code per word (`sets`). Beyond
order 2, the set holds positions in the list of the context without its first word. The n-grams of each order are
numbered in the order of their contexts. Paper: §1.1.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np

from fedgram.automata.assemble import WeightedNGrams, assemble
from fedgram.automata.model import MIN_LOG, NGramModel, renormalize
from fedgram.automata.topology import backoff_arcs, entering_arcs, state_histories
from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.core.settings import Between, Settings, setting
from fedgram.core.storage import atomic_write
from fedgram.fgram.bits import Bits, bit_length, join, pack_bitmap, pack_numbers, pack_sequence, write_bits, write_gamma
from fedgram.fgram.frame import HEADER_BYTES, MAX_BYTES, MAX_CODE_BITS, Header, Level, write_file
from fedgram.fgram.pack_words import make_alphabet, pack_alphabet, spell_words
from fedgram.fgram.quantize import DERIVED, Quantized, quantize
from fedgram.fgram.reader import PackedModel
from fedgram.fgram.sets import BLOCK, Segment, write_segment
from fedgram.fgram.spelling import FIRST_WORD, letter_key
from fedgram.fgram.unpack import log_backoffs, unpack_levels
from fedgram.text.vocabulary import BOS, SPECIAL, Vocabulary

_TIERS = (512, 4096, 16384)

BITS = 8


@dataclass(frozen=True, slots=True)
class Packed:
    """A written file: bytes in total and by part, n-grams, and the largest deviation of a state's sum from 1."""

    bytes: int
    parts: dict[str, int]
    ngrams: int
    deviation: float


@dataclass(frozen=True, slots=True)
class WordOrder:
    """The words by new id, the new id of every old one, and the ends of the tiers."""

    words: list[str]
    new_id: LongArray
    tier_ends: tuple[int, ...]


class _Lists(NamedTuple):
    """The lists of one order, before they are written.

    List c has the members `offsets[c]:offsets[c + 1]`. Their numbers rise and are below `universe[c]`. `backoff_code`
    is −1 for a list that stores no backoff weight. Lists have one segment per tier of `tier_ends`; if there is one
    end, they have a single segment.
    """

    offsets: LongArray
    number: LongArray
    code: LongArray
    universe: LongArray
    backoff_code: LongArray
    tier_ends: LongArray


class _Body:
    """The sections of a file, one after another."""

    def __init__(self) -> None:
        self.sections: list[Bits] = []
        self.size = HEADER_BYTES

    def add(self, section: Bits) -> int:
        """Append a section, and return its byte offset."""
        offset = self.size
        self.sections.append(section)
        self.size += 8 * len(section)
        return offset


@dataclass(frozen=True, slots=True)
class PackOptions(Settings):
    """How a model is packed."""

    bits: Annotated[int, Between(4, 12)] = setting(BITS, "Bits per probability.")


def pack(model: NGramModel, path: str | Path, *, bits: int = BITS) -> Packed:
    """Normalise a model and write it with `bits` bits (4 to 12) per probability."""
    if not 4 <= bits <= MAX_CODE_BITS:
        raise FedgramError(f"probabilities take between 4 and {MAX_CODE_BITS} bits, not {bits}")
    model = renormalize(model)
    numbers = quantize(model, bits=bits)
    order, body = order_words(model), _Body()
    alphabet = make_alphabet(order.words)
    alphabet_at = body.add(pack_alphabet(alphabet))
    text, text_bits, starts = spell_words(order.words, alphabet)
    buckets_at, text_at = body.add(pack_sequence(starts, text_bits)), body.add(text)
    parts = {"words": body.size - HEADER_BYTES}
    levels = _pack_levels(model, numbers, order, body, parts)
    header = Header(
        bits, numbers.backoff_bits, DERIVED, len(order.words), order.tier_ends, len(alphabet.point), text_bits,
        alphabet_at, buckets_at, text_at, numbers.deviation, levels,
    )  # fmt: skip
    body.add(np.zeros(2, np.uint64))
    if body.size >= MAX_BYTES:
        raise FedgramError(f"the packed model would have {body.size:,} bytes; the limit is {MAX_BYTES:,}: prune it")
    data = write_file(header, join(body.sections))
    with atomic_write(path) as file:
        file.write(data)
    return Packed(len(data), parts, model.topology.arcs, numbers.deviation)


def order_words(model: NGramModel) -> WordOrder:
    """Order the words by tier, and by key within a tier."""
    t, old = model.topology, model.vocabulary.words
    bigrams = t.label[t.first_arc[1] :]
    follows = np.bincount(bigrams, minlength=len(old))
    unigram = np.full(len(old), -np.inf)
    unigram[t.label[: t.first_arc[1]]] = model.log_weight[: t.first_arc[1]]
    ranked = np.lexsort((np.arange(len(old)), -unigram, -follows))
    ranked = np.concatenate([np.arange(FIRST_WORD), ranked[ranked >= FIRST_WORD]])
    ends = (*(end for end in _TIERS if end < len(old)), len(old))
    characters = {c: letter_key(c) for word in old for c in word}
    keys = ["".join([characters[c] for c in word]) for word in old]
    order, begin = list(range(FIRST_WORD)), FIRST_WORD
    for end in ends:
        order += sorted(ranked[begin:end].tolist(), key=lambda i: (keys[i], old[i]))
        begin = max(end, FIRST_WORD)
    new_id = np.empty(len(old), np.int64)
    new_id[order] = np.arange(len(old))
    return WordOrder([*SPECIAL, *(old[i] for i in order[FIRST_WORD:])], new_id, ends)


def _pack_levels(
    model: NGramModel, numbers: Quantized, ids: WordOrder, body: _Body, parts: dict[str, int]
) -> tuple[Level, ...]:
    """Add the sections of all orders to the body, and note their sizes in `parts`."""
    t, new_id = model.topology, ids.new_id
    degree = np.diff(t.first_arc)
    histories, lengths = state_histories(t)
    entering, state_of = entering_arcs(t), np.full(t.arcs, -1)
    state_of[entering[entering >= 0]] = np.flatnonzero(entering >= 0)  # the state that is an arc's n-gram
    singles = np.flatnonzero((lengths == 1) & (degree > 0))
    contexts = singles[np.argsort(new_id[histories[singles, 0]])] if t.order > 1 else singles[:0]
    is_context = np.zeros(len(new_id), np.bool_)
    is_context[new_id[histories[contexts, 0]]] = True
    levels = [_pack_unigrams(t.label[: degree[0]], numbers, new_id, is_context, t.order, body)]
    parts["order_1"] = body.size - HEADER_BYTES - parts["words"]
    lower, position = backoff_arcs(t), np.empty(t.arcs, np.int64)  # of each arc's n-gram in its list
    for n in range(2, t.order + 1):
        before = body.size
        offsets = np.concatenate([[0], np.cumsum(degree[contexts])]).astype(np.int64)
        arcs = np.repeat(t.first_arc[contexts] - offsets[:-1], degree[contexts]) + np.arange(offsets[-1])
        number = new_id[t.label[arcs]] if n == 2 else position[lower[arcs]]
        owner = np.repeat(np.arange(len(contexts)), degree[contexts])
        order = np.lexsort((number, owner))
        arcs, number = arcs[order], number[order]
        position[arcs] = np.arange(len(arcs)) - offsets[owner]
        universe = np.full(len(contexts), len(new_id)) if n == 2 else degree[t.backoff[contexts]]
        lists = _Lists(
            offsets, number, numbers.code[arcs], universe.astype(np.int64), numbers.backoff_code[contexts],
            np.array(ids.tier_ends if n == 2 else (0,), np.int64),
        )  # fmt: skip
        states = state_of[arcs]
        continued = (states >= 0) & (degree[states] > 0)
        levels.append(_pack_level(numbers, n, lists, continued if n < t.order else None, body))
        contexts = states[continued]
        parts[f"order_{n}"] = body.size - before
    return tuple(levels)


def _pack_unigrams(
    label: IntArray, numbers: Quantized, new_id: LongArray, is_context: BoolArray, order: int, body: _Body
) -> Level:
    code = np.zeros(len(new_id), np.int64)
    code[new_id[label]] = numbers.code[: len(label)]
    maxima = np.maximum.reduceat(code, np.arange(0, len(code), BLOCK))
    codes = join([pack_numbers(code, numbers.code_bits), pack_numbers(maxima, numbers.code_bits)])
    return Level(
        len(new_id), 1, 0.0, 0.0, body.add(_codebook(numbers, 1)), body.add(codes), 64 * len(codes), 0, 0,
        body.add(pack_bitmap(is_context)) if order > 1 else 0,
    )  # fmt: skip


def _pack_level(numbers: Quantized, n: int, lists: _Lists, continued: BoolArray | None, body: _Body) -> Level:
    """Add the sections of order n; `continued` marks the n-grams that are contexts, None for the highest order."""
    written, size, pointers = _pack_lists(lists, numbers.code_bits, numbers.backoff_bits)
    return Level(
        len(lists.number), len(lists.universe), float(numbers.backoff_low[n - 1]), float(numbers.backoff_step[n - 1]),
        body.add(_codebook(numbers, n)), body.add(written), size, body.add(pack_sequence(pointers, size)),
        0 if continued is None else body.add(pack_sequence(lists.offsets[:-1], len(lists.number))),
        0 if continued is None else body.add(pack_bitmap(continued)),
    )  # fmt: skip


def _codebook(numbers: Quantized, n: int) -> Bits:
    return np.frombuffer(numbers.books[n - 1].astype(np.float32).tobytes(), np.uint64)


def _pack_lists(lists: _Lists, code_bits: int, backoff_bits: int) -> tuple[Bits, int, LongArray]:
    """(the lists, their number of bits, the first bit of each)."""
    widest = code_bits + int(lists.universe.max()).bit_length() + 6
    room = len(lists.number) * widest + len(lists.universe) * (backoff_bits + 64 + 24 * len(lists.tier_ends))
    bits, pointers = np.zeros(room // 64 + 2, np.uint64), np.empty(len(lists.universe), np.int64)
    size = _write_lists(bits, lists, code_bits, backoff_bits, pointers)
    return bits[: (size + 63) // 64].copy(), size, pointers


@kernel
def _write_lists(bits: Bits, lists: _Lists, code_bits: int, backoff_bits: int, pointers: LongArray) -> int:
    """Write all lists and note the first bit of each; returns the number of bits."""
    number, ends, at = lists.number, lists.tier_ends, 0
    for c in range(len(lists.universe)):
        pointers[c] = at
        begin, end = lists.offsets[c], lists.offsets[c + 1]
        at = write_gamma(bits, at, end - begin)
        if lists.backoff_code[c] >= 0:
            at = write_bits(bits, at, backoff_bits, lists.backoff_code[c])
        if len(ends) == 1:
            segment = Segment(at, end - begin, lists.universe[c], code_bits)
            at = write_segment(bits, segment, number, lists.code, begin, 0)
            continue
        left, e = end - begin, begin
        for t in range(len(ends) - 1):
            n = _count_below(number, e, end, ends[t])
            at = write_bits(bits, at, bit_length(left), n)
            left -= n
            e += n
        first, e = 0, begin
        for t in range(len(ends)):
            n = _count_below(number, e, end, ends[t])
            at = write_segment(bits, Segment(at, n, ends[t] - first, code_bits), number, lists.code, e, first)
            e += n
            first = ends[t]
    return at


@kernel
def _count_below(number: LongArray, begin: int, end: int, bound: int) -> int:
    """How many of the rising numbers from `begin` on are below a bound."""
    n = 0
    while begin + n < end and number[begin + n] < bound:
        n += 1
    return n


def unpack_model(packed: PackedModel) -> NGramModel:
    """A packed model as an n-gram model again, with its rounded probabilities."""
    levels = unpack_levels(packed.file, packed.header)
    backoffs = log_backoffs(levels, packed.header, packed.file.tables)
    histories = np.zeros((1, 0), np.int32)  # the words of each context
    rows, weights, backoff_of = [], [], []
    for n, level in enumerate(levels):
        owner = np.repeat(np.arange(len(level.first) - 1), np.diff(level.first))
        ngrams = np.column_stack([histories[owner] if n else np.zeros((len(level.word), 0), np.int32), level.word])
        inner = np.flatnonzero(level.context >= 0)
        backoff = np.zeros(len(ngrams))
        if n < len(backoffs):
            backoff[inner] = backoffs[n][level.context[inner]]
        histories = np.zeros((len(inner), n + 1), np.int32)
        histories[level.context[inner]] = ngrams[inner]
        log_p = packed.file.tables[n, level.code]
        kept = (level.code > 0) | (level.word == BOS) if n == 0 else np.ones(len(ngrams), np.bool_)
        rows.append(ngrams[kept].astype(np.int32))
        weights.append(np.where(level.word[kept] == BOS, MIN_LOG, log_p[kept]) if n == 0 else log_p)
        backoff_of.append(backoff[kept])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.full(len(r), r.shape[1]) for r in rows]))])
    all_ngrams = Ragged(np.concatenate([r.ravel() for r in rows]), offsets.astype(np.int64))
    vocabulary = Vocabulary(packed.words)
    return assemble(WeightedNGrams(vocabulary, all_ngrams, np.concatenate(weights), np.concatenate(backoff_of)))
