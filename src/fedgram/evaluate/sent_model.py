"""A model as it is sent to devices: the bytes of a file, and the suffix that says of which kind.

Packed models, networks and `.ngram` models are sent as they are. Other n-gram models are sent as `.ngram`, which is
exact. A device trusts none of these bytes: it reads them as it reads any file, and the digest must be that of the job.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.core.lazy import lazy
from fedgram.evaluate.models import SUFFIXES, Model, in_memory, load_model
from fedgram.evaluate.predictor import Predictor
from fedgram.fgram.reader import PackedModel
from fedgram.formats.artefact import write_ngram
from fedgram.formats.models import model_suffix

SENT = (".fgram", ".ngram", ".safetensors")


@dataclass(frozen=True)
class SentModel:
    """The content of a model's file; its `repr` shows the size."""

    suffix: str
    content: bytes

    def __post_init__(self) -> None:
        if self.suffix not in SENT:
            raise FedgramError(f"a model for devices must be one of {', '.join(SENT)}")

    @classmethod
    def of(cls, model: "Model | Predictor") -> "SentModel":
        """A model, or the model of a file."""
        path = model.path if isinstance(model, PackedModel) else model
        if isinstance(path, str | Path):
            suffix = model_suffix(path, SUFFIXES)
            if suffix in SENT:
                return cls(suffix, Path(path).read_bytes())
        loaded: Any = load_model(path) if isinstance(path, str | Path) else path
        if isinstance(loaded, NGramModel):
            return cls(".ngram", _written(lambda file: write_ngram(loaded, file)))
        if not (hasattr(loaded, "weights") and hasattr(loaded, "coding")):
            raise FedgramError(f"a {type(loaded).__name__} cannot be sent to devices: it is not a model with a file")
        return cls(".safetensors", _written(lambda file: lazy(".neural.network:write_network")(file, loaded)))

    @cached_property
    def digest(self) -> str:
        """The digest of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def load(self) -> Any:
        """The model in memory: an `NGramModel` or a network."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"model{self.suffix}"
            path.write_bytes(self.content)
            return in_memory(path, pieces=True)

    def __repr__(self) -> str:
        return f"SentModel({self.suffix}, {len(self.content):,} bytes)"


def _written(write: Callable[[Path], object]) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        write(path)
        return path.read_bytes()
