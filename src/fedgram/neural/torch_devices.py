"""Where to compute: the CPU, or a GPU with the settings that pay."""

import os

import torch

from fedgram.core.errors import FedgramError


def choose_device(name: str) -> torch.device:
    """A device by its name; `auto` is a GPU where there is one, for every rank of torchrun its own.

    On a GPU, products may use tensor cores (TF32).
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise FedgramError("no GPU was found; use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.set_float32_matmul_precision("high")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
