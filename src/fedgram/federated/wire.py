"""Updates and broadcasts as bytes, and back: everything that a device and the server exchange in a round.

An update has the indices of a vector's values only if the vector is not given in full.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.core.arrays import LongArray
from fedgram.core.errors import InvariantError
from fedgram.core.storage import Artefact, Record, artefact_from_bytes, artefact_to_bytes
from fedgram.federated.task import Update

KIND, BROADCAST, VERSION = "update", "broadcast", 1


def update_to_bytes(update: Update) -> bytes:
    """The bytes of an update."""
    arrays: dict[str, NDArray[Any]] = {f"values.{name}": v for name, v in update.values.items()}
    arrays |= {f"index.{name}": i for name, i in update.index.items() if len(i) < update.size[name]}
    fields = {"size": dict(update.size), "weight": float(update.weight)}
    return artefact_to_bytes(Artefact(KIND, VERSION, fields, arrays))


def update_from_bytes(data: bytes) -> Update:
    """The update that these bytes hold; `Total.add` checks its numbers."""
    artefact = artefact_from_bytes(data, "update", kind=KIND, version=VERSION)
    try:
        size = {str(name): int(n) for name, n in artefact.fields["size"].items()}
        values = {name: artefact.arrays[f"values.{name}"] for name in size}
        index = {name: _index(artefact.arrays, name, n) for name, n in size.items()}
        weight = float(artefact.fields["weight"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvariantError(f"an update is incomplete: {error}") from None
    if any(a.dtype != np.int64 for a in index.values()) or any(a.dtype != np.float64 for a in values.values()):
        raise InvariantError("an update holds numbers of the wrong type")
    return Update(size, index, values, weight)


def _index(arrays: Mapping[str, NDArray[Any]], name: str, size: int) -> LongArray:
    """The indices of a vector's values; without any, the vector must be given in full."""
    if f"index.{name}" in arrays:
        return arrays[f"index.{name}"]
    if arrays[f"values.{name}"].shape != (size,):
        raise InvariantError("an update's indices and values differ in number")
    return np.arange(size, dtype=np.int64)


def record_to_bytes(record: Record) -> bytes:
    """The bytes of a broadcast."""
    return artefact_to_bytes(Artefact(BROADCAST, VERSION, record.fields, record.arrays))


def record_from_bytes(data: bytes) -> Record:
    """The broadcast that these bytes hold, checked for damage."""
    artefact = artefact_from_bytes(data, "broadcast", kind=BROADCAST, version=VERSION)
    return Record(artefact.fields, artefact.arrays)
