"""The rounds of a collection on disk: one artefact a round, written whole or not at all before the next one begins.

What is there after a crash is every round that was committed. Should the newest be damaged, it is collected again.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgram.core.errors import InputError
from fedgram.core.storage import Artefact, read_artefact, write_artefact
from fedgram.federated.unigram_collection import RoundCounts, UnigramState

KIND, VERSION = "unigram-round", 1


def write_round(folder: Path, number: int, part: RoundCounts, settings: Mapping[str, Any]) -> None:
    """Commit a round."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"index": part.index, "weight": part.weight, "square": part.square, "cross": part.cross}
    fields = {"settings": dict(settings), "round": number, "length_square": part.length_square, "devices": part.devices}
    write_artefact(_path(folder, number), Artefact(KIND, VERSION, fields, arrays))
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_rounds(folder: Path, settings: Mapping[str, Any]) -> UnigramState:
    """The committed rounds, up to the first that is missing or damaged; those of another run are refused."""
    rounds: list[RoundCounts] = []
    while (path := _path(folder, len(rounds) + 1)).is_file():
        try:
            artefact = read_artefact(path, kind=KIND, version=VERSION)
            fields, arrays = artefact.fields, artefact.arrays
            part = RoundCounts(
                arrays["index"], arrays["weight"], arrays["square"], arrays["cross"], float(fields["length_square"]),
                int(fields["devices"]),
            )  # fmt: skip
            found = fields["settings"]
        except (InputError, KeyError, TypeError, ValueError):
            break
        if found != dict(settings):
            remedy = "use the same configuration, or another workspace"
            raise InputError(path, "belongs to a collection with other settings", remedy=remedy)
        rounds.append(part)
    return UnigramState(tuple(rounds))


def _path(folder: Path, number: int) -> Path:
    return folder / f"round-{number:06d}.safetensors"
