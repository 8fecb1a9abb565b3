"""Kill a run with SIGKILL at random moments, let it go on each time, and compare with one that was left alone.

    python -m benchmarks.kill_and_resume [PRESET|CONFIG.toml] [KILLS] [FOLDER]

The moments are drawn from the whole time that the stages of the run that was left alone took. Prints the stage that
each kill hit, and whether all files (but the report, which says how long things took) have the same SHA-256.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep
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

    whole, broken = folder / "whole", folder / "broken"
    began = perf_counter()
    told = subprocess.run(command(whole), check=True, capture_output=True, text=True).stderr
    print(f"left alone: {perf_counter() - began:.0f} s", flush=True)
    stages = [word for line in told.splitlines() for word in line.split() if word in manifest(whole)]
    seconds = [manifest(whole)[stage]["seconds"] for stage in stages]
    rng, began = random.Random(1), perf_counter()
    for moment in sorted(rng.uniform(0.0, sum(seconds)) for _ in range(kills)):
        hit = next(i for i in range(len(stages)) if moment <= sum(seconds[: i + 1]))
        _kill(command(broken), stages[hit - 1] if hit else None, moment - sum(seconds[:hit]))
        going_on = [path.name.rsplit("-", 1)[0] for path in (broken / ".work").glob("*")]
        print(f"killed in {', '.join(going_on) or 'between stages'}", flush=True)
    subprocess.run(command(broken), check=True, capture_output=True)
    same = digests(whole) == digests(broken)
    print(f"killed {kills} times: {perf_counter() - began:.0f} s")
    print(f"lm.fgram {digests(broken)['lm.fgram']}; {'all files are the same' if same else 'FILES DIFFER'}")
    sys.exit(not same)


def _kill(command: list[str], behind: str | None, seconds: float) -> None:
    """Start a run, and kill it so many seconds after a stage was done; or when it ends, if it is faster now."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while behind is not None and (line := process.stderr.readline()):
        if behind in line.split():
            break
    sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = [*given, *["demo", "20", ""][len(given) :]]
    with tempfile.TemporaryDirectory() as temporary:
        main(chosen[0], int(chosen[1]), Path(chosen[2] or temporary))
