"""Whatever can be evaluated, as a predictor: models in memory, and files by their suffix."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.core.lazy import lazy
from fedgram.evaluate.dense import DensePredictor
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.evaluate.piece_scorer import PieceScorer
from fedgram.evaluate.predictor import Predictor
from fedgram.fgram.pack import unpack_model
from fedgram.fgram.reader import PackedModel
from fedgram.files import load
from fedgram.formats.models import READERS, model_suffix
from fedgram.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from fedgram.neural.network import Network

Model: TypeAlias = "NGramModel | PackedModel | Network | str | Path"
SUFFIXES = (*READERS, ".fgram", ".safetensors")


def as_predictor(model: "Model | Predictor", *, cased: bool) -> Predictor:
    """A model, or the model of a file, ready to be evaluated with or without regard to case."""
    loaded = in_memory(model)
    if isinstance(loaded, NGramModel):
        return NGramPredictor(loaded, cased=cased)
    return _network_predictor(loaded, cased=cased) if _is_network(loaded) else loaded


def as_scorer(model: "Model | Predictor", *, cased: bool) -> Predictor | PieceScorer:
    """The same, and also networks of word pieces, which have likelihoods alone."""
    loaded = in_memory(model, pieces=True)
    if _is_network(loaded) and loaded.coding.pieces is not None:
        return PieceScorer(loaded, cased=cased)
    return as_predictor(loaded, cased=cased)


def in_memory(model: "Model | Predictor", *, pieces: bool = False) -> Any:
    """An `NGramModel`, a network of words, or a predictor: what `as_predictor` can use without reading a file.

    With `pieces`, networks of word pieces are accepted too.
    """
    loaded: Any = load_model(model) if isinstance(model, str | Path) else model
    if isinstance(loaded, PackedModel):
        return unpack_model(loaded)
    if isinstance(loaded, NGramModel | Predictor):
        return loaded
    if not _is_network(loaded):
        raise FedgramError(f"a {type(loaded).__name__} cannot be evaluated: it is not a model")
    if loaded.coding.pieces is not None and not pieces:
        raise FedgramError(
            "a network of word pieces suggests no words; compare such networks by SLL^e: fedgram evaluate, or "
            "fedgram network score"
        )
    return loaded


def vocabulary_of(model: "Model | Predictor") -> Vocabulary:
    """The words of a model; for a network of word pieces, 𝒱."""
    loaded = in_memory(model, pieces=True)
    if isinstance(loaded, NGramModel):
        return loaded.vocabulary
    words: Vocabulary = loaded.coding.known if _is_network(loaded) else loaded.forms.vocabulary
    return words


def _is_network(loaded: Any) -> bool:
    return hasattr(loaded, "weights") and hasattr(loaded, "coding")  # torch is not imported to know


def load_model(path: str | Path) -> Any:
    """The model of a file: an `NGramModel`, a `PackedModel` or a `Network`."""
    model_suffix(path, SUFFIXES)
    return load(path)


def _network_predictor(network: "Network", *, cased: bool) -> Predictor:
    torch_device = lazy(".neural.torch_devices:choose_torch_device")("auto", cpu_threads=None)
    weights = lazy(".neural.network:as_tensors")(network.weights, torch_device)
    log_probs = partial(lazy(".neural.distributions:next_word_log_probs"), network.shape, weights)
    return DensePredictor(network.coding.vocabulary, log_probs, cased=cased)
