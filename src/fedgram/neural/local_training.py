"""What devices do with the server's model: some steps of gradient descent on their own text, many devices at once.

The clients of a chunk train together on a stack of weights: one forward and one backward pass serve all of them, and
since no weight is shared between clients, the gradient of the summed loss is each client's own. Paper: §7.1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgram.core.errors import FedgramError
from fedgram.neural.batching import ClientBatches
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape, word_losses


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How a device trains: its learning rate, and a limit on the norm of each step's gradient, if any."""

    learning_rate: float = 0.5
    gradient_norm: float | None = None

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise FedgramError(f"the learning rate must be greater than 0, not {self.learning_rate}")
        if self.gradient_norm is not None and not self.gradient_norm > 0:
            raise FedgramError(f"the gradient's norm limit must be greater than 0, not {self.gradient_norm}")


@dataclass(frozen=True, slots=True, eq=False)
class LocalResult:
    """Each client's weights minus the server's, stacked; and by client the summed loss before each step, and tokens."""

    change: Weights
    loss: Tensor
    tokens: Tensor


def train_clients(
    shape: ModelShape, weights: Weights, batches: ClientBatches, options: LocalTraining, device: str = "cpu"
) -> LocalResult:
    """Train every client from the same weights, each on its own batches, in order."""
    clients, steps = batches.mask.shape[:2]
    words, targets, mask = (torch.from_numpy(a).to(device) for a in (batches.words, batches.targets, batches.mask))
    start = {name: w.to(device) for name, w in weights.items()}
    stack = {name: w.expand(clients, *w.shape).clone() for name, w in start.items()}
    loss = start["embedding"].new_zeros(clients)
    for t in range(steps):
        for w in stack.values():
            w.requires_grad_(True)
        losses = word_losses(shape, stack, words[:, t], targets[:, t], mask[:, t]).sum(dim=(1, 2))
        tokens = mask[:, t].sum(dim=(1, 2)).clamp(min=1.0)
        gradients = torch.autograd.grad((losses / tokens).sum(), list(stack.values()))
        loss += losses.detach()
        with torch.no_grad():
            scale = _scales(gradients, options)
            stack = {
                name: (w - scale.view(-1, *[1] * (w.dim() - 1)) * g).detach()
                for (name, w), g in zip(stack.items(), gradients, strict=True)
            }
    change = {name: stack[name] - start[name] for name in start}
    return LocalResult(change, loss, mask.sum(dim=(1, 2, 3)))


def _scales(gradients: tuple[Tensor, ...], options: LocalTraining) -> Tensor:
    """By client: the learning rate, lowered where the gradient is too long."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    rate = torch.full_like(norms, options.learning_rate)
    if options.gradient_norm is None:
        return rate
    shortened: Tensor = rate * (options.gradient_norm / (norms + 1e-6)).clamp(max=1.0)
    return shortened
