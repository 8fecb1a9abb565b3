"""Training on text that a server may see, such as a supplemental corpus: Adam over shuffled batches, many epochs.

Federated training may start from such a network, and a network trained on pooled text says what the same model could
reach if text were collected. Training that is interrupted goes on from its checkpoint to the same weights; one that is
damaged, or of other work, is not used.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import cos, pi
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgram.core.arrays import Ragged
from fedgram.core.checkpoint import read_checkpoint, write_checkpoint
from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.progress import Begin, silent
from fedgram.core.random import stream
from fedgram.core.settings import chosen
from fedgram.core.storage import Record, content_digest
from fedgram.neural.batching import pack_clients
from fedgram.neural.cell import Weights
from fedgram.neural.dropout import Dropout, seeds_in_step
from fedgram.neural.local_training import mean_gradient
from fedgram.neural.model import ModelShape
from fedgram.neural.network import Network, as_arrays, as_tensors
from fedgram.neural.torch_devices import choose_torch_device
from fedgram.text.corpus import Corpus
from fedgram.text.vocabulary import SPECIAL
from fedgram.training.options import PretrainingOptions

_DEFAULT = PretrainingOptions()
_STEPS = 1000  # of a progress bar
_WARMUP = 0.05  # the share of all batches over which the learning rate rises


def pretrain(
    network: Network,
    corpus: Corpus,
    options: PretrainingOptions | None = None,
    *,
    seed: int = 0,
    compute: Compute | None = None,
    checkpoint: Path | None = None,
    begin: Begin = silent,
    **settings: Any,
) -> Network:
    """Train a network on a corpus that a server may see.

    Args:
        network: The network to start from.
        corpus: Sentences, as `read_corpus` reads them.
        options: How to train; its fields may be given as keywords instead.
        seed: Of the order of sentences.
        compute: Where to train.
        checkpoint: A file; an interrupted training resumes from it.
        begin: Progress callback.
    """
    options = chosen(PretrainingOptions, options, settings)
    about = {**network.about, "epochs": options.epochs, "central": True}
    if not options.epochs:
        return replace(network, about=about)
    torch_device = choose_torch_device((compute or Compute()).torch_device)
    codes = network.coding.codes(corpus.vocabulary.words[len(SPECIAL) :])
    codes = codes.take(corpus.sentences.values - len(SPECIAL))
    sentences = Ragged(codes.values, codes.offsets[corpus.sentences.offsets])
    advance, done = begin("Pretraining", _STEPS), [0]

    def on_batch(share: float, loss: float) -> None:
        advance(int(_STEPS * share) - done[0], f"Pretraining: loss {loss:.3f}")
        done[0] = int(_STEPS * share)

    weights = train_centrally(
        network.shape, as_tensors(network.weights, torch_device), sentences,
        CentralTraining(options.epochs, options.learning_rate, options.rows, seed=seed, dropout=options.unit_dropout),
        on_batch=on_batch, checkpoint=checkpoint,
    )  # fmt: skip
    return replace(network, weights=as_arrays(weights), about=about)


@dataclass(frozen=True, slots=True)
class CentralTraining:
    """Epochs, the largest learning rate, and the size of a batch; the rate rises a little while, then falls to 0."""

    epochs: int = _DEFAULT.epochs
    learning_rate: float = _DEFAULT.learning_rate
    rows: int = _DEFAULT.rows
    length: int = 32
    gradient_norm: float = 1.0
    seed: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.epochs, self.rows, self.length) < 1 or not self.learning_rate > 0 or not self.gradient_norm > 0:
            raise FedgramError("epochs, rows, length, the learning rate and the norm limit must be greater than 0")


def train_centrally(
    shape: ModelShape, start: Weights, sentences: Ragged, options: CentralTraining, *,
    on_batch: Callable[[float, float], object] = lambda *_: None, checkpoint: Path | None = None, pause: float = 60.0,
) -> Weights:  # fmt: skip
    """Train weights on sentences, on the weights' torch device; `on_batch` gets the share that is done, and the loss.

    A checkpoint is written every `pause` seconds, and removed at the end.
    """
    if not len(sentences.values):
        raise FedgramError("there is no text to train on")
    torch_device = start["embedding"].device
    weights = {name: w.clone().requires_grad_() for name, w in start.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=options.learning_rate, fused=torch_device.type == "cuda")
    kept = _Checkpoint(checkpoint, _work(shape, start, sentences, options), pause) if checkpoint else None
    before, number = kept.restore(weights, optimizer) if kept else 0, 0
    for epoch in range(options.epochs):
        order = stream(options.seed, "central", epoch).permutation(len(sentences))
        packed = pack_clients([sentences], rows=options.rows, length=options.length, orders=[order.astype(np.int64)])
        words, targets = (torch.from_numpy(a[0]).to(torch_device).long() for a in (packed.words, packed.targets))
        for k in range(len(words)):
            number += 1
            if number <= before:
                continue
            done = (epoch + k / len(words)) / options.epochs
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * _rate(done)
            seeds = torch.tensor([number], dtype=torch.int32, device=torch_device)
            dropout = Dropout(options.dropout, seeds_in_step(seeds, options.seed)) if options.dropout else None
            gradient, loss = mean_gradient(shape, weights, words[k], targets[k], dropout)
            for name, w in weights.items():
                w.grad = gradient[name]
            torch.nn.utils.clip_grad_norm_(list(weights.values()), options.gradient_norm)
            optimizer.step()
            if k % 100 == 0:
                on_batch(done, float(loss))
            if kept:
                kept.keep(weights, optimizer, number)
    if kept:
        kept.path.unlink(missing_ok=True)
    return {name: w.detach() for name, w in weights.items()}


class _Checkpoint:
    """Weights and Adam's two moments after so many batches, in one file that is replaced whole."""

    def __init__(self, path: Path, work: str, pause: float) -> None:
        self.path, self._work, self._pause, self._written = path, work, pause, monotonic()

    def keep(self, weights: Weights, optimizer: torch.optim.Adam, batches: int) -> None:
        """Write a checkpoint, if it is time for one."""
        if monotonic() < self._written + self._pause:
            return
        arrays = as_arrays({f"weights.{name}": w.detach() for name, w in weights.items()})
        for name, w in weights.items():
            arrays |= as_arrays({f"{part}.{name}": optimizer.state[w][part] for part in _MOMENTS})
        write_checkpoint(self.path, batches, Record({}, arrays), {"training": self._work})
        self._written = monotonic()

    @torch.no_grad()
    def restore(self, weights: Weights, optimizer: torch.optim.Adam) -> int:
        """Put everything where the checkpoint has it; returns its number of batches, 0 if there is none."""
        try:
            batches, record = read_checkpoint(self.path, {"training": self._work})
        except (FileNotFoundError, InputError):
            return 0
        for name, w in weights.items():
            w.copy_(torch.from_numpy(record.arrays[f"weights.{name}"]))
            moments = {p: torch.from_numpy(record.arrays[f"{p}.{name}"]).to(w.device) for p in _MOMENTS}
            optimizer.state[w] = {"step": torch.tensor(float(batches), device=w.device), **moments}
        return batches


_MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch's Adam calls them


def _work(shape: ModelShape, start: Weights, sentences: Ragged, options: CentralTraining) -> str:
    """A digest of all that the result depends on."""
    arrays: dict[str, NDArray[Any]] = dict(as_arrays(start))
    arrays |= {"sentences.values": sentences.values, "sentences.offsets": sentences.offsets}
    return content_digest({"shape": asdict(shape), "options": asdict(options)}, arrays)


def _rate(done: float) -> float:
    """A short rise, then a cosine down to 0."""
    return min(1.0, done / _WARMUP + 1e-3) * (1.0 + cos(pi * done)) / 2.0
