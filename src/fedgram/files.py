"""Everything that is kept in a file, read and written by the suffix of its name.

.arpa .arpa.gz .fst .fst.txt .ngram    n-gram models (`.fst.txt` is only written)
.fgram                                 packed models for phones
.safetensors                           networks
.unigrams                              word frequencies
.parquet .population                   populations
.model                                 word pieces, in SentencePiece's format
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.core.lazy import lazy
from fedgram.fgram.pack import BITS
from fedgram.fgram.pack import pack as write_packed
from fedgram.fgram.reader import PackedModel, open_model
from fedgram.formats.models import READERS, WRITABLE, model_suffix, write_model
from fedgram.text.population import Population, open_population, write_population
from fedgram.text.unigrams import UnigramCounts, read_unigram_counts, write_unigrams
from fedgram.text.wordpieces import load_pieces

_READERS: dict[str, Callable[[str | Path], Any]] = {
    **READERS,
    ".fgram": open_model,
    ".safetensors": lambda path: lazy(".neural.network:read_network")(path),
    ".unigrams": read_unigram_counts,
    ".parquet": open_population,
    ".population": open_population,
    ".model": load_pieces,
}


def load(path: str | Path) -> Any:
    """Read a file by its suffix.

    The result is an `NGramModel`, a `PackedModel`, a `Network`, `UnigramCounts`, a `Population` or `WordPieces`.
    """
    return _READERS[model_suffix(path, tuple(_READERS))](path)


def save(thing: object, path: str | Path) -> None:
    """Write an n-gram model, a network, word frequencies or a population, by the suffix of the file."""
    if isinstance(thing, NGramModel):
        write_model(thing, path)
    elif isinstance(thing, UnigramCounts):
        write_unigrams(_named(path, ".unigrams"), thing)
    elif isinstance(thing, Population):
        write_population(_named(path, ".population"), thing)
    elif hasattr(thing, "weights") and hasattr(thing, "coding"):  # a network; torch is not imported for others
        lazy(".neural.network:write_network")(_named(path, ".safetensors"), thing)
    elif isinstance(thing, PackedModel):
        raise FedgramError("a packed model is a file already; copy it, or save the model that it was made of")
    else:
        others = "networks (.safetensors), unigrams (.unigrams), populations (.population)"
        known = f"n-gram models ({' '.join(WRITABLE)}), {others}"
        raise FedgramError(f"a {type(thing).__name__} cannot be saved; choose one of {known}")


def pack(model: NGramModel, path: str | Path, *, bits: int = BITS) -> PackedModel:
    """Write a model as an `lm.fgram` for phones and browsers, and open it.

    Args:
        model: The n-gram model.
        path: The file to write.
        bits: Bits per probability.
    """
    if not isinstance(model, NGramModel):
        kind = type(model).__name__
        raise FedgramError(
            f"only n-gram models can be packed, not a value of type {kind}; read files with fg.load first"
        )
    write_packed(model, _named(path, ".fgram"), bits=bits)
    return open_model(path)


def _named(path: str | Path, suffix: str) -> str | Path:
    model_suffix(path, (suffix,))
    return path
