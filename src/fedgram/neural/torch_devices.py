"""The choice of where to compute: the CPU, or a GPU with the settings that make it fast."""

import os

import torch

from fedgram.core.errors import FedgramError


def choose_torch_device(name: str, *, cpu_threads: int | None = 1) -> torch.device:
    """The torch device of this name: `cpu`, `cuda`, or `auto` for a GPU if there is one.

    Under torchrun, each rank of a machine gets a GPU of its own. On a GPU, matrix products may use tensor cores (TF32).

    Args:
        name: `auto`, `cpu` or `cuda`.
        cpu_threads: The number of threads that torch may use on a CPU, for this and all later calls of torch in the
            process; None leaves it as it is. The default is one, because training and counting share the cores among
            processes or threads of their own.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise FedgramError("no GPU was found; choose the torch device cpu or auto")
    if name == "cpu" or not torch.cuda.is_available():
        if cpu_threads is not None:
            torch.set_num_threads(cpu_threads)
        return torch.device("cpu")
    torch.set_float32_matmul_precision("high")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
