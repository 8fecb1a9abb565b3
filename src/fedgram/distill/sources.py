"""Opening the source of a distillation by its name: the one place to add another kind of source."""

from collections.abc import Callable

from fedgram.core.errors import FedgramError
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.sample_approx import ALONE, BATCH, SHARD, CountingOptions, Ranks
from fedgram.distill.source import NGramSource, SourceModel
from fedgram.formats.models import READERS, is_model, read_model
from fedgram.text.wordpieces import WordPieces, load_pieces, pieces_from_bytes

DEVICES = ("auto", "cpu", "cuda")
HF = "hf:"


def open_source(name: str, *, device: str) -> SourceModel:
    """An n-gram model by its suffix, a network (`.safetensors`), or a Hugging Face model (`hf:PATH`)."""
    if is_model(name):
        return NGramSource(read_model(name))
    if name.startswith(HF) or name.endswith(".safetensors"):
        return _open_network(name, device)
    raise FedgramError(f"{name}: is not the name of a source; use a network (.safetensors), {HF}FOLDER, "
                       f"or an n-gram model: {', '.join(READERS)}")  # fmt: skip


def _open_network(name: str, device: str) -> SourceModel:
    import torch

    from fedgram.distill.network_source import NetworkSource
    from fedgram.neural.network import read_network
    from fedgram.neural.torch_devices import choose_device

    place = choose_device(device)
    if place.type == "cpu":
        torch.set_num_threads(1)  # the threads that count share the cores
    if name.startswith(HF):
        from fedgram.distill.hf_source import HFSource

        return HFSource(name.removeprefix(HF), place)
    return NetworkSource(read_network(name), place)


def pieces_of(source: SourceModel, path: str | None) -> WordPieces | None:
    """The word pieces in a file, or those that a network carries."""
    if path:
        return load_pieces(path)
    content = getattr(getattr(getattr(source, "network", None), "coding", None), "pieces", None)
    return pieces_from_bytes(content) if content else None


def join_ranks_of(source: str) -> Ranks:
    """The other processes that torchrun started; n-gram models are counted by each of them."""
    if is_model(source):
        return ALONE
    from fedgram.neural.ranks import join_ranks

    return join_ranks()


def counting_options(
    source: SourceModel, workers: int, checkpoint: Checkpoint | None, on_samples: Callable[[int], object], ranks: Ranks
) -> CountingOptions:
    """As is best for a source: a network has its samples walk together, as many as there are, to share rows."""
    batch, shard = getattr(source, "batch", BATCH), getattr(source, "shard", SHARD)
    threads = getattr(source, "most_threads", workers)
    return CountingOptions(min(workers, threads), batch, checkpoint, on_samples, ranks, shard)
