"""Reading and writing models by the suffix of the file's name, and through pipes.

`-` is standard input or output. What comes through a pipe has no name, so its format is recognised by its first bytes;
what goes into one is in the format that `--format` names.
"""

import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from fedgram.automata.model import NGramModel
from fedgram.core.errors import InputError
from fedgram.core.unpacking import PACKED
from fedgram.formats.arpa import read_arpa, write_arpa
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.formats.openfst import read_openfst, write_openfst
from fedgram.text.corpus import open_text

ARPA = tuple(name + packed for name in (".arpa", ".lm") for packed in ("", *PACKED))
READERS: dict[str, Callable[[str | Path], NGramModel]] = {
    **dict.fromkeys(ARPA, read_arpa),
    ".fst": read_openfst,
    ".ngram": read_ngram,
}
WRITABLE = (*ARPA, ".fst", ".fst.txt", ".ngram")
FORMATS = ("arpa", "arpa.gz", "arpa.bz2", "arpa.zst", "fst", "ngram")
_OPENFST_MAGIC = bytes.fromhex("d6fdb27e")


def model_suffix(path: str | Path, known: Sequence[str]) -> str:
    """The format that a file's name asks for."""
    for suffix in sorted(known, key=len, reverse=True):
        if str(path).endswith(suffix):
            return suffix
    shown = [suffix for suffix in known if suffix not in ARPA or suffix in (".arpa", ".arpa.gz", ".lm")]
    if str(path).endswith(".fgram"):
        remedy = f"use {' '.join(shown)}, or pack the model: fedgram phone pack, fg.pack"
        raise InputError(path, "is a name for a packed model", remedy=remedy)
    suffix = Path(path).suffix
    problem = f"the suffix {suffix} is not a model format" if suffix else "has no suffix of a model format"
    raise InputError(path, problem, remedy=f"use one of {', '.join(shown)}")


def is_pipe(path: str | Path) -> bool:
    """Whether it is standard input or output (`-`), or a pipe or another special file."""
    if str(path) == "-":
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_model(path: str | Path) -> bool:
    """Whether a file's name says that it is a model."""
    return any(str(path).endswith(suffix) for suffix in READERS)


def read_model(path: str | Path) -> NGramModel:
    """Read a model in the format of its name; through a pipe, in any format."""
    if is_pipe(path) and not is_model(path):
        return _read_pipe(path)
    return READERS[model_suffix(path, tuple(READERS))](path)


def _read_pipe(path: str | Path) -> NGramModel:
    with TemporaryDirectory(prefix="fedgram-model-") as folder, open_text(path) as file:
        copy = Path(folder) / "standard input"
        with copy.open("wb") as raw:
            shutil.copyfileobj(file, raw)
        with copy.open("rb") as raw:
            head = raw.read(9)
        if head.startswith(_OPENFST_MAGIC):
            return read_openfst(copy)
        return read_ngram(copy) if head[8:] == b"{" else read_arpa(copy)


def write_model(model: NGramModel, path: str | Path, *, fst_style: str = "epsilon", format: str | None = None) -> None:
    """Write a model in the format of its name or of `format`, whole or not at all.

    A pipe gets ARPA unless `format` names another one.
    """
    if is_pipe(path):
        _write_pipe(model, path, format or "arpa", fst_style)
        return
    suffix = f".{format}" if format else model_suffix(path, WRITABLE)
    if suffix in ARPA:
        write_arpa(model, path, packed=suffix)
    elif suffix == ".ngram":
        write_ngram(model, path)
    else:
        write_openfst(model, path, style=fst_style)


def _write_pipe(model: NGramModel, path: str | Path, format: str, fst_style: str) -> None:
    with TemporaryDirectory(prefix="fedgram-model-") as folder:
        copy = Path(folder) / f"model.{format}"
        write_model(model, copy, fst_style=fst_style)
        with copy.open("rb") as raw:
            if str(path) == "-":
                shutil.copyfileobj(raw, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            else:
                with Path(path).open("wb") as file:
                    shutil.copyfileobj(raw, file)
