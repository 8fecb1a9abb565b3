"""Several processes that share work: torch.distributed, as torchrun sets it up.

In training, every rank holds the whole state and trains a share of the chunks; in counting, a share of the samples.
Sums over all ranks make them agree again. Sums are integers, so they do not depend on the number of ranks.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgram.core.errors import FedgramError


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among several; alone unless told."""

    rank: int = 0
    size: int = 1

    def add(self, tensors: list[Tensor]) -> None:
        """Replace integer tensors by their sums over all ranks."""
        if self.size > 1:
            with _together():
                for tensor in tensors:
                    torch.distributed.all_reduce(tensor)

    def sum(self, arrays: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """The sums of integer arrays over all ranks."""
        if self.size == 1:
            return list(arrays)
        tensors = [torch.from_numpy(array.copy()) for array in arrays]
        self.add(tensors)
        return [tensor.numpy() for tensor in tensors]

    def same(self, numbers: list[float]) -> list[float]:
        """The numbers of rank 0, on every rank."""
        if self.size == 1:
            return numbers
        shared = torch.tensor(numbers, dtype=torch.float64)
        with _together():
            torch.distributed.broadcast(shared, 0)
        return [float(x) for x in shared]

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1:
            torch.distributed.destroy_process_group()


@contextmanager
def _together() -> Iterator[None]:
    """What all ranks do at once; an error there is that another one has gone, or cannot be reached."""
    try:
        yield
    except RuntimeError as error:
        raise FedgramError(
            "another process of this training or counting has gone; start again, and it goes on from what is kept"
        ) from error


def join_ranks() -> Ranks:
    """Join the other processes if torchrun started this one."""
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Ranks()
    if torch.distributed.is_initialized():
        return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return join_at("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def is_leader() -> bool:
    """Whether this process speaks and writes for all that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


def join_at(where: str, rank: int, size: int) -> Ranks:
    """Join `size` processes that meet at an address of torch.distributed's, as one of them."""
    if not torch.distributed.is_available():
        raise FedgramError("this build of torch has no torch.distributed; use one worker")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, init_method=where, rank=rank, world_size=size)
    return Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
