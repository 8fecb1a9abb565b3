"""Checkpoints: where long work resumes after an interruption. One format serves every kind of work.

A checkpoint is an artefact that holds what the work needs (a `Record`), how far it is (`number`), and a description of
what it belongs to. It is written whole or not at all and carries a checksum. Work with another description refuses it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import Artefact, Record, flush, read_artefact, write_artefact

KIND, VERSION = "checkpoint", 1


class OtherWorkError(InputError):
    """A checkpoint that belongs to other work."""


def write_checkpoint(path: Path, number: int, record: Record, belongs_to: Mapping[str, Any]) -> None:
    """Write a checkpoint; when this returns it survives a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"belongs_to": _plain(belongs_to), "number": number, "fields": dict(record.fields)}
    write_artefact(path, Artefact(KIND, VERSION, fields, record.arrays))
    flush(path.parent)


def read_checkpoint(path: Path, belongs_to: Mapping[str, Any]) -> tuple[int, Record]:
    """The number and content of a checkpoint; one of other work is refused with the names of what differs."""
    artefact = read_artefact(path, kind=KIND, version=VERSION)
    try:
        found, number, fields = (artefact.fields[name] for name in ("belongs_to", "number", "fields"))
        wanted = _plain(belongs_to)
        differ = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        if type(number) is not int or not isinstance(fields, dict):
            raise TypeError("its number or its fields are of another kind")
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(path, f"does not hold a checkpoint: {error}") from None
    if differ:
        remedy = "use the same settings, name another file or folder, or remove it"
        raise OtherWorkError(path, f"was made with other settings: {', '.join(differ)}", remedy=remedy)
    return number, Record(fields, artefact.arrays)


def made_once(path: Path | None, make: Callable[[], Record], belongs_to: Mapping[str, Any]) -> Record:
    """What `make` makes, kept in a file: after an interruption it is read, not made again. Without a path, made anew.

    For what must not be made twice, such as the noise of a sum: two sums with different noise show more than one.
    """
    if path is None:
        return make()
    if not path.exists():
        write_checkpoint(path, 0, make(), belongs_to)
    return read_checkpoint(path, belongs_to)[1]


def _plain(description: Mapping[str, Any]) -> dict[str, Any]:
    """The description as JSON gives it back: tuples become lists."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(description), sort_keys=True))
    return plain


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A folder of numbered checkpoints of one piece of work, of which the last two are kept.

    If the newest is damaged, the one before it is used; the work then repeats a step, with the same result.
    """

    folder: Path
    belongs_to: Mapping[str, Any]
    kept: int = 2

    def write(self, number: int, record: Record) -> None:
        """Write a checkpoint, and remove older ones."""
        write_checkpoint(self.folder / f"{number:08d}.safetensors", number, record, self.belongs_to)
        for old in self._paths()[: -self.kept]:
            old.unlink(missing_ok=True)

    def newest(self) -> tuple[int, Record] | None:
        """The newest checkpoint that can be read; None if there is none."""
        damaged: list[InputError] = []
        for path in reversed(self._paths()):
            try:
                return read_checkpoint(path, self.belongs_to)
            except OtherWorkError:
                raise
            except InputError as error:
                damaged.append(error)
        if damaged:
            raise FedgramError(f"no checkpoint can be read: {damaged[0]}")
        return None

    def clear(self) -> None:
        """Remove all checkpoints, as for work that starts anew."""
        for path in self._paths():
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("????????.safetensors"))
