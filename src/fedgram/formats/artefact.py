"""`.ngram`: fedgram's own model file, exact to the last bit: the automaton's arrays in an artefact with a checksum."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.model import NGramModel
from fedgram.automata.properties import topology_faults
from fedgram.automata.topology import Topology
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.errors import InputError, InvariantError
from fedgram.core.storage import Artefact, read_artefact, write_artefact
from fedgram.text.vocabulary import vocabulary_from_bytes, vocabulary_to_bytes

KIND, VERSION = "ngram-model", 1
_TYPES = {
    "words": np.uint8, "first_arc": np.int64, "label": np.int32, "dest": np.int32, "backoff": np.int32,
    "log_weight": np.float64, "log_backoff": np.float64,
}  # fmt: skip


def write_ngram(model: NGramModel, path: str | Path) -> str:
    """Write the model, and return the digest of its content."""
    t = model.topology
    arrays: dict[str, NDArray[Any]] = {
        "words": vocabulary_to_bytes(model.vocabulary),
        "first_arc": t.first_arc,
        "label": t.label,
        "dest": t.dest,
        "backoff": t.backoff,
        "log_weight": model.log_weight,
        "log_backoff": model.log_backoff,
    }
    return write_artefact(path, Artefact(KIND, VERSION, {"start": t.start}, arrays))


def read_ngram(path: str | Path) -> NGramModel:
    """Read a model. Arrays that are not an n-gram automaton are refused."""
    artefact = read_artefact(path, kind=KIND, version=VERSION)
    arrays = artefact.arrays
    wrong = [
        name
        for name, dtype in _TYPES.items()
        if name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != 1
    ]
    if wrong or type(artefact.fields.get("start")) is not int:
        raise InputError(path, f"{wrong[0] if wrong else 'start'!r} is missing or has the wrong type")
    try:
        vocabulary = vocabulary_from_bytes(arrays["words"])
        topology = Topology(
            arrays["first_arc"], arrays["label"], arrays["dest"], arrays["backoff"], artefact.fields["start"]
        )
        faults = topology_faults(topology, words=len(vocabulary))
        if faults:
            raise InvariantError(f"it violates the invariant {faults[0]}")
        if topology.order > MAX_ORDER:
            raise InvariantError(f"its order is greater than {MAX_ORDER}")
        return NGramModel(topology, vocabulary, arrays["log_weight"], arrays["log_backoff"])
    except (InvariantError, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise InputError(path, f"does not contain an n-gram model: {error}") from None
