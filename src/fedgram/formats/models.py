"""Reading and writing models by the suffix of the file's name."""

from collections.abc import Callable
from pathlib import Path

from fedgram.automata.model import NGramModel
from fedgram.core.errors import InputError
from fedgram.formats.arpa import read_arpa, write_arpa
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.formats.openfst import read_openfst, write_openfst

READERS: dict[str, Callable[[str | Path], NGramModel]] = {
    ".arpa": read_arpa,
    ".arpa.gz": read_arpa,
    ".fst": read_openfst,
    ".ngram": read_ngram,
}
WRITABLE = (".arpa", ".arpa.gz", ".fst", ".fst.txt", ".ngram")


def model_suffix(path: str | Path, known: tuple[str, ...]) -> str:
    """The format that a file's name asks for."""
    for suffix in sorted(known, key=len, reverse=True):
        if str(path).endswith(suffix):
            return suffix
    if str(path).endswith(".fgram"):
        remedy = f"use {' '.join(known)}, or pack the model: fedgram phone pack, fg.pack"
        raise InputError(path, "is a name for a packed model", remedy=remedy)
    suffix = Path(path).suffix
    problem = f"the suffix {suffix} is not a model format" if suffix else "has no suffix of a model format"
    raise InputError(path, problem, remedy=f"use one of {', '.join(known)}")


def is_model(path: str | Path) -> bool:
    """Whether a file's name says that it is a model."""
    return any(str(path).endswith(suffix) for suffix in READERS)


def read_model(path: str | Path) -> NGramModel:
    """Read a model in the format of its name."""
    return READERS[model_suffix(path, tuple(READERS))](path)


def write_model(model: NGramModel, path: str | Path, *, fst_style: str = "epsilon") -> None:
    """Write a model in the format of its name, whole or not at all."""
    suffix = model_suffix(path, WRITABLE)
    if suffix in (".arpa", ".arpa.gz"):
        write_arpa(model, path)
    elif suffix == ".ngram":
        write_ngram(model, path)
    else:
        write_openfst(model, path, style=fst_style)
