"""Dropout whose choices depend on a seed and a place alone.

A unit of a layer is set to 0 with probability `share`, and divided by 1 − share otherwise (Srivastava et al. 2014;
between layers, not inside the recurrence: Zaremba et al. 2014). Whether a unit is dropped is a hash of its client's
seed, the step, the layer and its position. So a device drops the same units alone, in a stack, on a CPU and on a GPU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_STEP, _LAYER = 0x2545F491, 0x27220A95  # odd, so that seeds of different steps and layers differ
_BITS = 24


@dataclass(frozen=True, slots=True, eq=False)
class Dropout:
    """The share of units to drop, and for each client a seed of its current step, [clients], int32."""

    share: float
    seeds: Tensor

    def mask(self, layer: int, length: int, rows: int, width: int) -> Tensor:
        """The factors of a layer's units, [clients, length, rows, width]: 0, or 1 / (1 − share)."""
        unit = torch.arange(length * rows * width, dtype=torch.int32, device=self.seeds.device)
        x = (self.seeds + _int32(layer * _LAYER)).unsqueeze(1) ^ (unit * -0x61C88647)
        for shift, factor in ((16, 0x7FEB352D), (15, -0x7B935975)):  # "lowbias32"
            x = (x ^ (x >> shift & (1 << 32 - shift) - 1)) * factor
        kept = (x >> 8 & (1 << _BITS) - 1) >= int(self.share * (1 << _BITS))
        return (kept.to(torch.float32) / (1.0 - self.share)).view(len(self.seeds), length, rows, width)


def seeds_in_step(seeds: Tensor, step: int) -> Tensor:
    """The clients' seeds in one step."""
    return seeds + _int32(step * _STEP)


def _int32(number: int) -> int:
    """The lowest 32 bits, as a signed integer."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
