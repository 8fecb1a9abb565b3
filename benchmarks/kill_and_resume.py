"""Kill a run with SIGKILL at random moments, let it go on each time, and compare with one that was left alone.

    python -m benchmarks.kill_and_resume [PRESET|CONFIG.toml] [KILLS] [FOLDER]

Prints the seconds of both, where each kill fell, and whether all files (but the report, which says how long things
took) have the same SHA-256.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep


def digests(workspace: Path) -> dict[str, str]:
    """Of all files of the stages before the report."""
    manifest = json.loads((workspace / "manifest.json").read_text())["artefacts"]
    stages = (noted["files"] for stage, noted in manifest.items() if stage != "report")
    return {name: about["sha256"] for files in stages for name, about in files.items()}


def main(config: str, kills: int, folder: Path) -> None:
    def command(workspace: Path) -> list[str]:
        return [sys.executable, "-m", "fedgram", "run", config, "-w", str(workspace), "--json"]

    whole, broken = folder / "whole", folder / "broken"
    began = perf_counter()
    subprocess.run(command(whole), check=True, stdout=subprocess.DEVNULL)
    seconds = perf_counter() - began
    print(f"left alone: {seconds:.0f} s", flush=True)
    moments, began, done = random.Random(1), perf_counter(), 0
    while done < kills:
        process = subprocess.Popen(command(broken), stdout=subprocess.DEVNULL)
        sleep(4.0 + moments.uniform(0.0, 1.6 * seconds / kills))  # starting takes a few seconds
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            print(f"ended by itself after {done} kills", flush=True)
            break
        done += 1
        going_on = [path.name.rsplit("-", 1)[0] for path in (broken / ".work").glob("*")]
        print(f"kill {done}: in {', '.join(going_on) or 'between stages'}", flush=True)
    subprocess.run(command(broken), check=True, stdout=subprocess.DEVNULL)
    same = digests(whole) == digests(broken)
    print(f"killed {done} times: {perf_counter() - began:.0f} s")
    print(f"lm.fgram {digests(broken)['lm.fgram']}; {'all files are the same' if same else 'FILES DIFFER'}")
    sys.exit(not same)


if __name__ == "__main__":
    given = sys.argv[1:]
    chosen = [*given, *["demo", "20", ""][len(given) :]]
    with tempfile.TemporaryDirectory() as temporary:
        main(chosen[0], int(chosen[1]), Path(chosen[2] or temporary))
