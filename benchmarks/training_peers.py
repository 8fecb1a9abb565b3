"""Federated averaging beside fedgram's: a plain PyTorch loop, `torch.func.vmap`, and Flower's own simulation.

Every client takes the same number of steps of 8 sentences of 12 tokens. The engine, the loop and `vmap` run in one
process with one thread, up to the clients' new weights; the engine's time includes checking and adding them. Flower
and fedgram's simulation run whole rounds on all cores, from the server's weights to its next ones.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch
from benchmarks.federated_growth import population
from benchmarks.federated_training import LENGTH, ROWS, engine, make, plain_loop, with_vmap
from benchmarks.flower_simulation import has_ray
from benchmarks.measure import ROOT, seconds
from benchmarks.side_by_side import TOKENS, Figures, Missing, Peer, Row, compare

from fedgram.core.compute import Compute
from fedgram.core.progress import Advance
from fedgram.neural.model import PRESETS, initial_weights
from fedgram.neural.network import Coding, Network, as_arrays
from fedgram.neural.torch_devices import choose_torch_device
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.train_federated import train_federated

RAY = "run benchmarks/build_peers, which unpacks Ray; Flower's simulation needs it"
SMALL = {"cpu": {"W_30K": 4, "W_demo": 32}, "cuda": {"W_30K": 500}}
STEPS = {"cpu": 3, "cuda": 10}
LOOPED = {"cpu": 8, "cuda": 2}  # clients of the plain loop, whose time is linear in them
TOGETHER = {"cpu": 8, "cuda": 50}  # clients of one call of vmap


def one_process(preset: str, clients: int, device: str) -> list[Row]:
    """The engine, the loop and `vmap`."""
    steps = STEPS[device]
    task, chunks = make(preset, clients, steps, 0, device)
    client = steps * ROWS * LENGTH

    def rate(work: Callable[[], object], count: int) -> Figures:
        work()  # compiles
        return lambda: count * client / seconds(work)

    def loop() -> Figures:
        few = min(clients, LOOPED[device])
        own = make(preset, few, steps, 1, device)[1]
        return rate(lambda: plain_loop(task, own, device), few)

    def vmap() -> Figures:
        few = min(clients, TOGETHER[device])
        own = make(preset, few, steps, few, device)[1]
        return rate(lambda: with_vmap(task, own, device), few)

    where = "one process" if device == "cpu" else "one GPU"
    return compare(
        {f"{preset}: train {clients} clients, {where}": TOKENS},
        rate(lambda: engine(task, chunks), clients),
        Peer("plain PyTorch loop", loop),
        Peer("torch.func.vmap", vmap),
        repeats=5,
    )


def whole_rounds(preset: str, clients: int, rounds: int, device: str) -> list[Row]:
    """Rounds of a simulation, on all cores or the GPU; the first one is not counted."""
    cores, steps = os.cpu_count() or 1, STEPS[device]
    tokens = clients * steps * ROWS * LENGTH
    shape = PRESETS[preset].shape
    words = Vocabulary.of([f"w{k}" for k in range(shape.words - 3)])
    network = Network(shape, as_arrays(initial_weights(shape, seed=0)), Coding(words, words))
    people = population(clients, shape.words - 10, steps * ROWS, LENGTH - 1)

    def own() -> float:
        times: list[float] = []

        def begin(*_: object, **__: object) -> Advance:
            return lambda *_: times.append(perf_counter())

        train_federated(
            network, people.train, rounds=rounds, devices_per_round=clients, over_selection=1.0, dropout=0.0,
            rows=ROWS, length=LENGTH, max_sentences=steps * ROWS, dev_users=0, begin=begin,
            compute=Compute("cpu" if device == "cpu" else "cuda", cores),
        )  # fmt: skip
        return tokens / median(after - before for before, after in pairwise(times))

    def flower() -> Figures:
        if not has_ray():
            raise Missing(RAY)
        arguments = [preset, clients, steps, rounds, device, cores]
        command = [sys.executable, "-m", "benchmarks.flower_simulation", *map(str, arguments)]

        def once() -> float:
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
            if done.returncode:
                raise RuntimeError(done.stderr.strip() or "Flower's simulation failed")
            times: list[float] = json.loads(done.stdout.splitlines()[-1])
            return tokens / median(times[1:])

        return once

    where = f"{cores} cores" if device == "cpu" else "one GPU"
    return compare(
        {f"{preset}: simulate rounds of {clients} clients, {where}": TOKENS},
        own,
        Peer("Flower's simulation (Ray)", flower),
        repeats=2,
    )


def rows(device: str, clients: int, rounds: int) -> list[Row]:
    """All rows of federated averaging; Flower runs `rounds` rounds of so many clients."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("peers: torch finds no GPU on this machine")
    choose_torch_device(device)  # one thread, or the settings of a GPU
    found: list[Row] = []
    for preset, count in SMALL[device].items():
        found += one_process(preset, min(count, clients), device)
    return found + whole_rounds("W_demo" if device == "cpu" else "W_30K", clients, rounds, device)
