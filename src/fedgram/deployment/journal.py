"""What an operator sees: a log with one line of JSON per event, and a status file for metrics and `status`.

Both hold numbers and fixed words only, and nothing that was typed on a device.
"""

import json
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from fedgram.core.storage import atomic_write
from fedgram.deployment.arms import LEDGERS, TRAIN
from fedgram.deployment.rotating_log import RotatingLog
from fedgram.deployment.waiting import waiting_in_words
from fedgram.privacy.ledger import Ledger, ledger_facts, total_in_words

LOG, STATUS = "log.jsonl", "status.json"
_COUNTED = ("invited", "reports", "late", "bytes_sent", "bytes_received")
_BY_REASON = ("failed", "refused")
_TRANSIENT = ("progress", "waiting")  # shown in the status from time to time, and not logged
_PROGRESS_SECONDS = 1.0
_KEPT_JOBS = 8
NO_NOISE = "no noise is added, so ε has no bound"


class Journal:
    """Writes the log and the status of a server's folder; rounds call `tell`.

    `rounds` is None if it is not known beforehand, as for a pass over all devices; the status then says 0.
    """

    def __init__(self, folder: Path, task: str, rounds: int | None) -> None:
        self._folder, self._shown = folder, 0.0
        folder.mkdir(parents=True, exist_ok=True)
        before = read_status(folder)
        self._committed: dict[str, int] = dict(before.get("committed") or {})  # by job, while it is not completed
        self._status: dict[str, Any] = {
            "task": task, "rounds": rounds or 0, "job": None, "parts": {}, "last_committed": 0,
            "round": 0, "state": "starting", "devices": 0,
            "totals": dict.fromkeys(_COUNTED, 0) | {k: {} for k in _BY_REASON} | (before.get("totals") or {}),
            "rounds_committed": before.get("rounds_committed", 0),
            "rounds_abandoned": before.get("rounds_abandoned", 0),
            "round_seconds": before.get("round_seconds", 0.0), "current": {}, "waiting": {},
            "committed": self._committed,
        }  # fmt: skip

    def tell(self, event: str, about: Mapping[str, Any]) -> None:
        """Record an event."""
        status = self._status
        now = time.time()
        if event == "round committed" and status["job"] and about["round"] <= status["last_committed"]:
            return  # a ServerApp that was killed has recorded it
        status["waiting"] = dict(about) if event == "waiting" else {}
        if event == "progress":
            status["current"] = dict(about)
        if event not in _TRANSIENT:
            self._log(event, about, now)
        elif now - self._shown < _PROGRESS_SECONDS:
            return
        if event in ("round summed", "round abandoned"):
            self._add(about)
            status["current"] = {}
            status["round_seconds"] += float(about.get("seconds", 0.0))
            status["rounds_abandoned"] += event == "round abandoned"
        if event == "run began":
            self._begin(about)
        if event == "round committed":
            status["rounds_committed"] += 1
            status["last_committed"] = about["round"]
            self._note_committed()
        elif event == "run completed":
            status["last_committed"] = 0
            self._note_committed()
        status["round"] = about.get("round", status["round"])
        status["devices"] = about.get("devices", status["devices"])
        status["state"] = {"progress": "collecting", "waiting": waiting_in_words(about)}.get(event, event)
        status["time"] = round(now, 3)
        self._shown = now
        with atomic_write(self._folder / STATUS, durable=event not in _TRANSIENT) as file:
            file.write(json.dumps(status).encode())

    def _begin(self, about: Mapping[str, Any]) -> None:
        """Record the job: its digest, and those of its parts, which devices can pin."""
        job = about.get("job")
        self._status |= {"job": job, "parts": about.get("parts", {})}
        self._status["last_committed"] = self._committed.get(str(job), 0)

    def _note_committed(self) -> None:
        """Remember the last round of the job, so that no round counts twice if another job comes between."""
        job = str(self._status["job"])
        self._committed.pop(job, None)
        if last := self._status["last_committed"]:
            self._committed[job] = last
        self._status["committed"] = dict(list(self._committed.items())[-_KEPT_JOBS:])

    def _add(self, about: Mapping[str, Any]) -> None:
        totals = self._status["totals"]
        for name in _COUNTED:
            totals[name] += about.get(name, 0)
        for name in _BY_REASON:
            for reason, n in about.get(name, {}).items():
                totals[name][reason] = totals[name].get(reason, 0) + n

    def _log(self, event: str, about: Mapping[str, Any], now: float) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        line = json.dumps({"time": stamp, "event": event, "task": self._status["task"], **about})
        with closing(RotatingLog(self._folder / LOG)) as log:
            log.write(line.encode() + b"\n")


def read_status(folder: Path) -> dict[str, Any]:
    """The last status; empty if there is none."""
    try:
        status = json.loads((folder / STATUS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def read_privacy(folder: Path) -> tuple[dict[str, Any], str]:
    """What the privacy ledgers of a server's folder say, and their totals in words.

    `epsilon` and `privacy` are of the train arm; `evaluating_arms` are the arms that measured with noise.
    """
    found = {
        arm: ledger_facts(Ledger.open(folder / name)) for arm, name in LEDGERS.items() if (folder / name).is_file()
    }
    train, words = found.pop(TRAIN, None), [f"{arm} arm: {total_in_words(facts)}" for arm, facts in found.items()]
    told: dict[str, Any] = {"epsilon": None, "epsilon_reason": NO_NOISE}
    if train is not None:
        told = {"epsilon": train["epsilon"], "privacy": train}
    total = f"none: {NO_NOISE}" if train is None else total_in_words(train)
    return told | ({"evaluating_arms": found} if found else {}), "; ".join([total, *words])
