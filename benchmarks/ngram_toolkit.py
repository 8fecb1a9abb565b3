"""The n-gram toolkit: seconds and memory of its commands on generated text, from their start to their end.

    python -m benchmarks.ngram_toolkit [--words 12000000]

`benchmarks.peers` has the ratios to other programs.
"""

import argparse
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.generated_text import write_text
from benchmarks.measure import Cost, fedgram, ngrams, save


def row(task: str, cost: Cost, goal: str) -> dict[str, object]:
    return {"task": task, "seconds": round(cost.seconds, 2), "GB": round(cost.gigabytes, 2), "goal": goal}


def training(folder: Path, words: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    costs = []
    for size in (words // 10, words):
        text, model = write_text(folder / f"{size}.txt", size), folder / f"{size}.arpa"
        costs.append(fedgram("ngram", "train", text, "-o", model, "--smoothing", "modified-kneser-ney"))
        task = f"train modified Kneser-Ney 3-gram, {size / 1e6:.3g}M words → {ngrams(model) / 1e6:.3g}M n-grams"
        rows.append(row(task, costs[-1], "≤ 4 GB"))
    growth = costs[1].seconds / costs[0].seconds
    return [*rows, {"task": f"ten times the text: {growth:.1f} times the time", "goal": "about 10"}]


def changing(folder: Path, words: int) -> list[dict[str, object]]:
    full, middle, small = folder / f"{words}.arpa", folder / "middle.arpa", folder / "small.arpa"
    count = min(1_450_000, ngrams(full) // 2)
    fedgram("ngram", "prune", full, "-o", middle, "--max-ngrams", count)
    target = count * 3 // 14
    reading = fedgram("ngram", "info", middle)
    pruning = fedgram("ngram", "prune", middle, "-o", small, "--max-ngrams", target)
    fitting = fedgram("ngram", "approximate", middle, small, "-o", folder / "fitted.arpa")
    return [
        row(f"start, read {count:,} n-grams of ARPA, check", reading, "≤ 3.8 s (OpenGrm)"),
        row(f"read, prune {count:,} → {target:,} n-grams, write", pruning, "reading + 2.6 s (OpenGrm)"),
        row(f"approximate {count:,} n-grams on {target:,}, exact counts", fitting, "≤ 25 s (OpenGrm SFst: 254 s)"),
        _minimising(middle),
    ]


def _minimising(model: Path) -> dict[str, object]:
    """The minimisation alone, in this process, on the counts of a model on its own topology: the hardest case."""
    from fedgram.automata.approximate import count_source
    from fedgram.automata.kl_minimize import minimize_kl
    from fedgram.formats.models import read_model

    source = read_model(model)
    counts = count_source(source, source.topology).counts
    minimize_kl(counts, source.vocabulary)
    began = perf_counter()
    minimize_kl(counts, source.vocabulary)
    seconds = perf_counter() - began
    return {"task": f"KL minimum on {source.topology.arcs:,} n-grams", "seconds": round(seconds, 2), "goal": "< 10 s"}


def compile_kernels(folder: Path) -> None:
    """Run every command once on a little text, as after an installation."""
    text = write_text(folder / "warm.txt", 1000)
    fedgram("ngram", "train", text, "-o", folder / "warm.arpa", "--smoothing", "modified-kneser-ney")
    fedgram("ngram", "prune", folder / "warm.arpa", "-o", folder / "warm2.arpa", "--theta", "1e-3")
    fedgram("ngram", "approximate", folder / "warm.arpa", folder / "warm2.arpa", "-o", folder / "warm3.arpa")
    fedgram("ngram", "info", folder / "warm.arpa")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=12_000_000)
    words = parser.parse_args().words
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_kernels(folder)
        save("ngram_toolkit", [*training(folder, words), *changing(folder, words)])


if __name__ == "__main__":
    main()
