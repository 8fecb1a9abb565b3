"""What computes: where networks run, and how many cores share the work. No result depends on it, except in rounding."""

import os
from dataclasses import dataclass
from typing import Annotated, Literal

from fedgram.core.settings import Between, Settings, setting


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
        return self.workers or os.cpu_count() or 1
