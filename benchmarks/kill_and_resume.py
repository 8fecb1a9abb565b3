"""Kill a run with SIGKILL at random moments, let it go on each time, and compare with one that was left alone.

    python -m benchmarks.kill_and_resume [PRESET|CONFIG.toml] [KILLS] [FOLDER]

Kills come at random, four in the time of a run on average. A run that ends nevertheless is compared, and a new one
begun, until there were enough kills. Prints the stage that each kill hit, and whether all files (but the report, which
says how long things took) have the same SHA-256.
"""

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any


def manifest(workspace: Path) -> dict[str, Any]:
    stages: dict[str, Any] = json.loads((workspace / "manifest.json").read_text())["artefacts"]
    return stages


def digests(workspace: Path) -> dict[str, str]:
    """Of all files of the stages before the report."""
    stages = (noted["files"] for stage, noted in manifest(workspace).items() if stage != "report")
    return {name: about["sha256"] for files in stages for name, about in files.items()}


def main(config: str, kills: int, folder: Path) -> None:
    def command(workspace: Path) -> list[str]:
        return [sys.executable, "-m", "fedgram", "run", config, "-w", str(workspace)]

    whole, broken, rng = folder / "whole", folder / "broken", random.Random(1)
    began = perf_counter()
    subprocess.run(command(whole), check=True, capture_output=True)
    alone = perf_counter() - began
    print(f"left alone: {alone:.0f} s", flush=True)
    wanted, began, killed, ended = digests(whole), perf_counter(), 0, 0
    while killed < kills or broken.exists():
        wait = rng.expovariate(4.0 / alone) if killed < kills else None
        process = subprocess.Popen(command(broken), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
            going_on = [path.name.rsplit("-", 1)[0] for path in (broken / ".work").glob("*")]
            print(f"kill {killed}, after {wait:.1f} s: {', '.join(going_on) or 'between stages'}", flush=True)
            continue
        if process.returncode or digests(broken) != wanted:
            sys.exit(f"after {killed} kills: exit code {process.returncode}, or FILES DIFFER")
        ended += 1
        print(f"run {ended} ended, all files are the same", flush=True)
        shutil.rmtree(broken)
    print(f"killed {killed} times in {ended} runs: {perf_counter() - began:.0f} s; lm.fgram {wanted['lm.fgram']}")


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = [*given, *["demo", "20", ""][len(given) :]]
    with tempfile.TemporaryDirectory() as temporary:
        main(chosen[0], int(chosen[1]), Path(chosen[2] or temporary))
