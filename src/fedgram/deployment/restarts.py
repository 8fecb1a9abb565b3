"""Keeps a SuperLink or a SuperNode running: a process that ends is started again, until the command is stopped."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgram.core.errors import FedgramError
from fedgram.core.locks import locked
from fedgram.deployment.checks import wrong_authority
from fedgram.deployment.flower.processes import end
from fedgram.deployment.folder import Folder

_STEADY_SECONDS = 30.0  # after which a process counts as having worked
_ATTEMPTS = 5
_RETRY_SECONDS = 10.0


class RetryLaterError(FedgramError):
    """A process ended for a reason that may pass."""


def keep_running(
    start: Callable[[], "subprocess.Popen[bytes]"], explain: Callable[[], FedgramError | None], log: Path
) -> None:
    """Run a process, and start it again whenever it ends.

    Gives up if it ends at once several times in a row, or if `explain` returns an error that cannot pass.
    """
    failures = 0
    while True:
        began = time.monotonic()
        process = start()
        try:
            code = process.wait()
        finally:
            end(process)
        why = explain()
        if isinstance(why, RetryLaterError):
            print(f"fedgram: {why}; trying again", file=sys.stderr)
            time.sleep(_RETRY_SECONDS)
            continue
        if why:
            raise why
        failures = 0 if time.monotonic() - began > _STEADY_SECONDS else failures + 1
        if failures >= _ATTEMPTS:
            raise FedgramError(f"the process ended {failures} times shortly after its start (code {code}); see {log}")
        print(f"fedgram: the process ended with code {code}; starting it again", file=sys.stderr)
        time.sleep(min(2.0**failures, 30.0))


def why_refused(folder: Folder, number: int) -> FedgramError | None:
    """Why the server refused a device, as its SuperNode's log says; None if the log names no such reason."""
    log = folder.node(number) / "log"
    text = log.read_text("utf-8", "replace")[-20_000:] if log.is_file() else ""
    text = text[text.rfind("Starting Flower SuperNode") :]
    if "certificate revoked" in text:
        return RetryLaterError("the server has a certificate that was revoked")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return FedgramError(wrong_authority(folder))
    if "[code: 2004]" in text:  # also for a minute after a node was cut off, until the server has noticed
        how = f"fedgram federation admit DIR {number} key.pub"
        return RetryLaterError(f"the server does not admit device {number}; if it is new, run on the server: {how}")
    return None


@contextmanager
def single_instance(home: Path, what: str) -> Iterator[None]:
    """Refuse a second command that would keep the process of the same folder running."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(home, taken=f"{what} already, by another process on this machine", name=".kept"):
        yield


def log_of(path: Path) -> Path:
    """A log's path, with its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
