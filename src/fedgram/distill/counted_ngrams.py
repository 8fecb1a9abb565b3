"""The file of what devices counted: a topology and C(x, q), so that a model can be fitted anew without asking again.

It names the model and the settings that they were counted with; what a fit alone depends on, the prior's visits and the
budget, is not among these.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.model import NGramModel
from fedgram.automata.properties import topology_faults
from fedgram.automata.topology import Topology
from fedgram.core.errors import InputError, InvariantError
from fedgram.core.storage import Artefact, content_digest, read_artefact, write_artefact
from fedgram.distill.refit import CountedNGrams, RefitOptions
from fedgram.distill.sample_approx import topology_arrays
from fedgram.federated.one_pass import PassReport

KIND, VERSION = "counted-ngrams", 2


def counting_settings(options: RefitOptions, **more: Any) -> dict[str, str]:
    """What counts depend on, by name, as text."""
    asked = asdict(options)
    settings = {name: asked[name] for name in ("limits", "plan", "sketch", "growth")}
    return {name: json.dumps(value, sort_keys=True) for name, value in {**settings, **more}.items()}


def write_counted(path: str | Path, counted: CountedNGrams, model: NGramModel, settings: Mapping[str, str]) -> str:
    """Write what devices counted for a model; returns the digest."""
    fields = {
        "model": _digest(model), "settings": dict(settings), "start": counted.topology.start,
        "passes": [asdict(p) for p in counted.passes],
    }  # fmt: skip
    arrays: dict[str, NDArray[Any]] = {**topology_arrays(counted.topology), "count": counted.count}
    return write_artefact(path, Artefact(KIND, VERSION, fields, arrays))


def read_counted(path: str | Path, model: NGramModel, settings: Mapping[str, str]) -> CountedNGrams:
    """What devices counted for this model with these settings; other counts are refused."""
    artefact = read_artefact(path, kind=KIND, version=VERSION)
    fields, a = artefact.fields, artefact.arrays
    try:
        if fields["model"] != _digest(model):
            raise InputError(path, "holds counts for another model", remedy="name another file, or remove it")
        found = fields["settings"]
        differ = sorted(name for name in {*found, *settings} if found.get(name) != settings.get(name))
        if differ:
            remedy = "give the same settings, name another file, or remove it"
            raise InputError(path, f"holds counts made with other settings: {', '.join(differ)}", remedy=remedy)
        topology = Topology(a["first_arc"], a["label"], a["dest"], a["backoff"], int(fields["start"]))
        faults = topology_faults(topology, words=len(model.vocabulary))
        count = a["count"]
        if faults or count.dtype != np.int64 or count.shape != (topology.arcs,) or count.min(initial=0) < 0:
            raise InvariantError(f"the invariant {faults[0] if faults else 'C ≥ 0'} does not hold")
        return CountedNGrams(topology, count, tuple(PassReport(**p) for p in fields["passes"]))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, InvariantError) as error:
        raise InputError(path, f"does not hold counts of n-grams: {error}") from None


def _digest(model: NGramModel) -> str:
    return content_digest({"vocabulary": model.vocabulary.digest}, topology_arrays(model.topology))
