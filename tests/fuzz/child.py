"""One target in a process of its own: `python -m tests.fuzz.child TARGET SEED FIRST COUNT PROGRESS FOUND`.

The process has a limit of memory, and of processor time for each mutation; whoever breaks one ends it by a signal, and
the number in the file PROGRESS says which mutation it was. The result is one JSON object on standard output.
"""

import collections
import hashlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target

from fedgram.core.errors import FedgramError

SECONDS = 5.0
BYTES = 1 << 30
MAX_MESSAGE = 2_000


def limit_memory() -> None:
    """Allow one gigabyte more than the process has now, with all its modules."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def mutated(name: str, seed: int, number: int, seeds: list[bytes]) -> bytes:
    """The mutation of this number."""
    r = random.Random(f"{name} {seed} {number}")
    return TARGETS[name].mutate(r, r.choice(seeds))


def outcome(target: Target, path: Path) -> str:
    """`read` or `refused`, or what went wrong."""
    try:
        target.read(path)
    except FedgramError as error:
        text = str(error)
        return "refused" if "\n" not in text and len(text) <= MAX_MESSAGE else "an error that is not one short line"
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = ([f for f in frames if "/fedgram/" in f.filename] or frames)[-1]
        return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:80]}"
    return "read"


def main(name: str, seed: int, first: int, count: int, progress: Path, found: Path) -> None:
    """Run the mutations and print how they ended."""
    warnings.simplefilter("ignore")
    target = TARGETS[name]
    outcomes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="fedgram-fuzz-") as folder, progress.open("wb") as numbers:
        path = Path(folder) / f"in{target.suffix}"
        seeds = target.seeds(Path(folder))
        for whole in seeds:
            path.write_bytes(whole)
            if "PAR1" not in repr(whole[:8]) and outcome(target, path) != "read":
                raise SystemExit(f"{name}: a valid file is not read: {outcome(target, path)}")
        limit_memory()
        for number in range(first, first + count):
            path.write_bytes(mutated(name, seed, number, seeds))
            os.pwrite(numbers.fileno(), number.to_bytes(8, "little"), 0)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process, also inside a library
            ended = outcome(target, path)
            signal.setitimer(signal.ITIMER_PROF, 0)
            outcomes[ended] += 1
            if ended not in ("read", "refused") and outcomes[ended] == 1:
                kept = found / f"{name}-{hashlib.sha256(ended.encode()).hexdigest()[:8]}{target.suffix}"
                kept.write_bytes(path.read_bytes())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({"outcomes": outcomes, "peak_mib": peak}))


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[2:5]]
    main(sys.argv[1], numbers[0], numbers[1], numbers[2], Path(sys.argv[5]), Path(sys.argv[6]))
