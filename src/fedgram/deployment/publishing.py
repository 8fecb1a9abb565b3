"""Publishing over a served federation: a command asks for it, and a ServerApp sends the release to devices.

    release-order.json     what the ServerApp is to do                      written by the command
    progress.json          how many devices are in which state              by the ServerApp
    done                   the command needs nothing more                   by the command

While a run uses the devices, its own ServerApp sends the release between rounds, and the command does not wait.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from fedgram.core.errors import FedgramError
from fedgram.core.locks import is_held, locked
from fedgram.core.storage import atomic_write
from fedgram.deployment.exchange import DONE, FAILED, Exchange
from fedgram.deployment.folder import Folder
from fedgram.deployment.published import DeviceVersions, Releases
from fedgram.deployment.rollout import Rollout, RolloutProgress
from fedgram.deployment.server_app_runs import LocalServerApp
from fedgram.deployment.transport import Transport, TransportLostError

ORDER, PROGRESS, WORK = "release-order.json", "progress.json", "rollout"
_POLL_SECONDS, _LOCK_SECONDS, _AWAY_SECONDS = 0.1, 120.0, 600.0
_BUSY_SECONDS = 60.0  # without any progress, after which devices that are busy with a release are not waited for


def is_rollout(work: Path) -> bool:
    """Whether the ServerApp of a folder is to send a release."""
    return (work / ORDER).is_file()


def serve_rollout(work: Path, transport: Transport) -> None:
    """Send the latest release to devices until the command needs nothing more; one process does so at a time."""
    with locked(work, seconds=_LOCK_SECONDS, taken="another ServerApp works in the same folder"):
        try:
            server = Path(json.loads((work / ORDER).read_text("utf-8"))["server"])
            rollout = Rollout(transport, Releases(server), DeviceVersions(server))
            shown: RolloutProgress | None = None
            while not (work / DONE).exists():
                if (progress := rollout.refresh()) != shown:
                    shown = progress
                    _write(work / PROGRESS, asdict(progress))
                time.sleep(_POLL_SECONDS)
        except TransportLostError:
            raise
        except Exception as error:
            known = isinstance(error, FedgramError)
            Exchange(work).fail(str(error) if known else f"the ServerApp failed with {type(error).__name__}")
            raise


def roll_out(
    folder: Folder, *, wait: float, on_progress: Callable[[RolloutProgress], object] = lambda _: None
) -> RolloutProgress:
    """Send the latest release to the devices that are there, until nothing has changed for `wait` seconds.

    While devices are still busy with the release, the wait is at least a minute.
    """
    work = folder.server / WORK
    server_app = LocalServerApp(folder, Exchange(work), _AWAY_SECONDS)
    with server_app.working():
        work.mkdir(exist_ok=True, mode=0o700)
        for name in (DONE, FAILED, PROGRESS):
            (work / name).unlink(missing_ok=True)
        _write(work / ORDER, {"server": str(folder.server)})
        try:
            return _follow(server_app, work, wait, on_progress)
        finally:
            with suppress(OSError):
                (work / DONE).touch()
            server_app.wait_for_end()


def _follow(
    server_app: LocalServerApp, work: Path, wait: float, on_progress: Callable[[RolloutProgress], object]
) -> RolloutProgress:
    """What the ServerApp says last; the wait does not begin before it works."""
    found, since = RolloutProgress(), time.monotonic()
    while time.monotonic() - since < (max(wait, _BUSY_SECONDS) if found.waiting else wait):
        works = server_app.check()
        if (now := read_progress(work)) != found or not works or not now.version:
            since = time.monotonic()
        if now != found:
            found = now
            server_app.answered()
            on_progress(found)
        time.sleep(_POLL_SECONDS)
    return found


def is_in_use(folder: Folder) -> bool:
    """Whether a run uses the devices of a federation, so that its ServerApp sends releases."""
    return is_held(folder.server)


def read_progress(work: Path) -> RolloutProgress:
    """What a ServerApp has written last of its rollout."""
    with suppress(OSError, ValueError, TypeError):
        return RolloutProgress(**json.loads((work / PROGRESS).read_text("utf-8")))
    return RolloutProgress()


def _write(path: Path, content: object) -> None:
    with atomic_write(path, durable=False) as file:
        file.write(json.dumps(content).encode())
