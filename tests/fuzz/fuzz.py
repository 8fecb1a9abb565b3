"""Mutates valid files and has every parser of fedgram read them; whatever is neither read nor refused is a finding.

    scripts/fuzz                         200 mutations of each kind of file
    scripts/fuzz --mutations 1000000     so many over all targets
    scripts/fuzz mbox toml --seed 7      some targets, other mutations

Each target runs in a process of its own, with 1 GiB and 5 s of processor time per mutation. A finding is a crash, a
hang, too much memory, an exception that is not a `FedgramError`, or an error that is not one short line. Inputs that
caused one are kept in build/fuzz.
"""

import argparse
import collections
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.targets import TARGETS, has

BLOCK = 20_000  # mutations in one process
FOUND = Path("build") / "fuzz"
STARTING_SECONDS = 300


def shares(names: list[str], mutations: int) -> dict[str, int]:
    """The number of mutations of each target, by its share."""
    whole = sum(TARGETS[name].share for name in names)
    return {name: max(1, round(mutations * TARGETS[name].share / whole)) for name in names}


def fuzz(name: str, seed: int, count: int) -> tuple[collections.Counter[str], int]:
    """Run a target in processes; the outcomes and the largest memory in MiB."""
    outcomes: collections.Counter[str] = collections.Counter()
    first, peak = 0, 0
    while first < count:
        block = min(BLOCK, count - first)
        ended, done, most = _block(name, seed, first, block)
        outcomes.update(ended)
        first, peak = first + done, max(peak, most)
    return outcomes, peak


def _block(name: str, seed: int, first: int, count: int) -> tuple[Mapping[str, int], int, int]:
    with tempfile.TemporaryDirectory(prefix="fedgram-fuzz-") as folder:
        progress = Path(folder) / "progress"
        command = [sys.executable, "-m", "tests.fuzz.child", name, *map(str, (seed, first, count, progress, FOUND))]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=STARTING_SECONDS + 1.0 * count
            )
        except subprocess.TimeoutExpired:
            return {f"waits for ever near mutation {_reached(progress, first)}": count}, count, 0
        if done.returncode == 0:
            found = json.loads(done.stdout.splitlines()[-1])
            return found["outcomes"], count, found["peak_mib"]
        at = _reached(progress, first)
        if done.returncode > 0:
            raise SystemExit(f"{name}: the process failed at mutation {at}\n{done.stderr[-2000:]}")
        what = "takes over 5 s" if -done.returncode == signal.SIGPROF else signal.Signals(-done.returncode).name
        return {f"mutation {at}: {what}": 1, "before that": at - first}, at - first + 1, 0


def _reached(progress: Path, first: int) -> int:
    return max(int.from_bytes(progress.read_bytes()[:8], "little") if progress.exists() else 0, first)


def main(arguments: list[str] | None = None) -> int:
    """Fuzz, print a line per target, and return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--mutations", type=int, help="in all; by default 200 for each target of the usual speed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="number of targets at the same time")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.targets if name not in TARGETS]:
        parser.error(f"unknown target {unknown[0]}")
    names = [name for name in options.targets or TARGETS if has(TARGETS[name].needs)]
    wanted = shares(names, options.mutations or round(200 * sum(TARGETS[name].share for name in names)))
    FOUND.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:  # each waits for a process
        findings = sum(pool.map(lambda name: _tell(name, options.seed, wanted[name]), names))
    total = sum(wanted.values())
    print(f"{total:,} mutations of {len(names)} targets with seed {options.seed}: {findings:,} findings")
    return 1 if findings else 0


def _tell(name: str, seed: int, count: int) -> int:
    """Fuzz a target, and print what came out; the number of findings."""
    begun = time.perf_counter()
    outcomes, peak = fuzz(name, seed, count)
    wrong = {what: n for what, n in outcomes.items() if what not in ("read", "refused", "before that")}
    seconds = time.perf_counter() - begun
    kinds = f"{outcomes['read']:,} read, {outcomes['refused']:,} refused"
    lines = [f"{name}: {count:,} mutations, {kinds}, {peak} MiB, {seconds:.0f} s"]
    lines += [f"  FINDING ({number:,}): {what}" for what, number in wrong.items()]
    print("\n".join(lines), flush=True)
    return sum(wrong.values())


if __name__ == "__main__":
    sys.exit(main())
