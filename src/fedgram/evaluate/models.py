"""Opening whatever can be evaluated, by the suffix of its file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedgram.core.errors import InputError
from fedgram.evaluate.dense import DensePredictor
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.evaluate.predictor import Predictor
from fedgram.fgram.pack import unpack_model
from fedgram.fgram.reader import open_model
from fedgram.formats.models import READERS, model_suffix, read_model


def _open_ngram(path: str | Path, cased: bool) -> Predictor:
    return NGramPredictor(read_model(path), cased=cased)


def _open_packed(path: str | Path, cased: bool) -> Predictor:
    return NGramPredictor(unpack_model(open_model(path)), cased=cased)


def _open_network(path: str | Path, cased: bool) -> Predictor:
    from fedgram.neural.distributions import next_word_log_probs
    from fedgram.neural.network import as_tensors, read_network
    from fedgram.neural.torch_devices import choose_device

    network = read_network(path)
    if network.coding.pieces is not None:
        remedy = "compare networks of pieces by SLL^e: fedgram score"
        raise InputError(path, "is a network of word pieces, without probabilities of whole words", remedy=remedy)
    weights = as_tensors(network.weights, choose_device("auto"))
    return DensePredictor(
        network.coding.vocabulary, partial(next_word_log_probs, network.shape, weights), cased=cased
    )  # fmt: skip


OPENERS: dict[str, Callable[[str | Path, bool], Predictor]] = {
    **dict.fromkeys(READERS, _open_ngram), ".fgram": _open_packed, ".safetensors": _open_network,
}  # fmt: skip


def predictor_suffix(path: str | Path) -> str:
    """The format that a file's name asks for."""
    return model_suffix(path, tuple(OPENERS))


def open_predictor(path: str | Path, *, cased: bool) -> Predictor:
    """The model of a file, ready to be evaluated with or without regard to case."""
    return OPENERS[predictor_suffix(path)](path, cased)
