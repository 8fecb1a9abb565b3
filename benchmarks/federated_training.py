"""FederatedAveraging: tokens a second of a plain loop over clients, of the engine, and of the engine on all cores.

    python -m benchmarks.federated_training [--preset W_30K] [--clients 4] [--steps 3] [--device cpu|cuda]

Every client takes the same number of steps of 8 sentences of 12 tokens. The plain loop trains one client at a time with
torch's automatic differentiation; on a GPU `torch.func.vmap` over clients stands beside it, and the time of a step is
compared with that of the memory traffic which no step can do without, at the speed at which a large array is copied:
the embedding is read twice and written once, and so are all other weights.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from benchmarks.measure import save

from fedgram.core.arrays import IntArray, Ragged
from fedgram.federated.intake import Intake
from fedgram.neural.batching import NOTHING, pack_clients
from fedgram.neural.model import PRESETS, initial_weights, word_losses
from fedgram.neural.network import as_arrays, as_tensors
from fedgram.neural.torch_devices import choose_torch_device
from fedgram.training.fedavg_engine import Chunk, chunk_size
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.plan import TrainingPlan

ROWS, LENGTH = 8, 12
Tensors = Mapping[str, torch.Tensor]


def make(preset: str, clients: int, steps: int, chunk: int, device: str) -> tuple[FederatedAveraging, list[Chunk]]:
    """A task, and clients in chunks; no chunk size (0) means the engine's own."""
    shape, plan = PRESETS[preset].shape, TrainingPlan(rows=ROWS, length=LENGTH)
    task = FederatedAveraging(shape, as_arrays(initial_weights(shape, seed=0)), plan, torch_device=device)
    chunk = chunk or chunk_size(task)
    rng = np.random.default_rng(0)
    sentences = [
        Ragged.from_rows(rng.integers(3, shape.words, (steps * ROWS, LENGTH - 1)).tolist()) for _ in range(clients)
    ]
    chunks = []
    for first in range(0, clients, chunk):
        own = sentences[first : first + chunk]
        numbers = tuple(range(first, first + len(own)))
        chunks.append(Chunk(numbers, pack_clients(own, rows=ROWS, length=LENGTH), np.ones(len(own))))
    return task, chunks


def plain_loop(task: FederatedAveraging, chunks: list[Chunk], device: str) -> None:
    start = as_tensors(task.start, device)
    for chunk in chunks:
        assert chunk.batches is not None
        for words, targets in zip(chunk.batches.words, chunk.batches.targets, strict=True):
            train_plainly(task, start, words, targets, device)
    finish(device)


def finish(device: str) -> None:
    """Wait until a GPU has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def train_plainly(
    task: FederatedAveraging, start: Tensors, words: IntArray, targets: IntArray, device: str
) -> dict[str, torch.Tensor]:
    """The weights of one client after its steps, as anybody would train them with torch."""
    w = {name: v.clone().requires_grad_() for name, v in start.items()}
    optimizer = torch.optim.SGD(w.values(), lr=task.plan.local.learning_rate)
    for x, y in zip(words, targets, strict=True):
        optimizer.zero_grad()
        x_, y_ = torch.from_numpy(x).long().to(device), torch.from_numpy(y).long().to(device)
        (word_losses(task.shape, w, x_, y_).sum() / (y_ != NOTHING).sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: v.detach() for name, v in w.items()}


def with_vmap(task: FederatedAveraging, chunks: list[Chunk], device: str) -> None:
    """All clients of a chunk at once, by automatic differentiation."""

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return word_losses(task.shape, weights, x, y).sum() / (y != NOTHING).sum()

    gradients = torch.func.vmap(torch.func.grad(loss))
    start = as_tensors(task.start, device)
    for chunk in chunks:
        assert chunk.batches is not None
        stack = {name: w.expand(len(chunk.weight), *w.shape).clone() for name, w in start.items()}
        x, y = (torch.from_numpy(a).long().to(device) for a in (chunk.batches.words, chunk.batches.targets))
        for t in range(x.shape[1]):
            for name, g in gradients(stack, x[:, t], y[:, t]).items():
                stack[name].sub_(g, alpha=task.plan.local.learning_rate)
    finish(device)


def copied_bytes_a_second() -> float:
    """Bytes read and written a second by the copy of 4 GB."""
    a = torch.zeros(1 << 30, device="cuda")
    b = torch.empty_like(a)

    def copy() -> None:
        b.copy_(a)
        torch.cuda.synchronize()

    copy()
    return 8 * len(a) / timed(copy, repeats=5)


def engine(task: FederatedAveraging, chunks: list[Chunk]) -> None:
    """A round up to its exact, judged sum."""
    intake = Intake(task)
    task.client_updates(task.broadcast(task.init()), chunks, intake)
    if intake.refused or intake.total.devices != sum(len(chunk.devices) for chunk in chunks):
        raise SystemExit(f"not all updates were accepted: {dict(intake.refused)}")


def worker(preset: str, clients: int, steps: int, rank: int, size: int, ready: Any, go: Any, ended: Any) -> None:
    torch.set_num_threads(1)
    task, chunks = make(preset, clients, steps, 0, "cpu")
    engine(task, chunks[:1])
    ready.release()
    go.wait()
    best = float("inf")
    for _ in range(3):
        began = perf_counter()
        engine(task, chunks[rank::size])
        best = min(best, perf_counter() - began)
    ended.put(best)


def on_all_cores(preset: str, clients: int, steps: int, size: int) -> float:
    """Seconds until the slowest of the workers is done, all running at once."""
    context = multiprocessing.get_context("spawn")
    ready, go, ended = context.Semaphore(0), context.Event(), context.Queue()
    shared = ready, go, ended
    running = [
        context.Process(target=worker, args=(preset, clients, steps, rank, size, *shared)) for rank in range(size)
    ]
    for process in running:
        process.start()
    for _ in running:
        ready.acquire()
    go.set()
    slowest = max(ended.get() for _ in running)
    for process in running:
        process.join()
    return float(slowest)


def timed(work: Callable[..., None], *arguments: object, repeats: int = 3) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = perf_counter()
        work(*arguments)
        best = min(best, perf_counter() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default=None)
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    device, rows = choose_torch_device(given.device).type, []
    torch.set_num_threads(1)
    for preset in [given.preset] if given.preset else ["W_30K", "W_demo"]:
        clients = given.clients or {"W_30K": 4, "W_demo": 32}.get(preset, 8)
        task, chunks = make(preset, clients, given.steps, 0, device)
        engine(task, chunks)
        plain_loop(task, make(preset, 1, 1, 1, device)[1], device)
        tokens = clients * given.steps * ROWS * LENGTH
        few_clients = min(clients, 8 if device == "cpu" else 2)
        loop_clients = make(preset, few_clients, given.steps, 1, device)[1]
        loop = timed(plain_loop, task, loop_clients, device) * clients / few_clients
        row = {
            "preset": preset,
            "clients": clients,
            "stack": len(chunks[0].weight),
            "plain loop, tokens/s": tokens / loop,
        }
        own = timed(engine, task, chunks)
        row |= {"engine, tokens/s": tokens / own, "ratio": loop / own}
        if device == "cpu":
            cores = os.cpu_count() or 1
            shared = on_all_cores(preset, clients, given.steps, cores)
            row |= {f"engine on {cores} cores": tokens / shared, "ratio on all cores": loop / shared}
        else:
            few = make(preset, min(clients, 50), given.steps, 50, device)[1]
            with_vmap(task, few, device)
            row["vmap, tokens/s"] = tokens / (timed(with_vmap, task, few, device) * clients / min(clients, 50))
            steps = 12.0 * task.shape.parameters() * clients * given.steps / copied_bytes_a_second()
            row |= {"seconds": own, "bound by memory traffic": steps, "of the bound": steps / own}
            row["memory, GB"] = torch.cuda.max_memory_allocated() / 1e9
        rows.append(row)
    save("federated_training", rows)


if __name__ == "__main__":
    main()
