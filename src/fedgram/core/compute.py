"""What computes: where networks run, and how many cores share the work. No result depends on it, except in rounding."""

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from fedgram.core.settings import Between, Settings, setting


def available_cores() -> int:
    """The number of cores that this process may use, which can be fewer than the machine has."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Compute(Settings):
    """The means of an operation."""

    torch_device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "Where networks run; auto means the GPU if there is one.", formerly="device"
    )
    workers: Annotated[int, Between(0)] = setting(
        0, "Number of processes or threads; 0 means one per core. It does not change the result."
    )

    @property
    def cores(self) -> int:
        """The number of workers."""
        return self.workers or available_cores()
