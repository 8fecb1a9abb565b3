"""Opening the source of a distillation: the one place to add another kind of source."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedgram.automata.model import NGramModel
from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.lazy import lazy
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.sample_approx import ALONE, BATCH, SHARD, CountingOptions, Ranks
from fedgram.distill.source import NGramSource, SourceModel
from fedgram.formats.models import READERS, is_model, read_model
from fedgram.text.vocabulary import SPECIAL
from fedgram.text.wordpieces import WordPieces, pieces_from_bytes

if TYPE_CHECKING:
    from fedgram.neural.network import Network

HF = "hf:"
Source: TypeAlias = "SourceModel | NGramModel | Network | str | Path"


def as_source(given: Source, compute: Compute) -> SourceModel:
    """A source from an n-gram model, a network, or the name of one.

    Names are those of n-gram models by their suffix, of networks (`.safetensors`), and `hf:FOLDER` for a causal
    language model of Hugging Face's. Anything else must be a `SourceModel` already.
    """
    if isinstance(given, NGramModel):
        return NGramSource(given)
    if isinstance(given, str | Path):
        name = str(given)
        if is_model(name):
            return NGramSource(read_model(name))
        if name.startswith(HF):
            return _made(".distill.hf_source:HFSource", name.removeprefix(HF), compute)
        if not name.endswith(".safetensors"):
            raise FedgramError(
                f"{name}: is not the name of a source; use a network (.safetensors), {HF}FOLDER, or an n-gram model: "
                + ", ".join(READERS)
            )
        given = lazy(".neural.network:read_network")(name)
    if hasattr(given, "weights") and hasattr(given, "coding"):  # a network; torch is not imported for others
        return _made(".distill.network_source:NetworkSource", given, compute)
    if not isinstance(given, SourceModel):
        raise FedgramError(f"a {type(given).__name__} cannot be distilled: it is not a network or an n-gram model")
    return given


def _made(kind: str, given: object, compute: Compute) -> SourceModel:
    torch_device = lazy(".neural.torch_devices:choose_torch_device")(compute.torch_device)
    source: SourceModel = lazy(kind)(given, torch_device)
    return source


def pieces_of(source: SourceModel, given: WordPieces | None) -> WordPieces | None:
    """The word pieces of a source: those that are given, or those that a network carries."""
    if given is None:
        content = getattr(getattr(getattr(source, "network", None), "coding", None), "pieces", None)
        return pieces_from_bytes(content) if content else None
    if others := len(set(source.vocabulary.words[len(SPECIAL) :]) - set(given.pieces)):
        remedy = "train it on text that `fedgram network pieces encode` wrote with the same word pieces"
        raise InputError("source", f"{others} of its labels are not word pieces of the given inventory", remedy=remedy)
    return given


def join_ranks_of(source: str) -> Ranks:
    """The processes that torchrun started; every process counts n-gram models alone."""
    if is_model(source):
        return ALONE
    ranks: Ranks = lazy(".neural.ranks:join_ranks")()
    return ranks


def counting_options(
    source: SourceModel, workers: int, checkpoint: Checkpoint | None, on_samples: Callable[[int], object], ranks: Ranks
) -> CountingOptions:
    """What suits a source best: the samples of a network walk in large batches, so that they share rows."""
    batch, shard = getattr(source, "batch", BATCH), getattr(source, "shard", SHARD)
    threads = getattr(source, "most_threads", workers)
    return CountingOptions(min(workers, threads), batch, checkpoint, on_samples, ranks, shard, cores=workers)
