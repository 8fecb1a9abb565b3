"""Local training on devices: steps of gradient descent from the server's model, for many devices at once.

Clients train together on a stack of weights, with one forward and one backward pass for all of them. No weight is
shared between clients, so the gradient of the summed loss is each client's own. Clients with more batches should come
first: clients that have finished are left out of the later steps.

CIFG networks without groups use the hand-written step of `neural/explicit_step.py`. All other networks, those with
registered cells included, use automatic differentiation. Paper: §7.1.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgram.core.errors import FedgramError
from fedgram.neural import explicit_step
from fedgram.neural.batching import NOTHING, ClientBatches
from fedgram.neural.cell import Weights
from fedgram.neural.dropout import Dropout, seeds_in_step
from fedgram.neural.model import ModelShape, word_losses


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """The settings of a device: the learning rate, an optional limit on each step's gradient, and dropout."""

    learning_rate: float = 0.5
    gradient_norm: float | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise FedgramError(f"the learning rate must be greater than 0 and finite, not {self.learning_rate}")
        if self.gradient_norm is not None and not self.gradient_norm > 0:
            raise FedgramError(f"the gradient's norm limit must be greater than 0, not {self.gradient_norm}")
        if not 0 <= self.dropout < 1:
            raise FedgramError(f"dropout must be at least 0 and below 1, not {self.dropout}")


@dataclass(frozen=True, slots=True, eq=False)
class LocalResult:
    """The clients' weights as a stack, and each client's loss, summed over its targets, before each step.

    On a GPU, the clients from `first` on have finished when the event `early` occurs, while the others still train.
    """

    weights: Weights
    loss: Tensor
    first: int = 0
    early: torch.cuda.Event | None = None


def train_clients(shape: ModelShape, start: Weights, batches: ClientBatches, options: LocalTraining) -> LocalResult:
    """Train every client from the same weights on its own batches, in order, where the weights are.

    On a GPU, the next call overwrites the result.
    """
    torch_device = start["embedding"].device
    words, targets = (
        torch.from_numpy(a).to(torch_device, non_blocking=True).long().permute(1, 0, 3, 2).contiguous()
        for a in (batches.words, batches.targets)
    )
    steps, clients = words.shape[:2]
    active = [int(np.flatnonzero(batches.steps > t)[-1]) + 1 for t in range(steps)]
    by_hand = explicit_step.supports(shape) and options.gradient_norm is None
    seeds = torch.from_numpy(batches.seeds).to(torch_device, non_blocking=True)
    dropout = Dropout(options.dropout, seeds) if options.dropout else None
    if by_hand and torch_device.type == "cuda":
        from fedgram.neural.gpu.recorded_steps import recorded_steps

        return LocalResult(*recorded_steps(shape, start, words, targets, active, options.learning_rate, dropout))
    stack = {name: w.expand(clients, *w.shape).clone() for name, w in start.items()}
    loss = start["embedding"].new_zeros(clients)
    rate = torch.full_like(loss[:1], options.learning_rate)
    with torch.no_grad():
        for t, n in enumerate(active):
            own = {name: w[:n] for name, w in stack.items()}
            here = words[t, :n], targets[t, :n]
            dropped = Dropout(dropout.share, seeds_in_step(seeds[:n], t)) if dropout else None
            if by_hand:
                loss[:n] += explicit_step.descend(shape, own, *here, rate, explicit_step, dropped)
            else:
                loss[:n] += _descend(shape, own, *here, options, dropped)
    return LocalResult(stack, loss)


def mean_gradient(
    shape: ModelShape, weights: Weights, words: Tensor, targets: Tensor, dropout: Dropout | None = None
) -> tuple[Weights, Tensor]:
    """The gradient of the mean loss of one batch, [rows, length], of one model, and the mean loss.

    The gradient is the change of the weights by a step with learning rate 1. The next call overwrites it.
    """
    words, targets = words.mT.unsqueeze(0).contiguous(), targets.mT.unsqueeze(0).contiguous()
    asked = (targets != NOTHING).sum()
    if not explicit_step.supports(shape):
        with torch.enable_grad():
            leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
            loss = word_losses(shape, leaves, words[0].mT, targets[0].mT, dropout).sum() / asked
            return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)), loss.detach()
    with torch.no_grad():
        if weights["embedding"].device.type == "cuda":
            from fedgram.neural.gpu.recorded_steps import recorded_steps

            moved, loss, *_ = recorded_steps(shape, weights, words[None], targets[None], [1], 1.0, dropout)
        else:
            moved = {name: w.unsqueeze(0).clone() for name, w in weights.items()}
            rate = torch.ones_like(weights["embedding"][:1, 0])
            loss = explicit_step.descend(shape, moved, words, targets, rate, explicit_step, dropout)
        return {name: w - moved[name][0] for name, w in weights.items()}, loss[0] / asked


def _descend(
    shape: ModelShape, weights: Weights, words: Tensor, targets: Tensor, options: LocalTraining,
    dropout: Dropout | None,
) -> Tensor:  # fmt: skip
    """One step by automatic differentiation, for any model; returns each client's summed loss before the step."""
    with torch.enable_grad():
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        losses = word_losses(shape, leaves, words.mT, targets.mT, dropout).sum(dim=(1, 2))
        asked = (targets != NOTHING).sum(dim=(1, 2)).clamp(min=1)
        gradients = torch.autograd.grad((losses / asked).sum(), list(leaves.values()))
    rate = _rates(gradients, options)
    for w, g in zip(weights.values(), gradients, strict=True):
        w.sub_(rate.view(-1, *[1] * (w.dim() - 1)) * g)
    return losses.detach()


def _rates(gradients: tuple[Tensor, ...], options: LocalTraining) -> Tensor:
    """The learning rate of each client, reduced where the norm of its gradient exceeds the limit."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    rate = torch.full_like(norms, options.learning_rate)
    if options.gradient_norm is None:
        return rate
    shortened: Tensor = rate * (options.gradient_norm / (norms + 1e-6)).clamp(max=1.0)
    return shortened
