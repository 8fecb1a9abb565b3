"""Writing `lm.fgram`: an n-gram model in a few megabytes, words included.

Words get new ids: the 512 that follow the most others, the next few thousand, and so on, form tiers, since a set of
numbers is the smaller the fewer there are to choose from; within a tier ids rise with the words' keys. What follows a
context is a sorted set with a code on each member (`sets`), and beyond the first order a set of positions among what
follows the context without its first word. The n-grams are numbered by order, in the order of their contexts. Paper:
§1.1.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgram.automata.assemble import WeightedNGrams, assemble
from fedgram.automata.model import MIN_LOG, NGramModel, renormalize
from fedgram.automata.topology import backoff_arcs, entering_arcs, state_histories
from fedgram.core.arrays import IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.jit import kernel
from fedgram.core.storage import atomic_write
from fedgram.fgram.bits import (
    Words,
    bit_length,
    join,
    pack_bitmap,
    pack_numbers,
    pack_sequence,
    write_bits,
    write_gamma,
)
from fedgram.fgram.frame import HEADER_BYTES, MAX_BYTES, MAX_CODE_BITS, Header, Level, write_file
from fedgram.fgram.quantize import DERIVED, Quantized, quantize
from fedgram.fgram.reader import PackedModel
from fedgram.fgram.sets import BLOCK, write_segment
from fedgram.fgram.spelling import FIRST_WORD, letter_key, make_alphabet, pack_alphabet, spell_words
from fedgram.fgram.unpack import log_backoffs, unpack_levels
from fedgram.text.vocabulary import BOS, SPECIAL, Vocabulary

_TIERS = (512, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Packed:
    """What was written: bytes in all and by part, n-grams, and how far a state's sum may be from 1."""

    bytes: int
    parts: dict[str, int]
    ngrams: int
    deviation: float


class _Body:
    """The sections, one behind another."""

    def __init__(self) -> None:
        self.parts: list[Words] = []
        self.size = HEADER_BYTES

    def add(self, section: Words) -> int:
        """Append a section and return its byte offset."""
        offset = self.size
        self.parts.append(section)
        self.size += 8 * len(section)
        return offset


def pack(model: NGramModel, path: str | Path, *, bits: int = 8) -> Packed:
    """Write the model with probabilities of this many bits (4 to 12), normalised first."""
    if not 4 <= bits <= MAX_CODE_BITS:
        raise FedgramError(f"probabilities take between 4 and {MAX_CODE_BITS} bits, not {bits}")
    model = renormalize(model)
    numbers = quantize(model, bits=bits)
    words, new_id, ends = order_words(model)
    body = _Body()
    alphabet, lengths = make_alphabet(words)
    alphabet_at = body.add(pack_alphabet(alphabet, lengths))
    text, text_bits, starts = spell_words(words, alphabet, lengths)
    buckets_at, text_at = body.add(pack_sequence(starts, text_bits)), body.add(text)
    parts = {"words": body.size - HEADER_BYTES}
    levels = _pack_levels(model, numbers, new_id, ends, bits, body, parts)
    header = Header(
        bits, numbers.backoff_bits, DERIVED, len(words), ends, len(lengths), text_bits, alphabet_at, buckets_at,
        text_at, numbers.deviation, levels,
    )  # fmt: skip
    body.add(np.zeros(2, np.uint64))
    if body.size >= MAX_BYTES:
        raise FedgramError(f"the packed model would have {body.size:,} bytes; the most is {MAX_BYTES:,}")
    data = write_file(header, join(body.parts))
    with atomic_write(path) as file:
        file.write(data)
    return Packed(len(data), parts, model.topology.arcs, numbers.deviation)


def order_words(model: NGramModel) -> tuple[list[str], LongArray, tuple[int, ...]]:
    """(the words by new id, the new id of every old one, the ends of the tiers)."""
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
    words = [*SPECIAL, *(old[i] for i in order[FIRST_WORD:])]
    return words, new_id, ends


def _pack_levels(
    model: NGramModel, numbers: Quantized, new_id: LongArray, ends: tuple[int, ...], bits: int, body: _Body,
    parts: dict[str, int],
) -> tuple[Level, ...]:  # fmt: skip
    t = model.topology
    degree = np.diff(t.first_arc)
    histories, lengths = state_histories(t)
    lower, entered = backoff_arcs(t), np.full(t.arcs, -1)
    entering = entering_arcs(t)
    entered[entering[entering >= 0]] = np.flatnonzero(entering >= 0)  # the state that is an arc's n-gram
    singles = np.flatnonzero((lengths == 1) & (degree > 0))
    contexts = singles[np.argsort(new_id[histories[singles, 0]])] if t.order > 1 else singles[:0]
    is_context = np.zeros(len(new_id), np.bool_)
    is_context[new_id[histories[contexts, 0]]] = True
    levels = [_pack_unigrams(t.label[: degree[0]], numbers, new_id, is_context, bits, t.order, body)]
    parts["order_1"] = body.size - HEADER_BYTES - parts["words"]
    position = np.empty(t.arcs, np.int64)
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
        lists, list_bits, pointers = _pack_lists(
            offsets, number, numbers.code[arcs], universe.astype(np.int64), numbers.backoff_code[contexts],
            numbers.backoff_bits, np.array(ends if n == 2 else (0,), np.int64), bits,
        )  # fmt: skip
        states = entered[arcs]
        continued = (states >= 0) & (degree[states] > 0)
        last = n == t.order
        level = Level(
            len(arcs), len(contexts), float(numbers.backoff_low[n - 1]), float(numbers.backoff_step[n - 1]),
            body.add(_book(numbers, n)), body.add(lists), list_bits, body.add(pack_sequence(pointers, list_bits)),
            0 if last else body.add(pack_sequence(offsets[:-1], len(arcs))),
            0 if last else body.add(pack_bitmap(continued)),
        )  # fmt: skip
        levels.append(level)
        contexts = states[continued]
        parts[f"order_{n}"] = body.size - before
    return tuple(levels)


def _book(numbers: Quantized, n: int) -> Words:
    return np.frombuffer(numbers.books[n - 1].astype(np.float32).tobytes(), np.uint64)


def _pack_unigrams(
    label: IntArray, numbers: Quantized, new_id: LongArray, is_context: np.ndarray, bits: int, order: int, body: _Body
) -> Level:
    code = np.zeros(len(new_id), np.int64)
    code[new_id[label]] = numbers.code[: len(label)]
    maxima = np.maximum.reduceat(code, np.arange(0, len(code), BLOCK))
    codes = join([pack_numbers(code, bits), pack_numbers(maxima, bits)])
    return Level(
        len(new_id), 1, 0.0, 0.0, body.add(_book(numbers, 1)), body.add(codes), 64 * len(codes), 0, 0,
        body.add(pack_bitmap(is_context)) if order > 1 else 0,
    )  # fmt: skip


def _pack_lists(
    offsets: LongArray, number: LongArray, code: LongArray, universe: LongArray, backoff_code: LongArray,
    backoff_bits: int, ends: LongArray, bits: int,
) -> tuple[Words, int, LongArray]:  # fmt: skip
    """(the lists, their bits, the bit where each begins)."""
    widest = bits + int(universe.max()).bit_length() + 6
    room = len(number) * widest + len(universe) * (backoff_bits + 64 + 24 * len(ends))
    lists = np.zeros(room // 64 + 2, np.uint64)
    pointers = np.empty(len(universe), np.int64)
    size = _write_lists(lists, offsets, number, code, universe, backoff_code, backoff_bits, ends, bits, pointers)
    return lists[: (size + 63) // 64].copy(), size, pointers


@kernel
def _write_lists(
    lists: Words, offsets: LongArray, number: LongArray, code: LongArray, universe: LongArray, backoff_code: LongArray,
    backoff_bits: int, ends: LongArray, bits: int, pointers: LongArray,
) -> int:  # fmt: skip
    at = 0
    for c in range(len(universe)):
        pointers[c] = at
        begin, m = offsets[c], offsets[c + 1] - offsets[c]
        at = write_gamma(lists, at, m)
        if backoff_code[c] >= 0:
            at = write_bits(lists, at, backoff_bits, backoff_code[c])
        if len(ends) == 1:
            at = write_segment(lists, at, number, code, begin, m, 0, universe[c], bits)
            continue
        left, e = m, begin
        for t in range(len(ends) - 1):
            n = 0
            while e < begin + m and number[e] < ends[t]:
                n += 1
                e += 1
            at = write_bits(lists, at, bit_length(left), n)
            left -= n
        first, e = 0, begin
        for t in range(len(ends)):
            n = 0
            while e + n < begin + m and number[e + n] < ends[t]:
                n += 1
            at = write_segment(lists, at, number, code, e, n, first, ends[t] - first, bits)
            e += n
            first = ends[t]
    return at


def unpack_model(packed: PackedModel) -> NGramModel:
    """The packed model as an n-gram model again, with the probabilities it was rounded to."""
    levels = unpack_levels(packed.data, packed.frame, packed.header)
    backoffs = log_backoffs(levels, packed.header, packed.tables)
    histories = np.zeros((1, 0), np.int32)  # the words of each context
    rows, weights, backoff_of = [], [], []
    for n, level in enumerate(levels):
        owner = np.repeat(np.arange(len(level.first) - 1), np.diff(level.first))
        words = np.column_stack([histories[owner] if n else np.zeros((len(level.word), 0), np.int32), level.word])
        inner = np.flatnonzero(level.context >= 0)
        backoff = np.zeros(len(words))
        if n < len(backoffs):
            backoff[inner] = backoffs[n][level.context[inner]]
        histories = np.zeros((len(inner), n + 1), np.int32)
        histories[level.context[inner]] = words[inner]
        log_p = packed.tables[n, level.code]
        kept = (level.code > 0) | (level.word == BOS) if n == 0 else np.ones(len(words), np.bool_)
        rows.append(words[kept].astype(np.int32))
        weights.append(np.where(level.word[kept] == BOS, MIN_LOG, log_p[kept]) if n == 0 else log_p)
        backoff_of.append(backoff[kept])
    lengths = np.concatenate([np.full(len(r), r.shape[1]) for r in rows])
    ngrams = Ragged(
        np.concatenate([r.ravel() for r in rows]), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    )
    vocabulary = Vocabulary(packed.words)
    return assemble(WeightedNGrams(vocabulary, ngrams, np.concatenate(weights), np.concatenate(backoff_of)))
