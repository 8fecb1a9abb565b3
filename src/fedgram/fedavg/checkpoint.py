"""Checkpoints of a run: one artefact a round, of which the last two are kept.

A checkpoint is written whole or not at all, and carries a checksum. If the newest is damaged, the one before it is
used; the run then repeats a round, with the same result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import Artefact, read_artefact, write_artefact
from fedgram.fedavg.task import FedAvgState
from fedgram.federated.averaging import ServerModel

KIND, VERSION = "fedavg-checkpoint", 1
_KEPT = 2
_PARTS = ("weights", "first", "second")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A run after a round: the server's state, the best weights so far, and the story up to here."""

    state: FedAvgState
    best: Mapping[str, NDArray[Any]]
    story: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, settings: Mapping[str, Any]) -> Path:
    """Write a checkpoint, and remove those before the last."""
    folder.mkdir(parents=True, exist_ok=True)
    state = checkpoint.state
    arrays = {f"best.{name}": array for name, array in checkpoint.best.items()}
    for part in _PARTS:
        arrays |= {f"{part}.{name}": array for name, array in getattr(state.model, part).items()}
    loss = None if np.isnan(state.loss) else state.loss
    fields = {
        "settings": dict(settings), "story": dict(checkpoint.story),
        "round": state.round, "loss": loss, "targets": state.targets, "devices": state.devices,
    }  # fmt: skip
    path = folder / f"round-{state.round:06d}.safetensors"
    write_artefact(path, Artefact(KIND, VERSION, fields, arrays))
    for old in _checkpoints(folder)[:-_KEPT]:
        old.unlink(missing_ok=True)
    return path


def remove_checkpoints(folder: Path) -> None:
    """Make room for a run that starts anew: what an older one left would pass for this one's newest."""
    for old in _checkpoints(folder):
        old.unlink(missing_ok=True)


def read_checkpoint(folder: Path, settings: Mapping[str, Any]) -> Checkpoint | None:
    """The newest checkpoint that can be read; None if there is none. One of a run with other settings is refused."""
    damaged = []
    for path in reversed(_checkpoints(folder)):
        try:
            artefact = read_artefact(path, kind=KIND, version=VERSION)
            return _from(artefact, path, settings)
        except InputError as error:
            if isinstance(error, OtherSettings):
                raise
            damaged.append(error)
    if damaged:
        raise FedgramError(f"no checkpoint can be read: {damaged[0]}")
    return None


class OtherSettings(InputError):
    """A checkpoint that belongs to another run."""


def _from(artefact: Artefact, path: Path, settings: Mapping[str, Any]) -> Checkpoint:
    fields = artefact.fields
    try:
        differ = sorted(k for k in {*settings, *fields["settings"]} if settings.get(k) != fields["settings"].get(k))
        if differ:
            remedy = "resume with the same ones, or start anew with another output"
            raise OtherSettings(path, f"belongs to a run with other settings: {', '.join(differ)}", remedy=remedy)
        parts: dict[str, dict[str, NDArray[Any]]] = {part: {} for part in (*_PARTS, "best")}
        for name, array in artefact.arrays.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = array
        loss = float("nan") if fields["loss"] is None else fields["loss"]
        model = ServerModel(*(parts[part] for part in _PARTS))
        state = FedAvgState(fields["round"], model, loss, fields["targets"], fields["devices"])
        return Checkpoint(state, parts["best"], fields["story"])
    except (KeyError, TypeError) as error:
        raise InputError(path, f"does not hold a checkpoint: {error}") from None


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-??????.safetensors"))
