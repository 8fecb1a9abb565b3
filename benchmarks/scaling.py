"""How time grows with size: seconds at several sizes, and the exponent of the best power law.

    python -m benchmarks.scaling [ngrams|clients|samples|devices …] [--largest SHARE]

- `ngrams`: the KL minimum on models of 10K to 5M n-grams, on their own counts.
- `clients`: one pass of unigram counts over 100 to 342K clients of 40 words.
- `samples`: counting 10K to 10M samples of an n-gram model on its own topology.
- `devices`: one round over loopback with 50 to 500 devices, by `benchmarks.federation_load`.

`--largest 0.01` stops at a hundredth of the largest size. An exponent of 1 is linear time. Fixed costs, such as
starting processes, lower it, so it is fitted to the larger half of the sizes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
from benchmarks.generated_text import write_text
from benchmarks.measure import RESULTS, ROOT, save

from fedgram.automata.approximate import count_source
from fedgram.automata.kl_minimize import minimize_kl
from fedgram.automata.model import NGramModel
from fedgram.automata.training import train
from fedgram.distill.sample_approx import count_samples, counting_step
from fedgram.distill.source import NGramSource
from fedgram.federated.collect_unigrams import collect_unigrams
from fedgram.text.corpus import read_corpus
from fedgram.text.population import Population

Curve = Iterator[tuple[int, float]]
SIZES = {
    "ngrams": (10_000, 50_000, 250_000, 1_000_000, 5_000_000),
    "clients": (100, 1_000, 10_000, 100_000, 342_477),
    "samples": (10_000, 100_000, 1_000_000, 10_000_000),
    "devices": (50, 100, 200, 500),
}


def timed(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def trained(words: int) -> NGramModel:
    """A modified Kneser-Ney trigram of generated text."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = read_corpus([write_text(Path(folder) / "text.txt", words)])
    return train(corpus, order=3, smoothing="modified-kneser-ney")


def ngrams(sizes: list[int]) -> Curve:
    """Pruning would leave other shapes, so each size has a text of its own; 1.2M words have 1.45M n-grams."""
    for size in sizes:
        model = trained(max(1_000, round(0.83 * size)))
        counts = count_source(model, model.topology).counts
        minimize_kl(counts, model.vocabulary)
        yield model.topology.arcs, timed(lambda c=counts, v=model.vocabulary: minimize_kl(c, v))  # type: ignore[misc]


def clients(sizes: list[int]) -> Curve:
    """Counts of every client once, in rounds of up to 10,000."""
    rng, words = np.random.default_rng(0), [f"w{i}" for i in range(20_000)]
    for size in sizes:
        people = Population.from_messages(
            (f"user{i}", " ".join(words[j] for j in rng.zipf(1.5, 40) % len(words)), "train") for i in range(size)
        )
        cohort = min(size, 10_000)
        rounds = -(-size // cohort)
        yield (
            size,
            timed(
                lambda p=people, n=cohort, r=rounds: collect_unigrams(  # type: ignore[misc]
                    p.train, words, devices_per_round=n, rounds=r, over_selection=1.0, dropout=0.0
                )
            ),
        )


def samples(sizes: list[int]) -> Curve:
    """One model for all sizes."""
    model = trained(200_000)
    for size in sizes:
        counting = counting_step(NGramSource(model), model.topology, seed=1)
        yield size, timed(lambda n=size, c=counting: count_samples(c, n))  # type: ignore[misc]


def devices(sizes: list[int]) -> Curve:
    """One unmasked round of a small network."""
    for size in sizes:
        options = ["--devices", str(size), "--rounds", "1", "--poll", "10"]
        subprocess.run([sys.executable, "-m", "benchmarks.federation_load", *options], check=True, cwd=ROOT)
        newest = max(RESULTS.glob("federation_load_*.json"), key=lambda path: path.stat().st_mtime)
        yield size, float(json.loads(newest.read_text())[0]["seconds per round"])


def exponent(points: list[tuple[int, float]]) -> float | None:
    """The slope of log time over log size, over the larger half of the sizes."""
    larger = points[len(points) // 2 :] if len(points) > 3 else points
    if len(larger) < 2:
        return None
    x, y = np.log(np.array(larger, float)).T
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"{', '.join(SIZES)}; by default, all")
    parser.add_argument("--largest", type=float, default=1.0, help="share of the largest size to stop at")
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    curves = {"ngrams": ngrams, "clients": clients, "samples": samples, "devices": devices}
    for name in given.curves or SIZES:
        sizes = [size for size in SIZES[name] if size <= given.largest * SIZES[name][-1]]
        points: list[tuple[int, float]] = []
        if name != "devices":
            list(curves[name](sizes[:1]))  # compiles every kernel
        for size, seconds in curves[name](sizes):
            points.append((size, seconds))
            rows.append({"curve": name, "size": size, "seconds": seconds, "per second": size / seconds})
        rows.append({"curve": name, "size": "exponent", "seconds": exponent(points)})
    save("scaling", rows)


if __name__ == "__main__":
    main()
