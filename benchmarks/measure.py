"""Measuring commands: seconds and peak memory of a child process, and tables of the results."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PEERS = RESULTS / "peers"  # what benchmarks/build_peers makes
FEDGRAM = [sys.executable, "-m", "fedgram"]


@dataclass(frozen=True)
class Cost:
    seconds: float
    gigabytes: float


def run(command: list[str], *, stdin: Path | None = None, stdout: Path | None = None) -> Cost:
    """Run a command to its end; its time on the clock, and the most memory it had resident."""
    source = stdin.open("rb") if stdin else subprocess.DEVNULL
    sink = stdout.open("wb") if stdout else subprocess.DEVNULL
    began = perf_counter()
    process = subprocess.Popen(command, stdin=source, stdout=sink, stderr=subprocess.PIPE)
    assert process.stderr is not None
    complaints = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} failed: {complaints.decode(errors='replace')[-500:]}")
    return Cost(perf_counter() - began, usage.ru_maxrss / 1e6)


def seconds(work: Callable[[], object]) -> float:
    """The time of a call on the clock."""
    began = perf_counter()
    work()
    return perf_counter() - began


def fedgram(*arguments: object) -> Cost:
    return run([*FEDGRAM, *map(str, arguments)])


def _reported(*arguments: object) -> dict[str, Any]:
    """What a command of fedgram reports as JSON."""
    command = [*FEDGRAM, *map(str, arguments), "--json"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def ngrams(model: Path) -> int:
    return int(_reported("ngram", "info", model)["ngrams"])


def perplexity(model: Path, text: Path) -> float:
    return float(_reported("ngram", "perplexity", model, text)["perplexity"])


def program(name: str) -> str | None:
    """A peer's program: built by benchmarks/build_peers, on the PATH, or where Debian's irstlm puts its own."""
    places = [PEERS / "build" / "bin" / name, Path("/usr/lib/irstlm/bin") / name]
    return shutil.which(name) or next((str(place) for place in places if place.is_file()), None)


def save(name: str, rows: list[dict[str, object]]) -> None:
    """Keep the rows as JSON and print them as a Markdown table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(_cell(row.get(column)) for column in columns) + " |")


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
