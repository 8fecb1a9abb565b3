"""Processes that share one training: each trains a part of every round's devices.

The first process is the caller. The others are started for one training and end with it, or with the process that
started them. They meet through a file and talk on this machine alone. Sums are exact, so the result does not depend
on their number. What they need is in a folder: `work.json`, and whatever files it names.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.core.lazy import lazy
from fedgram.core.parent import end_with
from fedgram.core.processes import Process, start
from fedgram.neural.ranks import Ranks, join_at

_ENDED = "a worker process ended; try again, or with one worker"
_POLL_SECONDS = 0.1


@contextmanager
def sharing(workers: int, function: str, prepare: Callable[[Path], Mapping[str, Any]]) -> Iterator[Ranks]:
    """This process as the first of `workers`; the others call `function`, with what `prepare` put into their folder.

    `function` is named as `core/lazy.py` does, and is called with the folder, the content of `work.json`, and its rank.
    """
    if workers == 1:
        yield Ranks()
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="fedgram-") as name:
        folder = Path(name)
        (folder / "work.json").write_text(json.dumps({"function": function, **prepare(folder)}))
        processes: list[Process] = []
        ranks = Ranks()
        try:
            processes += [start(__name__, str(folder), str(rank), str(workers)) for rank in range(1, workers)]
            _await(processes, folder)
            ranks = join_at(_meeting(folder), 0, workers)
            yield ranks
        except RuntimeError:
            if all(process.poll() is None for process in processes):
                raise
            raise FedgramError(_ENDED) from None
        finally:
            ranks.close()
            for process in processes:
                process.kill()  # one that waits for others in torch does not hear of a gentler signal
                process.wait()


def _meeting(folder: Path) -> str:
    return f"file://{folder}/meet"


def _await(processes: list[Process], folder: Path) -> None:
    """Wait until all workers are ready to meet: at the meeting itself, a worker that died is waited for in vain."""
    waiting = set(range(1, len(processes) + 1))
    while waiting:
        waiting = {rank for rank in waiting if not (folder / f"ready-{rank}").exists()}
        if any(process.poll() is not None for process in processes):
            raise FedgramError(_ENDED)
        if waiting:
            time.sleep(_POLL_SECONDS)


def main() -> None:
    """Run as a worker until the training ends: PARENT FOLDER RANK SIZE."""
    end_with(int(sys.argv[1]))
    folder, rank, size = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    work = json.loads((folder / "work.json").read_text())
    function = lazy(work["function"])
    (folder / f"ready-{rank}").touch()
    ranks = join_at(_meeting(folder), rank, size)
    function(folder, work, ranks)
    ranks.close()


if __name__ == "__main__":
    main()
