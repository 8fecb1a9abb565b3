"""Functions of the package in processes of their own, side by side.

A call names a function (as `core/lazy.py` does) and gives it JSON values; its result is JSON too. Everything else goes
through files. So a call needs nothing of the process that makes it, and scripts need no guard for their main module.
A process ends with the one that started it, and Ctrl-C reaches it only through that one.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.core.lazy import lazy
from fedgram.core.parent import end_with

Process = subprocess.Popen[bytes]
_CALL, _RESULT, _TRACEBACK = "call.json", "result.json", "stderr"
_KILLED = "a process was killed by signal {}, perhaps for lack of memory; run fewer of them at once"
_ERRORS = (FedgramError, OSError, MemoryError, ModuleNotFoundError)  # that come back as what they are; others are bugs


def start(module: str, *arguments: str, stderr: Any = subprocess.DEVNULL) -> Process:
    """Start a module of the package as a process that prints nothing and has one thread where it can choose.

    Its first argument is the ID of this process, for `end_with`. It imports nothing from the current folder (`-P`).
    """
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(os.getpid()), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
    )  # fmt: skip


class Processes:
    """Makes calls in at most `most` processes at once. Leaving the context ends the calls that are still running."""

    def __init__(self, most: int) -> None:
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="call")
        self._lock, self._running, self._is_over = threading.Lock(), set[Process](), False

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            for process in self._running:
                process.kill()
        self._threads.shutdown(cancel_futures=True)

    def submit(self, function: str, values: Mapping[str, Any]) -> "Future[Any]":
        """Call a function. An error of `_ERRORS` that it raises is raised here too: the same type, text and notes.

        Of a `FedgramError` the subclass is lost. A call that is killed raises a `FedgramError`. Any other error is a
        bug, raised as a `RuntimeError` with the traceback.
        """
        return self._threads.submit(self._call, function, values)

    def _call(self, function: str, values: Mapping[str, Any]) -> Any:
        with tempfile.TemporaryDirectory(prefix="fedgram-") as name:
            folder = Path(name)
            (folder / _CALL).write_text(json.dumps({"function": function, "values": values}))
            code = self._run(folder)
            if not (folder / _RESULT).exists():
                if code < 0 and not self._is_over:
                    raise FedgramError(_KILLED.format(-code))
                shown = (folder / _TRACEBACK).read_text("utf-8", errors="replace")
                raise RuntimeError(f"{function} ended with exit code {code} in a process of its own\n{shown}")
            found = json.loads((folder / _RESULT).read_text("utf-8"))
        if "error" in found:
            raise _from_json(found)
        return found["result"]

    def _run(self, folder: Path) -> int:
        with (folder / _TRACEBACK).open("wb") as errors:
            with self._lock:
                if self._is_over:
                    raise RuntimeError("the calls were ended")
                process = start(__name__, str(folder), stderr=errors)
                self._running.add(process)
            code = process.wait()
            with self._lock:
                self._running.remove(process)
            return code


def _to_json(error: Exception) -> dict[str, Any]:
    kind = next(kind for kind in _ERRORS if isinstance(error, kind))
    arguments: list[Any] = [str(error)]
    if isinstance(error, OSError) and error.errno is not None:
        arguments = [error.errno, error.strerror, None if error.filename is None else str(error.filename)]
    named = {"name": error.name} if isinstance(error, ModuleNotFoundError) else {}
    notes = getattr(error, "__notes__", [])
    return {"error": kind.__name__, "arguments": arguments, "named": named, "notes": notes}


def _from_json(found: Mapping[str, Any]) -> Exception:
    kind: Any = next(kind for kind in _ERRORS if kind.__name__ == found["error"])
    error: Exception = kind(*found["arguments"], **found["named"])
    for note in found["notes"]:
        error.add_note(note)
    return error


def main() -> None:
    """Make the call that is described in a folder, and write its result there: PARENT FOLDER."""
    end_with(int(sys.argv[1]))
    folder = Path(sys.argv[2])
    call = json.loads((folder / _CALL).read_text("utf-8"))
    try:
        _write(folder, {"result": lazy(call["function"])(**call["values"])})
    except _ERRORS as error:
        _write(folder, _to_json(error))


def _write(folder: Path, found: Mapping[str, Any]) -> None:
    written = folder / f".{_RESULT}"
    written.write_text(json.dumps(found), "utf-8")
    written.rename(folder / _RESULT)


if __name__ == "__main__":
    main()
