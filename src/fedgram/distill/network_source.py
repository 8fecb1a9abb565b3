"""A recurrent network, of words or of word pieces, as a source.

`</s>` ends a sentence, and `<s>` is never drawn. `<unk>` is drawn and read like any other word, since the network has
learned where unknown words occur. Paper: §4 and §6.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch

from fedgram.automata.topology import Topology
from fedgram.core.arrays import Ragged
from fedgram.core.storage import content_digest
from fedgram.distill.casing.cap_sample_approx import CasedCounting
from fedgram.distill.casing.cased_words import Casing
from fedgram.distill.sample_approx import SHARD, Counting, PlainCounting
from fedgram.distill.source import Step
from fedgram.distill.tensor_cased_counting import TensorCasedCounting
from fedgram.distill.tensor_counting import TensorCounting
from fedgram.neural import explicit_step
from fedgram.neural.decoder import RecurrentDecoder
from fedgram.neural.drawing import draw_in_tensors
from fedgram.neural.network import Network
from fedgram.neural.sampling import MAX_LENGTH, Follower, Tile, sample_labels, walk
from fedgram.text.vocabulary import Vocabulary

MANY = 1 << 16  # threads: no limit


class NetworkSource:
    """A network on a torch device; sentences are cut at `max_length` labels.

    `batch` and `shard` are the best sizes for counting its samples, and `at_once` the samples to walk together.
    """

    has_unknown = True
    batch = shard = SHARD
    at_once: int | None = None

    def __init__(
        self, network: Network, torch_device: torch.device | str = "cpu", *, max_length: int = MAX_LENGTH
    ) -> None:
        self.network, self.max_length = network, max_length
        self.decoder = _decoder(network, torch.device(torch_device))
        if self.decoder.torch_device.type != "cpu":
            self.at_once = 128 * SHARD
            self.batch = self.shard = 8 * self.at_once  # large, since the last samples of a shard leave a GPU idle

    @property
    def most_threads(self) -> int:
        """The most threads that help; one is enough to keep a GPU busy."""
        return MANY if self.decoder.torch_device.type == "cpu" else 1

    @property
    def vocabulary(self) -> Vocabulary:
        """The network's words or pieces."""
        return self.network.coding.vocabulary

    @cached_property
    def digest(self) -> str:
        """Of the vocabulary and all weights."""
        fields = {"vocabulary": self.vocabulary.digest, "max_length": self.max_length}
        return content_digest(fields, {name: np.asarray(w) for name, w in self.network.weights.items()})

    def sample(self, samples: range, *, seed: int) -> Ragged:
        """The samples with these numbers."""
        return sample_labels(self.decoder, samples, seed=seed, max_length=self.max_length, at_once=self.at_once)

    def counting(self, topology: Topology, seed: int) -> Counting:
        """In compiled code on a CPU, in tensor operations elsewhere."""
        if self.decoder.torch_device.type == "cpu":
            return PlainCounting(self, topology, seed)
        return TensorCounting(self, topology, seed)

    def cased_counting(self, casing: Casing, topology: Topology, seed: int) -> Counting:
        """The same for CapSampleApprox."""
        if self.decoder.torch_device.type == "cpu":
            return CasedCounting(self, casing, topology, seed)
        return TensorCasedCounting(self, casing, topology, seed)

    def tiles(
        self, samples: range, *, seed: int, follower: Follower | None = None, sentences: Ragged | None = None
    ) -> Iterator[Tile]:
        """The walk in tensors, drawn where the network is."""
        draw = draw_in_tensors if self.decoder.torch_device.type == "cpu" else None
        return walk(
            self.decoder, samples, seed=seed, sentences=sentences, max_length=self.max_length, draw=draw,
            follower=follower, at_once=self.at_once,
        )  # fmt: skip

    def walk(self, samples: range, *, seed: int, sentences: Ragged | None = None) -> Iterator[Step]:
        """Position by position; samples with the same labels so far share a row."""
        for tile in walk(self.decoder, samples, seed=seed, sentences=sentences, max_length=self.max_length):
            label, p = tile.label.cpu().numpy().astype(np.int32), tile.probabilities(self.decoder.labels).cpu().numpy()
            position, sample, row, entropy = (
                a.cpu().numpy() for a in (tile.position, tile.sample, tile.row, tile.entropy)
            )
            yield Step(position, sample, row, label, p, entropy)

    def __repr__(self) -> str:
        return f"NetworkSource({self.network.shape}, {self.decoder.torch_device})"


def _decoder(network: Network, torch_device: torch.device) -> RecurrentDecoder:
    """The fastest decoder for the network."""
    if torch_device.type != "cuda" or not explicit_step.supports(network.shape):
        return RecurrentDecoder(network, torch_device)
    from fedgram.neural.gpu.sampling import KernelDecoder

    return KernelDecoder(network, torch_device)
