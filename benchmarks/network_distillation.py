"""Distillation of a network: sampling, counting on a large topology, the KL minimum.

    python -m benchmarks.network_distillation [--network R.safetensors] [--device cpu|cuda] [--samples N]

Without a network, one of the preset's shape with random weights, whose words are as frequent as Zipf says. The topology
is the one that the network infers from other samples of its own. On a GPU the time of counting is divided among its
kernels.
"""

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
from benchmarks.measure import save

from fedgram.automata.approximate import adopt_topology
from fedgram.distill.inferred_topology import InferenceOptions, infer_model
from fedgram.distill.network_source import NetworkSource
from fedgram.distill.sample_approx import CountingOptions, count_samples, counting_step, fit
from fedgram.neural.model import PRESETS, initial_weights
from fedgram.neural.network import Network, read_network, word_coding
from fedgram.neural.torch_devices import choose_torch_device
from fedgram.text.vocabulary import BOS, EOS

T = TypeVar("T")
PARTS = {
    "_linear": "network", "gates_forward": "network", "_distribute": "softmax", "_draw": "drawing",
    "_uniform": "drawing", "_add_columns": "counting", "_add_paths": "counting", "searchsorted": "walking",
}  # fmt: skip


def timed(work: Callable[[], T]) -> tuple[T, float]:
    began = perf_counter()
    result = work()
    return result, perf_counter() - began


def random_network(preset: str) -> Network:
    """With sentences of some nine words on average."""
    shape = PRESETS[preset].shape
    weights = {name: w.numpy() for name, w in initial_weights(shape, seed=1).items()}
    rank = np.arange(1, shape.words + 1, dtype=np.float32)
    weights["output_bias"] = -np.log(rank + 5.0)
    weights["output_bias"][[BOS, EOS]] = -9.0, float(np.log(0.11 / 0.89 * np.sum(1.0 / (rank + 5.0))))
    words = {f"w{k}": float(shape.words - k) for k in range(shape.words)}
    return Network(shape, weights, word_coding(words, shape.words), {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network")
    parser.add_argument("--preset", default="W_30K")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--infer-samples", type=int, default=20_000)
    parser.add_argument("--max-ngrams", type=int, default=1_500_000)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    device = choose_torch_device(given.device)
    network = read_network(given.network) if given.network else random_network(given.preset)
    source = NetworkSource(network, device)
    rows: list[dict[str, object]] = []

    def told(task: str, seconds: float, positions: int | None = None) -> None:
        rate = f"{positions / seconds:,.0f} positions/s" if positions else ""
        rows.append({"task": task, "seconds": round(seconds, 2), "rate": rate})
        print(f"{task}: {seconds:.2f} s {rate}", flush=True)

    source.sample(range(100), seed=5)
    options = InferenceOptions(given.infer_samples, 4, given.max_ngrams, workers=given.workers)
    inferred, took = timed(lambda: infer_model(source, options, seed=1))
    told(f"infer {inferred.topology.arcs:,} n-grams from {given.infer_samples:,} samples", took)
    topology = adopt_topology(inferred.topology, inferred.vocabulary, source.vocabulary, open_vocabulary=True)
    drawn, took = timed(lambda: source.sample(range(given.samples), seed=2))
    told(f"sample {given.samples:,} sentences", took, len(drawn.values) + len(drawn))
    counting = counting_step(source, topology, 2)
    how = CountingOptions(given.workers, source.batch, shard=source.shard)
    count_samples(counting, 8)
    counts, took = timed(lambda: count_samples(counting, given.samples, how))
    told(f"sample and count on {topology.arcs:,} n-grams", took, counts.positions)
    entropy = counts.source_entropy
    fit(counting.finish(counts), source.vocabulary)  # compiles
    fitted, took = timed(lambda: fit(counting.finish(counts), source.vocabulary, entropy=entropy))
    told(
        f"KL minimum: {fitted.before - (entropy or 0):.3f} → {fitted.after - (entropy or 0):.3f} nats a sentence", took
    )
    if device.type == "cuda":
        for part, share in shares(lambda: count_samples(counting, min(given.samples, 1 << 21), how)).items():
            rows.append({"task": f"… of the GPU's time: {part}", "rate": f"{share:.1%}"})
    save("network_distillation", rows)


def shares(work: Callable[[], object]) -> dict[str, float]:
    """The share of the GPU's busy time by part, and how much of the time it is busy when no profiler looks on."""
    from torch.profiler import ProfilerActivity, profile

    def complete() -> None:
        work()
        torch.cuda.synchronize()

    _, seconds = timed(complete)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        complete()
    spent: dict[str, float] = {}
    for event in trace.key_averages():
        part = next((p for name, p in PARTS.items() if name in event.key), "other")
        spent[part] = spent.get(part, 0.0) + event.self_device_time_total * 1e-6
    total = sum(spent.values())
    return {part: s / total for part, s in sorted(spent.items(), key=lambda item: -item[1])} | {"busy": total / seconds}


if __name__ == "__main__":
    main()
