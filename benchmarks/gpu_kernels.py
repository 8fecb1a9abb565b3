"""The kernels of a training step on a GPU: whether they are right there, and how far from the memory's speed they are.

    python -m benchmarks.gpu_kernels [--preset W_30K] [--clients 500] [--rows 8] [--length 12]

First a step of a few clients is taken by the kernels and by the plain functions in single precision, from the same
weights: by weight, the length of the difference of the two changes against that of the change, and beside it what comes
of rounding the operands of the recurrence to bfloat16 alone. Kernels that are wrong on this GPU, though right in
Triton's interpreter, show here; without a GPU the rounding is all there is. Then each inner function of
`neural/explicit_step.py` is timed by itself, and its bytes, each counted once, are compared with what a copy moves in
that time. Before that, some clients of a round are made to diverge: the sum must be that of the others, to the bit.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from benchmarks.federated_training import copied_bytes_a_second, make
from benchmarks.measure import save
from torch import Tensor

from fedgram.federated.intake import Intake
from fedgram.neural import explicit_step
from fedgram.neural.gpu import kernels as gpu_kernels
from fedgram.neural.local_training import train_clients
from fedgram.neural.model import PRESETS, ModelShape, initial_weights, layer_weights
from fedgram.neural.network import as_tensors

Weights = dict[str, Tensor]


def stacked(shape: ModelShape, clients: int, device: str = "cuda") -> Weights:
    """Clients that begin at slightly different weights."""
    torch.manual_seed(1)
    start = {name: w.to(device) for name, w in initial_weights(shape, seed=1).items()}
    return {name: w + 0.01 * torch.randn(clients, *w.shape, device=device) for name, w in start.items()}


def rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(x.dtype)


def rounded_products(x: Tensor, weight: Tensor, scale: Tensor | None, out: Tensor, *, add: bool = False) -> None:
    explicit_step.multiply(rounded(x), weight, scale, out, add=add)


ROUNDED = SimpleNamespace(**{**vars(explicit_step), "prepare": rounded, "multiply": rounded_products})


def compared(shape: ModelShape, rows: int, length: int, device: str) -> list[dict[str, object]]:
    """How far the change of each weight is from the plain functions', with operands rounded and by the kernels."""
    start = stacked(shape, 3, device)
    words, targets = torch.randint(3, shape.words, (2, 3, length, rows), device=device)
    targets[0, -1] = -1
    rate = torch.full((1,), 0.5, device=device)

    def after(inner: Any) -> Weights:
        weights = {name: w.clone() for name, w in start.items()}
        with torch.no_grad():
            return {**weights, "loss": explicit_step.descend(shape, weights, words, targets, rate, inner)}

    plain = after(explicit_step)
    others = {"of rounding alone": after(ROUNDED)} | (
        {"of the kernels": after(gpu_kernels)} if device == "cuda" else {}
    )
    found = []
    for name, end in plain.items():
        length_of_change = (end - start.get(name, torch.zeros_like(end))).norm()
        differences = {who: float((other[name] - end).norm() / length_of_change) for who, other in others.items()}
        finite = all(bool(other[name].isfinite().all()) for other in others.values())
        found.append({"weight": name, **{who: f"{d:.2e}" for who, d in differences.items()}, "finite": finite})
    return found


def inner_functions(
    shape: ModelShape, clients: int, rows: int, length: int
) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """What a step is made of: name, bytes, and a call of it."""
    stack, inner, width, hidden = stacked(shape, clients), gpu_kernels, shape.embedding, shape.hidden
    layer, like, positions = layer_weights(stack, 0), stack["embedding"], rows * length
    h = torch.randn(clients, positions, width, device="cuda") * 0.1
    targets = torch.randint(3, shape.words, (clients, positions), device="cuda")
    share = torch.full((clients, positions), 1e-6, device="cuda")
    embedding = 4 * stack["embedding"].numel()
    yield "softmax_step", 3 * embedding, lambda: inner.softmax_step(like, stack["output_bias"], h, targets, share)
    yield "subtract_rows", 12 * h.numel(), lambda: inner.subtract_rows(like, targets, h * 1e-6)
    U, P = layer["recurrent"].squeeze(1), layer["projection"]
    yield "prepare U", 6 * U.numel(), lambda: inner.prepare(U)
    halves = inner.prepare(U), inner.prepare(P)
    keep = torch.ones(clients, rows, device="cuda")
    r, dh, dc, c, c_after, dn = (
        inner.room(like, clients, rows, n).normal_() for n in (width, hidden, hidden, hidden, hidden, hidden)
    )
    a, b, da, db, dz = (inner.room(like, clients, rows, 3 * hidden).normal_() for _ in range(5))
    activations = 4 * clients * rows
    products = {
        "r·U": (r, halves[0], b), "h·P": (dh, halves[1], r),
        "db·Uᵀ": (db, halves[0].mT, r), "dr·Pᵀ": (r, halves[1].mT, dh),
    }  # fmt: skip
    for name, (x, weight, out) in products.items():
        size = 2 * weight.numel() + activations * (x.shape[2] + out.shape[2])
        yield name, size, partial(inner.multiply, x, weight, keep, out)
    moment = a, b, keep, c, c_after
    yield "gates_forward", activations * 9 * hidden, lambda: inner.gates_forward(layer, *moment, dh)
    yield (
        "gates_backward",
        activations * 21 * hidden,
        lambda: inner.gates_backward(layer, *moment, dh, dc, da, db, dz, dn),
    )
    slopes = a, b, c, dz, dn
    yield "vector_gradients (of one moment)", activations * 11 * hidden, lambda: inner.vector_gradients(*slopes)


def poisoned_round(preset: str) -> str:
    """A round of clients of which some end with NaN, infinity or huge weights: the sum is that of the others."""
    from fedgram.training import fedavg_engine as engine

    task, chunks = make(preset, 40, 2, 0, "cuda")
    task = replace(task, plan=replace(task.plan, update_norm=1e4))  # which the others keep to
    intake, bad, train = Intake(task), {3: float("nan"), 17: float("inf"), 30: 3e38}, train_clients
    start = as_tensors(task.start, "cuda")
    expected: dict[str, Tensor] = {}

    def spoil(*arguments: Any) -> Any:
        trained = train(*arguments)
        for client, value in bad.items():
            trained.weights["embedding"][client, 5, 7] = value
        changes = {name: (w - start[name]).flatten(1).double() for name, w in trained.weights.items()}
        norms = torch.stack([c.square().sum(dim=1) for c in changes.values()]).sum(dim=0).sqrt()
        good = [c for c in range(40) if c not in bad]
        assert float(norms[good].max()) < task.plan.update_norm
        expected.update({name: (c[good] * 2.0**task.bits).round().long().sum(dim=0) for name, c in changes.items()})
        return trained

    setattr(engine, "train_clients", spoil)  # noqa: B010
    try:
        task.client_updates(task.broadcast(task.init()), chunks, intake)
    finally:
        setattr(engine, "train_clients", train)  # noqa: B010
    same = all(np.array_equal(intake.total.arrays[name], e.cpu().numpy()) for name, e in expected.items())
    if not same or intake.counted != set(range(40)) - bad.keys():
        raise SystemExit("a client that diverged has changed the sum")
    return f"{intake.total.devices} clients summed, {dict(intake.refused)} refused; the sum is that of the others"


def seconds(work: Callable[[], object], *, repeats: int = 20) -> float:
    """Of one call among many, launched together."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (perf_counter() - began) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--preset", default="W_30K", choices=[name for name, p in PRESETS.items() if explicit_step.supports(p.shape)]
    )
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=12)
    given = parser.parse_args()
    shape = PRESETS[given.preset].shape
    device = "cuda" if torch.cuda.is_available() else "cpu"
    save("gpu_kernels_compared", compared(shape, given.rows, given.length, device))
    if device == "cpu":
        return
    print(poisoned_round(given.preset))
    speed, rows = copied_bytes_a_second(), []
    for name, size, work in inner_functions(shape, given.clients, given.rows, given.length):
        took = seconds(work)
        rows.append(
            {"function": name, "ms": 1e3 * took, "GB": size / 1e9, "of a copy's speed": f"{size / took / speed:.0%}"}
        )
    save("gpu_kernels", rows)


if __name__ == "__main__":
    main()
