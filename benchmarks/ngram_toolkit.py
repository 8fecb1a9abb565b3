"""The n-gram toolkit against KenLM and IRSTLM, side by side in one run on generated text.

python -m benchmarks.ngram_toolkit [--words 12000000]
"""

import argparse
import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from time import perf_counter

from benchmarks.generated_text import write_text
from benchmarks.measure import FEDGRAM, Cost, fedgram, program, run, save


def row(
    task: str, ours: Cost, peer: str | None = None, theirs: Cost | None = None, goal: str = ""
) -> dict[str, object]:
    return {
        "task": task,
        "seconds": round(ours.seconds, 2),
        "GB": round(ours.gigabytes, 2),
        "peer": peer if theirs else None,
        "peer seconds": round(theirs.seconds, 2) if theirs else None,
        "ratio": round(ours.seconds / theirs.seconds, 2) if theirs else None,
        "goal": goal,
    }


def ngrams(model: Path) -> int:
    out = subprocess.run([*FEDGRAM, "ngram", "info", str(model), "--json"], check=True, capture_output=True, text=True)
    return int(json.loads(out.stdout)["ngrams"])


def perplexity(model: Path, text: Path) -> float:
    command = [*FEDGRAM, "ngram", "perplexity", str(model), str(text), "--json"]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(out.stdout)["perplexity"])


def training(folder: Path, words: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    same: list[dict[str, object]] = []
    lmplz = program("lmplz")
    for size in (words // 10, words):
        text = write_text(folder / f"{size}.txt", size)
        model = folder / f"{size}.arpa"
        ours = fedgram("ngram", "train", text, "-o", model, "--smoothing", "modified-kneser-ney")
        theirs = None
        if lmplz:
            peer_model = folder / "lmplz.arpa"
            arguments = f"-o 3 -S 4G -T {folder} --text {text} --arpa {peer_model}".split()
            theirs = run([lmplz, *arguments])
        task = f"train modified Kneser-Ney 3-gram, {size / 1e6:.3g}M words → {ngrams(model) / 1e6:.3g}M n-grams"
        rows.append(row(task, ours, "KenLM lmplz", theirs, "≤ 2× lmplz, ≤ 4 GB"))
        if theirs and size < words:
            both = ", ".join(f"{perplexity(m, text):.4f}" for m in (model, peer_model))
            same.append(
                {
                    "task": f"perplexity on its own {size / 1e6:.3g}M words: ours, lmplz's",
                    "ratio": both,
                    "goal": "equal",
                }
            )
    growth = float(str(rows[1]["seconds"])) / float(str(rows[0]["seconds"]))
    rows.append({"task": "ten times the text", "ratio": round(growth, 1), "goal": "about 10×"})
    return rows + same


def changing(folder: Path, words: int) -> list[dict[str, object]]:
    full, middle, small = folder / f"{words}.arpa", folder / "middle.arpa", folder / "small.arpa"
    count = min(1_450_000, ngrams(full) // 2)
    fedgram("ngram", "prune", full, "-o", middle, "--max-ngrams", count)
    rows = [_reading(middle, count), _pruning(folder, middle, small, count)]
    target = ngrams(small)
    ours = fedgram("ngram", "approximate", middle, small, "-o", folder / "fitted.arpa")
    rows.append(
        row(f"approximate {count:,} n-grams on {target:,}, exact counts", ours, goal="≤ 25 s (OpenGrm SFst: 254 s)")
    )
    rows.append(_minimising(middle))
    return rows


def _reading(model: Path, count: int) -> dict[str, object]:
    ours = fedgram("ngram", "info", model)
    theirs = None
    with contextlib.suppress(RuntimeError):  # not installed
        theirs = run([FEDGRAM[0], "-c", f"import kenlm; kenlm.Model({str(model)!r})"])
    return row(f"start, read {count:,} n-grams of ARPA, check", ours, "kenlm module", theirs, "≤ 3.8 s (OpenGrm)")


def _pruning(folder: Path, model: Path, small: Path, count: int) -> dict[str, object]:
    ours = fedgram("ngram", "prune", model, "-o", small, "--max-ngrams", count * 3 // 14)
    theirs, prune_lm = None, program("prune-lm")
    if prune_lm:
        theirs = run([prune_lm, "--threshold=1e-6,1e-6", str(model), str(folder / "irstlm.arpa")])
    task = f"read, prune {count:,} → {count * 3 // 14:,} n-grams, write"
    return row(task, ours, "IRSTLM prune-lm", theirs, "reading + 2.6 s (OpenGrm)")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=12_000_000)
    words = parser.parse_args().words
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm = write_text(folder / "warm.txt", 1000)  # compile every kernel once, as after an installation
        fedgram("ngram", "train", warm, "-o", folder / "warm.arpa", "--smoothing", "modified-kneser-ney")
        fedgram("ngram", "prune", folder / "warm.arpa", "-o", folder / "warm2.arpa", "--theta", "1e-3")
        fedgram("ngram", "approximate", folder / "warm.arpa", folder / "warm2.arpa", "-o", folder / "warm3.arpa")
        fedgram("ngram", "info", folder / "warm.arpa")
        save("ngram_toolkit", [*training(folder, words), *changing(folder, words)])


if __name__ == "__main__":
    main()
