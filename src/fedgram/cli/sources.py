"""Opening the source of a distillation by its name: the one place to add another kind of source."""

from fedgram.core.errors import FedgramError
from fedgram.distill.source import NGramSource, SourceModel
from fedgram.formats.models import READERS, is_model, read_model

DEVICES = ("auto", "cpu", "cuda")


def open_source(name: str, *, device: str) -> SourceModel:
    """An n-gram model by its suffix; networks (`.safetensors`) and Hugging Face models (`hf:PATH`) are to come."""
    if is_model(name):
        return NGramSource(read_model(name))
    kinds = f"use an n-gram model: {', '.join(READERS)}"
    if name.startswith("hf:") or name.endswith(".safetensors"):
        raise FedgramError(f"{name}: networks cannot be distilled yet (device {device}); {kinds}")
    raise FedgramError(f"{name}: is not the name of a source; {kinds}")
