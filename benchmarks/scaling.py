"""How time grows with size: seconds at several sizes, and the exponent of the best power law.

    python -m benchmarks.scaling [ngrams|clients|samples|devices …] [--largest SHARE] [--figure FILE.svg]
    python -m benchmarks.scaling --saved --figure FILE.svg

- `ngrams`: the KL minimum on models of 10K to 5M n-grams, on their own counts.
- `clients`: one pass of unigram counts over 100 to 342K clients of 40 words.
- `samples`: counting 10K to 10M samples of an n-gram model on its own topology.
- `devices`: one round over loopback with 50 to 500 devices, by `benchmarks.federation_load`.

Each curve has a process of its own. `--saved` draws what the last run found. `--largest 0.01` stops at a hundredth of
the largest size. An exponent of 1 is linear time. Fixed costs, such as starting processes, lower it, so it is fitted
to the larger half of the sizes.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from benchmarks.generated_text import write_text
from benchmarks.measure import RESULTS, ROOT, save, seconds

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
TITLES = {
    "ngrams": "KL minimum, n-grams",
    "clients": "unigram counts, clients of 40 words",
    "samples": "counting, samples",
    "devices": "round over loopback, devices",
}


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
        yield model.topology.arcs, seconds(lambda c=counts, v=model.vocabulary: minimize_kl(c, v))  # type: ignore[misc]


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
            seconds(
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
        yield size, seconds(lambda n=size, c=counting: count_samples(c, n))  # type: ignore[misc]


def devices(sizes: list[int]) -> Curve:
    """One unmasked round of a small network."""
    for size in sizes:
        options = ["--devices", str(size), "--rounds", "1", "--poll", "10"]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.federation_load", *options], check=True, cwd=ROOT, stdout=sys.stderr
        )
        newest = max(RESULTS.glob("federation_load_*.json"), key=lambda path: path.stat().st_mtime)
        yield size, float(json.loads(newest.read_text())[0]["seconds per round"])


def exponent(points: list[tuple[int, float]]) -> float | None:
    """The slope of log time over log size, over the larger half of the sizes.

    >>> exponent([(1, 5.0), (10, 5.0), (100, 3.0), (1000, 96.0)])
    1.505...
    """
    larger = larger_half(points)
    if len(larger) < 2:
        return None
    x, y = np.log(np.array(larger, float)).T
    return float(np.polyfit(x, y, 1)[0])


def larger_half(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return points[len(points) // 2 :] if len(points) > 3 else points


CURVES = {"ngrams": ngrams, "clients": clients, "samples": samples, "devices": devices}


def measured(name: str, largest: float) -> list[tuple[int, float, float]]:
    """Sizes, seconds, and the peak memory up to then in GB, of a process that measures one curve."""
    sizes = [size for size in SIZES[name] if size <= largest * SIZES[name][-1]]
    if name != "devices":
        list(CURVES[name](sizes[:1]))  # compiles every kernel
    found = []
    for size, took in CURVES[name](sizes):
        found.append((size, took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6))
        print(f"{name}: {size:,} in {took:.3g} s", file=sys.stderr, flush=True)
    return found


def saved() -> dict[str, list[tuple[int, float]]]:
    """The points of the last run, by curve."""
    rows = json.loads((RESULTS / "scaling.json").read_text())
    points = {name: [(r["size"], r["seconds"]) for r in rows if r["curve"] == TITLES[name]] for name in SIZES}
    return {name: [p for p in own if p[0] != "exponent"] for name, own in points.items() if own}


def draw(curves: dict[str, list[tuple[int, float]]], path: Path) -> None:
    """Times by size with logarithmic axes, and the fitted power laws."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    mpl.rcParams["svg.hashsalt"] = "scaling"
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    for axes, (name, points) in zip(figure.subplots(2, 2).flat, curves.items(), strict=False):
        x, y = np.array(points, float).T
        axes.loglog(x, y, "o", color="#0072B2")
        slope, larger = exponent(points), np.array(larger_half(points), float).T
        if slope is not None:
            scale = np.exp(np.mean(np.log(larger[1]) - slope * np.log(larger[0])))
            axes.loglog(larger[0], scale * larger[0] ** slope, color="#D55E00", label=f"exponent {slope:.2f}")
            axes.legend(frameon=False)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(TITLES[name], fontsize=11)
        axes.set_xlabel(name)
        axes.set_ylabel("seconds")
        axes.grid(visible=True, color="#e4e8ec")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="*", metavar="CURVE", help=f"{', '.join(SIZES)}; by default, all")
    parser.add_argument("--largest", type=float, default=1.0, help="share of the largest size to stop at")
    parser.add_argument("--saved", action="store_true", help="measure nothing; take what the last run found")
    parser.add_argument("--figure", type=Path, help="draw the curves into this file too (.svg or .png)")
    given = parser.parse_args()
    if unknown := {*given.curves} - {*SIZES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(SIZES)}")
    rows: list[dict[str, object]] = []
    found: dict[str, list[tuple[int, float]]] = {}
    if given.saved:
        found = saved()
    for name in () if given.saved else given.curves or SIZES:
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            points = alone.submit(measured, name, given.largest).result()
        found[name] = [(size, took) for size, took, _ in points]
        for size, took, memory in points:
            about: dict[str, object] = {"curve": TITLES[name], "size": size, "seconds": took, "per second": size / took}
            rows.append(about | {"GB": memory if name != "devices" else None})
        rows.append({"curve": TITLES[name], "size": "exponent", "seconds": exponent(found[name])})
    if rows:
        save("scaling", rows)
    if given.figure:
        draw(found, given.figure)


if __name__ == "__main__":
    main()
