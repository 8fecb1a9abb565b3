"""Opening whatever can be evaluated, by the suffix of its file."""

from collections.abc import Callable
from pathlib import Path

from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.evaluate.predictor import Predictor
from fedgram.formats.models import READERS, model_suffix, read_model


def _open_ngram(path: str | Path, cased: bool) -> Predictor:
    return NGramPredictor(read_model(path), cased=cased)


OPENERS: dict[str, Callable[[str | Path, bool], Predictor]] = dict.fromkeys(READERS, _open_ngram)


def predictor_suffix(path: str | Path) -> str:
    """The format that a file's name asks for."""
    return model_suffix(path, tuple(OPENERS))


def open_predictor(path: str | Path, *, cased: bool) -> Predictor:
    """The model of a file, ready to be evaluated with or without regard to case."""
    return OPENERS[predictor_suffix(path)](path, cased)
