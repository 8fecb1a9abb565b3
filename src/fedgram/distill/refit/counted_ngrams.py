"""The file of what devices counted: a topology and C(x, q), so that a model can be fitted anew without asking again.

It is a checkpoint that belongs to the model and to the settings that devices counted with; what a fit alone depends on,
the prior's visits and the budget, is not among these.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.model import NGramModel
from fedgram.automata.properties import topology_faults
from fedgram.automata.topology import Topology
from fedgram.core.checkpoint import OtherWork, read_checkpoint, write_checkpoint
from fedgram.core.errors import InputError, InvariantError
from fedgram.core.storage import Record, content_digest
from fedgram.distill.refit.federated_refit import CountedNGrams, RefitOptions
from fedgram.distill.sample_approx import topology_arrays


def counting_settings(model: NGramModel, options: RefitOptions, **more: Any) -> dict[str, Any]:
    """What counts depend on, by name."""
    asked = asdict(options)
    settings = {name: asked[name] for name in ("limits", "plan", "sketch", "growth")}
    return {"model": _digest(model), **settings, **more}


def write_counted(path: Path, counted: CountedNGrams, settings: Mapping[str, Any]) -> None:
    """Write what devices counted with these settings."""
    fields = {"start": counted.topology.start, "passes": [dict(p) for p in counted.passes]}
    arrays: dict[str, NDArray[Any]] = {**topology_arrays(counted.topology), "count": counted.count}
    write_checkpoint(path, len(counted.passes), Record(fields, arrays), settings)


def read_counted(path: Path, model: NGramModel, settings: Mapping[str, Any]) -> CountedNGrams:
    """What devices counted for this model with these settings; other counts are refused."""
    try:
        _, record = read_checkpoint(path, settings)
        fields, a = record.fields, record.arrays
        topology = Topology(a["first_arc"], a["label"], a["dest"], a["backoff"], int(fields["start"]))
        faults = topology_faults(topology, words=len(model.vocabulary))
        count = a["count"]
        if faults or count.dtype != np.int64 or count.shape != (topology.arcs,) or count.min(initial=0) < 0:
            raise InvariantError(f"the invariant {faults[0] if faults else 'C ≥ 0'} does not hold")
        return CountedNGrams(topology, count, tuple(fields["passes"]))
    except OtherWork:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, InvariantError) as error:
        raise InputError(path, f"does not hold counts of n-grams: {error}") from None


def _digest(model: NGramModel) -> str:
    return content_digest({"vocabulary": model.vocabulary.digest}, topology_arrays(model.topology))
