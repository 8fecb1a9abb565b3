"""What a device measures in an experiment: text that was typed since it installed its arm's model, each message once.

A device remembers up to which message it has measured. A report covers the messages after that, up to the last one when
the report was begun; if the report does not enter a sum, the next one covers them again. So a device that vanishes,
comes back, or is asked twice loses nothing, and counts nothing twice. The record is in the device's folder:

    live.json      the rollout, the question that was asked last, the messages (after, upto], and whether they were sent
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fedgram.core.errors import InputError
from fedgram.core.storage import Record, atomic_write, flush
from fedgram.deployment.installed import ModelFolder
from fedgram.deployment.live_task import UNTIMED, LiveTask
from fedgram.deployment.store import DeviceStore
from fedgram.text.population import Population

LIVE = "live.json"


@dataclass(frozen=True, slots=True)
class Window:
    """The messages of a report: those with numbers in (after, upto]."""

    rollout: str = ""
    question: str = ""
    after: int = 0
    upto: int = 0
    sent: bool = False

    def next(self, rollout: str, question: str, last: int) -> "Window":
        """The messages for a question; the same as before if it is the same question."""
        if rollout != self.rollout:
            return Window(rollout, question, 0, last)
        if question == self.question:
            return self
        return Window(rollout, question, self.upto if self.sent else self.after, last)


class LiveText:
    """The text of a device for the experiment that it takes part in."""

    def __init__(self, folder: Path, store: DeviceStore, models: ModelFolder) -> None:
        self._path, self._store, self._models = folder / LIVE, store, models

    def why_not(self, task: LiveTask) -> str | None:
        """Why the device does not measure for this arm; None if it has installed the arm's model."""
        state, about = self._models.state(), task.about
        mine = (state.rollout, state.choice, state.model) == (about.rollout, about.choice, about.model)
        path = self._models.current() if mine else None
        return None if path is not None and path.stem == about.model else "not ready"

    def measured(self, task: LiveTask, question: str) -> tuple[Record, Population]:
        """The installed model, as the task takes it, and the messages of the report that answers a question."""
        window = self._read().next(task.about.rollout, question, self._store.last())
        self._write(window)
        path = self._models.current()
        if path is None:
            raise InputError(self._models.path, "holds no whole model", remedy="wait until it has been sent again")
        own = self._store.typed(window.after, window.upto, self._models.state().time)
        model = np.frombuffer(path.read_bytes(), np.uint8)
        return Record({UNTIMED: not self._store.has_times()}, {"model0": model}), own

    def sent(self, question: str) -> None:
        """Note that the report that answers a question has left the device."""
        window = self._read()
        if window.question == question and not window.sent:
            self._write(replace(window, sent=True))

    def _read(self) -> Window:
        if not self._path.is_file():
            return Window()
        try:
            window = Window(**json.loads(self._path.read_text("utf-8")))
            numbers_fit = all(type(n) is int and n >= 0 for n in (window.after, window.upto))
            if not numbers_fit or type(window.sent) is not bool:
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            remedy = "restore it; until then the device takes part in no experiment"
            raise InputError(self._path, "is damaged", remedy=remedy) from None
        return window

    def _write(self, window: Window) -> None:
        with atomic_write(self._path) as file:
            file.write(json.dumps(asdict(window)).encode())
        flush(self._path.parent)
