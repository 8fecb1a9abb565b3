"""A causal language model of Hugging Face's transformers, in a local folder, as a source of word pieces.

Codes of words must be prefix-free: a word must be known to be complete when its last piece is read. But most tokenizers
mark the *beginning* of a word (`Ġthe`, `▁the`), so its end is known only from the next token. Therefore the source adds
a piece of its own, END, after every word. With p the model's probabilities after the same tokens:

    inside a word   a token that continues the word has probability p(token); END has the sum of p over all tokens that
                    begin a word or end the sentence
    after END       a token that begins a word or ends the sentence has its p, divided by the probability of END

The product of both is the model's own probability. END is the only piece that ends words, so M∘A can use the codes
*pieces, END* unchanged. The first word of a sentence may come with or without the mark; a first token without it counts
as the same token with it, if there is one. A token with a line break ends the sentence, as `eos_token` does. Other
special tokens are never drawn. Paper: §6.

The model reads the whole prefix again at every position, without a cache. This works for any architecture, and
sentences are short.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgram.automata.lexicon import Lexicon, lexicon_from_codes
from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InputError, MissingDependencyError
from fedgram.core.storage import content_digest
from fedgram.distill.source import Step
from fedgram.neural.cell import State
from fedgram.neural.decoder import NEVER
from fedgram.neural.sampling import walk
from fedgram.text.vocabulary import EOS, SPECIAL, UNK, Vocabulary

MARKS = ("Ġ", "▁")  # byte-level BPE, SentencePiece
END = "<end-of-word>"
_MAX_LENGTH = 200
_BATCH_BYTES = 1 << 29
_COPIES = 8  # of a row of probabilities, as 8-byte numbers


class _PrefixDecoder:
    """The model over its own tokens; its state is all tokens so far. Token `end` stands for all tokens that end."""

    fills_tiles, can_draw = True, False

    def __init__(
        self, model: Any, torch_device: torch.device, begin: int, end: int, ends: Tensor, never: Tensor
    ) -> None:
        self.model, self.torch_device, self.begin, self.end = model.to(torch_device).eval(), torch_device, begin, end
        self.ends, self.never = ends.to(torch_device), never.to(torch_device)
        self.labels = len(never)
        accepted = signature(self.model.forward).parameters
        self.last_only: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def initial(self, rows: int) -> State:
        """No tokens."""
        return (torch.zeros(rows, 0, dtype=torch.int64, device=self.torch_device),)

    def step(self, state: State, labels: Tensor) -> tuple[State, Tensor]:
        """The scores after the longer prefix; the score of `end` is that of all tokens that end a sentence together."""
        prefix = torch.cat([state[0], labels.unsqueeze(1)], 1)
        scores = self.model(input_ids=prefix, use_cache=False, **self.last_only).logits[:, -1, : self.labels].float()
        scores = scores.masked_fill(self.never, NEVER)
        ending = scores[:, self.ends].logsumexp(1)
        scores = scores.masked_fill(self.ends, NEVER)
        scores[:, self.end] = ending
        return (prefix,), scores


class HFSource:
    """A model and its tokenizer from a local folder; sentences are cut at `max_length` tokens.

    Labels are END and all tokens that are neither special nor end a sentence. A token's label is `token_label`, or
    `first_label` if it is the first of a sentence. `label_token` is the inverse of `token_label`.
    """

    has_unknown = True

    def __init__(
        self, path: str | Path, torch_device: torch.device | str = "cpu", *, max_length: int = _MAX_LENGTH
    ) -> None:
        self.path, self.max_length = Path(path), max_length
        model, self.tokenizer = _load(self.path)
        config = model.config
        limit = getattr(config, "max_position_embeddings", None) or max_length + 1
        self.max_length = min(max_length, int(limit) - 1)
        tokens = self.tokenizer.convert_ids_to_tokens(list(range(min(len(self.tokenizer), config.vocab_size))))
        end = self.tokenizer.eos_token_id
        begin = self.tokenizer.bos_token_id if self.tokenizer.bos_token_id is not None else end
        if end is None or begin is None:
            raise InputError(path, "its tokenizer has no eos_token", remedy="set eos_token in tokenizer_config.json")
        special = np.isin(np.arange(len(tokens)), self.tokenizer.all_special_ids)
        self.mark = _mark(tokens, path)
        is_begin = np.array([token.startswith(self.mark) for token in tokens]) & ~special
        texts = [self.tokenizer.convert_tokens_to_string([token]) for token in tokens]
        ends = np.array(["\n" in text or "\r" in text for text in texts]) & ~special
        ends[end] = True
        self.token_ends, self.token_begins = ends, is_begin & ~ends
        kept = [i for i in range(len(tokens)) if not special[i] and not ends[i]]
        names = [f"{i}:{tokens[i]}" for i in kept]  # with the id, since texts of tokens need not be distinct
        self.vocabulary = Vocabulary.of([END, *("".join(name.split()) for name in names)])
        self.end_label = len(SPECIAL)
        self.token_label = np.full(len(tokens), UNK, np.int32)
        self.token_label[kept] = np.arange(len(kept)) + len(SPECIAL) + 1
        self.token_label[ends] = EOS
        self.label_token = np.full(len(self.vocabulary), -1, np.int64)
        self.label_token[self.token_label[kept]] = kept
        self.first_label = self._first_labels(tokens)
        self.decoder = _PrefixDecoder(
            model, torch.device(torch_device), int(begin), int(end), torch.from_numpy(ends),
            torch.from_numpy(special & ~ends),
        )  # fmt: skip
        positions = 1 if self.decoder.last_only else self.max_length
        self.batch = fitting_batch(int(config.vocab_size), positions)
        self.shard = 2 * self.batch

    def _first_labels(self, tokens: list[str]) -> IntArray:
        """The label of each token as the first of a sentence; `<unk>` if it begins no word inside a sentence."""
        by_text = {token: i for i, token in enumerate(tokens)}
        marked = [by_text.get(self.mark + token, -1) for token in tokens]
        labels = self.token_label.copy()
        for token, other in enumerate(marked):
            if not self.token_begins[token] and not self.token_ends[token]:
                labels[token] = self.token_label[other] if other >= 0 and self.token_begins[other] else UNK
        return labels

    @cached_property
    def digest(self) -> str:
        """Of the labels and all weights."""
        weights = {n: w.detach().float().cpu().numpy() for n, w in self.decoder.model.state_dict().items()}
        return content_digest({"vocabulary": self.vocabulary.digest, "max_length": self.max_length}, weights)

    def spell(self, words: Vocabulary) -> Lexicon:
        """The lexicon of a vocabulary: the tokens of each word inside a sentence, then END."""
        rows: list[list[int]] = [[] for _ in words.words]
        for y, word in enumerate(words.words[len(SPECIAL) :], len(SPECIAL)):
            # The second of two copies is inside a sentence, and the tokenizer need not know any other character.
            tokens = self.tokenizer(f"{word} {word}", add_special_tokens=False)["input_ids"]
            starts = [i for i, token in enumerate(tokens) if self.token_begins[token]]
            if starts and starts[-1] > 0 and not self.token_begins[tokens[starts[-1] + 1 :]].any():
                code = tokens[starts[-1] :]
                if self.tokenizer.decode(code).strip() == word:
                    rows[y] = [*(int(self.token_label[token]) for token in code), self.end_label]
        is_final = np.zeros(len(self.vocabulary), np.bool_)
        is_final[self.end_label] = True
        return lexicon_from_codes(Ragged.from_rows(rows), is_final)

    def read_word(self, code: Sequence[int]) -> str:
        """The word that a sequence of labels spells; the last label is END."""
        tokens = self.label_token[np.array(code[:-1], np.int64)].tolist()
        return str(self.tokenizer.decode(tokens)).strip() if tokens and min(tokens) >= 0 else ""

    def sample(self, samples: range, *, seed: int) -> Ragged:
        """The samples with these numbers, as labels."""
        said: list[list[int]] = [[] for _ in samples]
        for step in self.walk(samples, seed=seed):
            for sample, label in zip(step.sample.tolist(), step.word.tolist(), strict=True):
                if label != EOS:
                    said[sample].append(label)
        return Ragged.from_rows(said)

    def walk(self, samples: range, *, seed: int, sentences: Ragged | None = None) -> Iterator[Step]:
        """Two steps per tile: inside words, and after END. Given sentences are ignored, and drawn again."""
        del sentences
        said = np.zeros(len(samples), np.int64)
        for tile in walk(self.decoder, samples, seed=seed, max_length=self.max_length):
            sample, row = tile.sample.cpu().numpy(), tile.row.cpu().numpy()
            token, p = tile.label.cpu().numpy(), tile.probabilities(self._size).cpu().numpy().astype(np.float64)
            if tile.position[0] == 0:  # all samples are at the same position
                yield self._step(said, sample, row, self.first_label[token], _by_label(p, self.first_label, self._size))
                said[sample] += 1
                continue
            outside = self.token_begins | self.token_ends
            leaves = outside[token]
            mass = p[:, outside].sum(axis=1)
            inside = _by_label(np.where(outside, 0.0, p), self.token_label, self._size)
            inside[:, EOS] = 0.0
            inside[:, self.end_label] = mass
            word = np.where(leaves, self.end_label, self.token_label[token]).astype(np.int32)
            yield self._step(said, sample, row, word, inside)
            said[sample] += 1
            if leaves.any():
                rows, own = np.unique(row[leaves], return_inverse=True)
                behind = np.where(outside, p[rows], 0.0) / mass[rows, None]
                now = sample[leaves]
                labels = self.token_label[token[leaves]]
                yield self._step(said, now, own, labels, _by_label(behind, self.token_label, self._size))
                said[now] += 1

    @property
    def _size(self) -> int:
        return len(self.vocabulary)

    def _step(self, said: LongArray, sample: LongArray, row: LongArray, word: IntArray, p: np.ndarray) -> Step:
        return Step(said[sample], sample, row, word, p)

    def __repr__(self) -> str:
        return f"HFSource({self._size} labels, {self.decoder.torch_device})"


def fitting_batch(vocabulary: int, positions: int) -> int:
    """How many sentences are sampled together, so that their probabilities take about half a gigabyte.

    The model returns scores of `positions` positions per sentence. Sums are exact, so the result does not depend on it.

    >>> fitting_batch(50_257, 1), fitting_batch(50_257, 200), fitting_batch(26, 1)
    (128, 8, 512)
    """
    row = vocabulary * (4 * positions + 8 * _COPIES)
    fits = max(_BATCH_BYTES // row, 1)
    return int(min(max(1 << (fits.bit_length() - 1), 8), 512))


def _by_label(p: np.ndarray, label: IntArray, labels: int) -> np.ndarray:
    """The probabilities of labels, from those of tokens."""
    result = np.zeros((len(p), labels))
    for i in range(len(p)):
        result[i] = np.bincount(label, p[i], minlength=labels)
    return result


def _mark(tokens: list[str], path: str | Path) -> str:
    """The mark at the beginning of tokens that begin a word."""
    mark = max(MARKS, key=lambda m: sum(token.startswith(m) for token in tokens))
    begins: BoolArray = np.array([token.startswith(mark) and len(token) > len(mark) for token in tokens])
    if not begins.any():
        raise InputError(
            path, f"its tokenizer does not mark the beginning of words with {' or '.join(MARKS)}",
            remedy="use a model with a byte-level BPE or SentencePiece tokenizer",
        )  # fmt: skip
    return mark


def _load(path: Path) -> tuple[Any, Any]:
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise MissingDependencyError("distilling a Hugging Face model", "transformers") from None
    if not (path / "config.json").is_file():
        raise InputError(path, "is not a folder of a Hugging Face model: config.json is missing")
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = AutoModelForCausalLM.from_pretrained(path, use_safetensors=True, **local)
        return model, AutoTokenizer.from_pretrained(path, **local)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(path, f"cannot be read as a causal language model ({why})") from None
