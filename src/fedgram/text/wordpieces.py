"""Word pieces: an inventory of subwords, and the code of each word as a sequence of pieces.

The inventory is a SentencePiece unigram model (Kudo 2018), in an ordinary SentencePiece file. The mark `▁` is at the
*end* of a word, so only the last piece of a code has it. Therefore codes are prefix-free, a reader knows that a word is
complete when it reads its last piece, and no piece spans two words. Words are neither normalised nor lower-cased here.
A character that the inventory lacks becomes `<unk>`.

Training takes words with frequencies, as federated counting gives them, and needs no text. SentencePiece accepts such a
list, but ignores the frequencies when it selects its first candidates: rare words then count as much as common ones,
and common words are split into letters. So the candidates are counted here and given to SentencePiece. With integer
frequencies the result is the model that SentencePiece learns from running text with these word frequencies.

Paper: "Morphologically rich languages".
"""

import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedgram.core.arrays import BoolArray, FloatArray, LongArray, Ragged, frozen, sum_by
from fedgram.core.errors import FedgramError, InputError, MissingDependencyError
from fedgram.core.settings import Between, Settings, setting
from fedgram.core.storage import atomic_write
from fedgram.text.vocabulary import SPECIAL, Vocabulary

MARK = "▁"
LONGEST_PIECE = 16
MAX_CANDIDATES = 1_000_000

# SentencePiece gives these a special meaning in training, or cannot represent them.
_RESERVED = re.compile(f"[ \t\r\n\0▅{MARK}]|<unk>|[\ud800-\udfff]")
_UNENCODABLE = re.compile(f"[ {MARK}\ud800-\udfff]")
# A word that case folding, Unicode normalisation or a leading mark would change.
_PROBE = "Ａé'1"
_MIN_TOTAL, _USUAL_PER_WORD, _MAX_PER_WORD = 1000, 25, 100
_TRAINER_SPEC, _SEED_FILE = 2, 54  # field numbers in sentencepiece_model.proto


@dataclass(frozen=True, slots=True, eq=False)
class WordPieces:
    """A loaded inventory; `train_pieces` and `load_pieces` return one.

    Attributes:
        pieces: The pieces by id; pieces that end a word include the mark.
        scores: The natural log-probabilities of the pieces; 0 for `<unk>`.
        is_final: Whether the piece ends a word.
        unknown: The id of `<unk>`.
    """

    pieces: tuple[str, ...]
    scores: FloatArray
    is_final: BoolArray
    unknown: int
    processor: Any = field(repr=False)

    @property
    def size(self) -> int:
        """The number of pieces, including `<unk>`."""
        return len(self.pieces)

    def __repr__(self) -> str:
        return f"WordPieces({self.size} pieces, {int(self.is_final.sum())} final)"

    def encode(self, word: str) -> list[int]:
        """The most probable code of a word; only its last piece is final."""
        return list(map(int, self.encode_words([word]).values))

    def encode_words(self, words: Sequence[str]) -> Ragged:
        """The codes of many words; see `encode`."""
        _check_encodable(words)
        rows: list[list[int]] = self.processor.encode(list(words), out_type=int, num_threads=1)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
        return Ragged(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of a sequence of pieces: one per final piece, then the start of an unfinished word, if any."""
        *words, rest = "".join(self.pieces[i] for i in ids).split(MARK)
        return [*words, rest] if rest else words


def _check_encodable(words: Sequence[str]) -> None:
    if all(words) and not _UNENCODABLE.search("".join(words)):
        return
    bad = sum(not word or _UNENCODABLE.search(word) is not None for word in words)
    problem = f"they are empty, not Unicode, or contain a space or the mark {MARK}"
    raise FedgramError(f"{bad} of {len(words)} words cannot be encoded: {problem}; remove them")


def load_pieces(path: str | Path) -> WordPieces:
    """Read an inventory. Damaged files, and models whose pieces do not mark the ends of words, are refused."""
    return _from_model(Path(path).read_bytes(), path)


def pieces_from_bytes(model: bytes) -> WordPieces:
    """The inventory with this file content."""
    return _from_model(model, "word pieces")


def _from_model(model: bytes, path: str | Path) -> WordPieces:
    damaged = "is damaged or not a SentencePiece model"
    if not model:
        raise InputError(path, damaged)
    try:
        processor: Any = _sentencepiece().SentencePieceProcessor(model_proto=model)
        ids = list(range(len(processor)))
        pieces = tuple(processor.id_to_piece(ids))
        scores = np.array(processor.get_score(ids), np.float64)
        unknown = [i for i in ids if processor.is_unknown(i)]
        probed = processor.normalize(_PROBE)
    except (RuntimeError, UnicodeDecodeError):
        raise InputError(path, damaged) from None
    remedy = "train it with fedgram network pieces train"
    is_final = np.array([piece.endswith(MARK) for piece in pieces])
    if any(piece.find(MARK) not in (-1, len(piece) - 1) for piece in pieces) or not is_final.any():
        raise InputError(path, f"its pieces have the mark {MARK} elsewhere than at the ends of words", remedy=remedy)
    if len(unknown) != 1 or any(processor.is_byte(ids)) or len(set(pieces)) != len(pieces):
        raise InputError(path, "does not have exactly one <unk>, or has byte pieces or duplicate pieces", remedy=remedy)
    if probed != _PROBE + MARK:
        raise InputError(path, "changes words, or does not mark their ends", remedy=remedy)
    if not np.all(np.isfinite(scores)):
        raise InputError(path, damaged)
    return WordPieces(pieces, frozen(scores), frozen(is_final), unknown[0], processor)


def piece_vocabulary(pieces: WordPieces) -> Vocabulary:
    """The vocabulary of a word-piece model: `<unk>`, `<s>`, `</s>`, then the pieces in the inventory's order."""
    return Vocabulary.of(piece for i, piece in enumerate(pieces.pieces) if i != pieces.unknown)


def check_codes(pieces: WordPieces, words: Sequence[str]) -> Ragged:
    """Encode all words, and check the codes.

    Guarantees: no code equals another or is a prefix of another, each code decodes to its word, and none contains
    `<unk>`. So duplicate words and the special words of a vocabulary are refused.
    """
    codes = pieces.encode_words(words)
    row = np.repeat(np.arange(len(codes)), np.diff(codes.offsets))
    unknown = np.bincount(row, codes.values == pieces.unknown, len(codes)) > 0
    text, ends = pieces.pieces, codes.offsets.tolist()
    ids = codes.values.tolist()
    altered = np.array(
        ["".join([text[i] for i in ids[a:b]]) != w + MARK for w, (a, b) in zip(words, pairwise(ends), strict=True)],
        np.bool_,
    )
    data = codes.values.astype(">i4").tobytes()
    # In this order, a code that is a prefix of any other code is also a prefix of the next one.
    ordered = sorted(data[4 * a : 4 * b] for a, b in pairwise(ends))
    clashes = sum(longer.startswith(code) for code, longer in pairwise(ordered))
    if unknown.any() or altered.any() or clashes:
        lacking, changed = int(unknown.sum()), int((altered & ~unknown).sum())
        raise FedgramError(
            f"the {len(words)} words do not all have a code of their own: {lacking} have characters without a piece, "
            f"{changed} do not decode to themselves, and {clashes} have a code that is a prefix of another word's code"
        )
    return codes


def pieces_per_token(pieces: WordPieces, frequency: Mapping[str, float]) -> float:
    """The mean length of a word's code, weighted by frequency."""
    lengths = np.diff(pieces.encode_words(list(frequency)).offsets)
    return float(np.average(lengths, weights=list(frequency.values())))


@dataclass(frozen=True, slots=True)
class PieceOptions(Settings):
    """How word pieces are trained."""

    size: Annotated[int, Between(1, 100_000)] = setting(4000, "Number of word pieces, including <unk>.")


def train_pieces(frequency: Mapping[str, float], *, size: int, path: str | Path, or_fewer: bool = False) -> WordPieces:
    """Train an inventory of `size` pieces, including `<unk>`, and write it to `path` atomically.

    Training is deterministic: the same frequencies give the same bytes, in any order of the words. Words of frequency 0
    contribute only their characters; `<unk>`, `<s>` and `</s>` are ignored. All words pass `check_codes`.

    Args:
        frequency: Words, usually in lower case, and their frequencies; fractions are scaled and rounded.
        size: From the number of characters + 2 to a maximum that depends on the data; the error names this range.
        path: The SentencePiece model to write.
        or_fewer: Take as many pieces as there can be, if these words do not fill so many.
    """
    words = sorted(word for word in frequency if word not in SPECIAL)
    weights = np.array([frequency[word] for word in words], np.float64)
    _check_trainable(words, weights)
    seen = [word for word, weight in zip(words, weights, strict=True) if weight > 0]
    task = _Task(tuple(seen), _whole_numbers(weights[weights > 0]), frozenset(chain(MARK, *words)))
    candidates = _candidates(task.words, task.counts)
    smallest = len(task.characters) + 1
    if size < smallest:
        problem = f"{size} pieces cannot hold the {len(task.characters) - 1} characters of these words"
        raise FedgramError(f"{problem}; choose a size from {smallest} to at most {smallest + len(candidates)}")
    pieces, model = _train(task, candidates, size, path)
    if pieces.size < size and not or_fewer:
        raise FedgramError(
            f"these words do not fill {size} pieces; "
            f"choose a size from {smallest} to {_largest_size(task, candidates, pieces.size, path)}"
        )
    check_codes(pieces, words)
    with atomic_write(path) as file:
        file.write(model)
    return pieces


@dataclass(frozen=True, slots=True)
class _Task:
    """Words with integer frequencies, and the characters that need a piece, including the mark."""

    words: tuple[str, ...]
    counts: LongArray
    characters: frozenset[str]


def _check_trainable(words: Sequence[str], weights: FloatArray) -> None:
    if not (np.all(np.isfinite(weights)) and np.all(weights >= 0)):
        raise FedgramError("a word has a frequency that is negative or not finite")
    if not np.any(weights > 0):
        raise FedgramError("no word has a frequency above 0: there is nothing to train word pieces on")
    bad = sum(not word or _RESERVED.search(word) is not None for word in words)
    if bad:
        reserved = f"a space, {MARK}, ▅ or <unk>"
        raise FedgramError(f"{bad} of {len(words)} words are empty or contain {reserved}; remove them")


def _whole_numbers(weights: FloatArray) -> LongArray:
    """Integer frequencies for SentencePiece: unchanged if they look like counts of a text, else scaled, at least 1.

    Training depends on the scale. If the total is too small, few candidates are left, because a candidate must occur
    twice. If it is too large, rare substrings become as certain as common words and displace them in small inventories.
    About 25 occurrences per word work for inventories of all sizes.
    """
    share = weights / weights.max()
    total = weights.max() * share.sum()
    if np.array_equal(weights, np.rint(weights)) and _MIN_TOTAL <= total <= _MAX_PER_WORD * len(weights):
        return weights.astype(np.int64)
    wanted = max(_USUAL_PER_WORD * len(weights), _MIN_TOTAL)
    scaled: FloatArray = np.maximum(np.rint(share * (wanted / share.sum())), 1.0)
    return scaled.astype(np.int64)


def _candidates(words: Sequence[str], counts: LongArray) -> list[tuple[str, int]]:
    """The first candidates, with their frequencies: the substrings of marked words that cover most characters.

    As in SentencePiece, a substring of up to 16 characters is a candidate if it occurs at least twice and is not always
    followed by the same character.
    """
    text = "".join(word + MARK for word in words)
    starts, lengths, totals = (np.concatenate(column) for column in zip(*_substrings(words, text, counts), strict=True))
    best = np.lexsort((lengths, starts, -totals * lengths))[:MAX_CANDIDATES]
    rows = zip(starts[best].tolist(), lengths[best].tolist(), totals[best].tolist(), strict=True)
    return [(text[start : start + length], int(total)) for start, length, total in rows]


def _substrings(
    words: Sequence[str], text: str, counts: LongArray
) -> Iterator[tuple[LongArray, LongArray, FloatArray]]:
    """The start in `text`, the length and the frequency of each candidate, ordered by length.

    The id of a substring is computed from the id of all but its last character, and that character. So equal ids mean
    equal substrings.
    """
    lengths = np.array([len(word) + 1 for word in words])
    room = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(text))
    weight = np.repeat(counts, lengths).astype(np.float64)
    alphabet, character = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
    position, ids = np.arange(len(text)), character.astype(np.int64)
    first, total = position[:0], weight[:0]
    for length in range(2, LONGEST_PIECE + 2):
        inside = room[position] >= length
        position, prefix = position[inside], ids[inside]
        last = character[position + length - 1]
        keys, next_first, ids = np.unique(prefix * len(alphabet) + last, return_index=True, return_inverse=True)
        next_total = sum_by(ids, weight[position], len(keys))
        if length > 2:
            longer = np.zeros(len(total))
            np.maximum.at(longer, keys // len(alphabet), next_total)
            chosen = (total >= 2) & (longer < total)
            yield first[chosen], np.full(int(chosen.sum()), length - 1), total[chosen]
        first, total = position[next_first], next_total


def _largest_size(task: _Task, candidates: list[tuple[str, int]], size: int, path: str | Path) -> int:
    """A size of at most `size` that training reaches, and so do the smaller sizes.

    Training drops a quarter of the candidates at a time, and all that no word uses, until at most 1.1 times the size is
    left. So a size may be reached only because nothing had to be dropped; therefore a smaller size, for which something
    must be dropped, is tried too.
    """
    while True:
        for goal in (size, min(size, max(int(size * 0.9) - 2, len(task.characters) + 1))):
            reached = _train(task, candidates, goal, path)[0].size
            if reached < goal:
                size = reached
                break
        else:
            return size


def _train(task: _Task, candidates: list[tuple[str, int]], size: int, path: str | Path) -> tuple[WordPieces, bytes]:
    """Run SentencePiece; the result may have fewer pieces than `size`."""
    library, model = _sentencepiece(), io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="fedgram-") as folder:
        seeds = Path(folder) / "seeds"
        seeds.write_text("".join(f"{piece}\t{count}\n" for piece, count in candidates), "utf-8", newline="\n")
        try:
            library.SentencePieceTrainer.train(
                model_type="unigram",
                sentence_iterator=(f"{w}\t{n}" for w, n in zip(task.words, task.counts.tolist(), strict=True)),
                input_format="tsv",
                model_writer=model,
                vocab_size=size,
                hard_vocab_limit=False,
                seed_sentencepieces_file=str(seeds),
                seed_sentencepiece_size=len(candidates) + len(task.characters),
                max_sentencepiece_length=LONGEST_PIECE,
                max_sentence_length=max(10, 4 * max(map(len, task.words))),
                character_coverage=1.0,
                required_chars=_required(task),
                normalization_rule_name="identity",
                treat_whitespace_as_suffix=True,
                split_by_unicode_script=False,
                split_by_number=False,
                unk_id=0,
                bos_id=-1,
                eos_id=-1,
                pad_id=-1,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            raise FedgramError(f"SentencePiece refused to train: {' '.join(str(error).split())}") from None
    clean = _without_seed_path(model.getvalue(), str(seeds))
    return _from_model(clean, path), clean


def _required(task: _Task) -> str:
    """All characters except the most frequent one.

    SentencePiece adds up the shares of the characters in single precision, required ones first, and stops at 1. This
    way the most frequent character comes last, and no rare one is lost to rounding.
    """
    totals = dict.fromkeys(task.characters, 0)
    for word, count in zip(task.words, task.counts.tolist(), strict=True):
        for character in word:
            totals[character] += count
    totals[MARK] = int(task.counts.sum())
    return "".join(sorted(totals, key=lambda character: (-totals[character], character))[1:])


def _without_seed_path(model: bytes, path: str) -> bytes:
    """The model without the name of the temporary file, which SentencePiece stores in its settings."""
    record, parts, position = _delimited(_SEED_FILE, path.encode()), [], 0
    while position < len(model):
        tag, position = _read_varint(model, position)
        length, position = _read_varint(model, position)
        content = model[position : position + length]
        parts.append(_delimited(tag >> 3, content.replace(record, b"") if tag >> 3 == _TRAINER_SPEC else content))
        position += length
    return b"".join(parts)


def _delimited(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protocol-buffer message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    byte = message[position]
    if byte < 128:
        return byte, position + 1
    rest, end = _read_varint(message, position + 1)
    return byte & 127 | rest << 7, end


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise MissingDependencyError("training and using word pieces", "pieces") from None
    return sentencepiece
