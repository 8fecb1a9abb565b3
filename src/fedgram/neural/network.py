"""A trained network and its file: shape, weights, and the vocabulary that gives its ids their meaning.

A word network's vocabulary are words. A word-piece network's are pieces, and it carries the SentencePiece model that
cuts words into them. Both carry the words of 𝒱, against which sentence likelihoods tell known words from others, so
that networks of both kinds can be compared. Everything is uncased.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgram.core.arrays import Ragged, frozen
from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.core.lazy import lazy
from fedgram.core.storage import Artefact, read_artefact, write_artefact
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape
from fedgram.text.normalize import uncase
from fedgram.text.unigrams import UnigramCounts
from fedgram.text.vocabulary import SPECIAL, Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes
from fedgram.text.wordpieces import piece_vocabulary, pieces_from_bytes

KIND, VERSION = "network", 1
WeightArrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Coding:
    """How text becomes a network's ids: the vocabulary of ids, 𝒱, and for word pieces the SentencePiece model."""

    vocabulary: Vocabulary
    known: Vocabulary
    pieces: bytes | None = None

    def codes(self, words: Sequence[str]) -> Ragged:
        """For each word, cased or not, its ids: one, or one per piece."""
        plain = [uncase(word) for word in words]
        if self.pieces is None:
            return Ragged(np.array(self.vocabulary.encode(plain), np.int32), np.arange(len(words) + 1))
        inventory = pieces_from_bytes(self.pieces)
        codes = inventory.encode_words(plain)
        ids = np.array(self.vocabulary.encode(inventory.pieces), np.int32)
        return Ragged(ids[codes.values], codes.offsets)

    def is_known(self, words: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each word is in 𝒱."""
        return np.array([uncase(word) in self.known for word in words], np.bool_)


def word_coding(frequency: Mapping[str, float], words: int) -> Coding:
    """The most frequent words, `words` of them with the three special ones."""
    vocabulary = Vocabulary.of(list(frequency)[: words - len(SPECIAL)])
    return Coding(vocabulary, vocabulary)


def piece_coding(pieces: bytes, frequency: Mapping[str, float], known: int) -> Coding:
    """Word pieces; 𝒱 are the most frequent words, `known` of them with the three special ones."""
    inventory = pieces_from_bytes(pieces)
    return Coding(piece_vocabulary(inventory), Vocabulary.of(list(frequency)[: known - len(SPECIAL)]), pieces)


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A shape with weights and the coding of text; `about` says how it was trained."""

    shape: ModelShape
    weights: WeightArrays
    coding: Coding
    about: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.shape.words != len(self.coding.vocabulary):
            raise InvariantError("Network: its vocabulary and its shape differ in size")
        if {name: w.shape for name, w in self.weights.items()} != self.shape.sizes():
            raise InvariantError("Network: its weights do not have its shape")
        for weight in self.weights.values():
            if weight.dtype != np.float32 or not np.isfinite(weight).all():
                raise InvariantError("Network: a weight is not a finite number in single precision")
            frozen(weight)

    @classmethod
    def create(
        cls,
        preset: str,
        unigrams: Mapping[str, float] | UnigramCounts,
        *,
        pieces: bytes | str | Path | None = None,
        seed: int = 0,
    ) -> "Network":
        """A new network with random weights.

        Args:
            preset: A shape by its name, such as `W_30K`: words; or `P_4K-L`: word pieces (Table 2 of the paper).
            unigrams: Word frequencies, for the vocabulary.
            pieces: The SentencePiece model of a network of word pieces: its file, or its bytes.
            seed: Of the weights.
        """
        content = Path(pieces).read_bytes() if isinstance(pieces, str | Path) else pieces
        network: Network = lazy(".neural.new_network:create_network")(preset, unigrams, pieces=content, seed=seed)
        return network

    @property
    def summary(self) -> str:
        """The preset and the size, in a few words."""
        kind = "word pieces" if self.coding.pieces is not None else "words"
        size = f"{len(self.coding.vocabulary):,} {kind}, {self.shape.parameters():,} parameters"
        return f"{self.about['preset']}, {size}" if self.about.get("preset") else size

    def __repr__(self) -> str:
        return f"Network({self.summary})"


def as_tensors(weights: Mapping[str, NDArray[Any]], torch_device: torch.device | str = "cpu") -> Weights:
    """Weights as tensors on a torch device, as copies."""
    if torch.device(torch_device).type == "cpu":
        return {name: torch.tensor(w) for name, w in weights.items()}
    writable = {name: torch.from_numpy(np.require(w, requirements="W")) for name, w in weights.items()}
    return {name: w.to(torch_device, non_blocking=True) for name, w in writable.items()}


def pinned_like(array: NDArray[Any]) -> NDArray[Any]:
    """An array in memory that a GPU reads and writes at full speed, and that is used again when it is let go."""
    kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return torch.empty(array.shape, dtype=kind, pin_memory=True).numpy()


def as_arrays(weights: Weights) -> dict[str, NDArray[np.float32]]:
    """Weights as arrays, from any torch device."""
    return {name: w.detach().float().cpu().numpy() for name, w in weights.items()}


def write_network(path: str | Path, network: Network) -> str:
    """Write a network; returns its digest."""
    arrays: dict[str, NDArray[Any]] = {f"weights.{name}": w for name, w in network.weights.items()}
    arrays |= coding_arrays(network.coding)
    fields = {"shape": asdict(network.shape), "about": dict(network.about)}
    return write_artefact(path, Artefact(KIND, VERSION, fields, arrays))


def read_network(path: str | Path) -> Network:
    """Read a network."""
    artefact = read_artefact(path, kind=KIND, version=VERSION)
    try:
        weights = {n.removeprefix("weights."): a for n, a in artefact.arrays.items() if n.startswith("weights.")}
        shape = ModelShape(**artefact.fields["shape"])
        return Network(shape, weights, coding_from(artefact.arrays), artefact.fields["about"])
    except (KeyError, TypeError, ValueError, FedgramError) as error:
        raise InputError(path, f"does not hold a network: {error}") from None


def coding_arrays(coding: Coding) -> dict[str, NDArray[np.uint8]]:
    """A coding as arrays of bytes."""
    arrays = {"vocabulary": vocabulary_to_bytes(coding.vocabulary)}
    if coding.pieces is not None:
        arrays |= {"known": vocabulary_to_bytes(coding.known), "pieces": np.frombuffer(coding.pieces, np.uint8)}
    return arrays


def coding_from(arrays: Mapping[str, NDArray[Any]]) -> Coding:
    """The coding that `coding_arrays` wrote."""
    vocabulary = vocabulary_from_bytes(arrays["vocabulary"])
    if "pieces" not in arrays:
        return Coding(vocabulary, vocabulary)
    return Coding(vocabulary, vocabulary_from_bytes(arrays["known"]), arrays["pieces"].tobytes())
