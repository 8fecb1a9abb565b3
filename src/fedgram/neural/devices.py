"""Where to compute: the CPU, or a GPU with the settings that pay."""

import torch

from fedgram.core.errors import FedgramError


def choose_device(name: str) -> str:
    """`auto` is a GPU where there is one. On a GPU products may use tensor cores (TF32)."""
    if name == "cuda" and not torch.cuda.is_available():
        raise FedgramError("no GPU was found; use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return "cpu"
    torch.set_float32_matmul_precision("high")
    return "cuda"
