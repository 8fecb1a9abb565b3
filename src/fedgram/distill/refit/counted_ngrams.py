"""The file of what devices counted: a topology and S(x, q), so that a model can be fitted anew without asking again.

It is a checkpoint that belongs to the model and to the settings that devices counted with. The prior and the budget are
not among these: a fit may use other ones.
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
from fedgram.core.arrays import BoolArray
from fedgram.core.checkpoint import OtherWorkError, read_checkpoint, write_checkpoint
from fedgram.core.errors import InputError, InvariantError
from fedgram.core.storage import Record, content_digest
from fedgram.distill.refit.device_counts import CountedNGrams
from fedgram.distill.sample_approx import topology_arrays
from fedgram.federated.cohort import CohortOptions
from fedgram.privacy.options import PrivacyOptions


def counting_settings(
    model: NGramModel, options: CohortOptions, privacy: PrivacyOptions, public: BoolArray, **more: Any
) -> dict[str, Any]:  # fmt: skip
    """What counts depend on, by name: the model's n-grams, which are public, and all options but the prior."""
    settings = {name: value for name, value in asdict(options).items() if name != "prior"}
    ngrams = {"model": _digest(model), "public": content_digest({}, {"public": public})}
    return {**ngrams, **settings, "privacy": asdict(privacy), **more}


def write_counted(path: Path, counted: CountedNGrams, settings: Mapping[str, Any]) -> None:
    """Write what devices counted with these settings."""
    fields = {"start": counted.topology.start, "passes": [dict(p) for p in counted.passes]}
    arrays: dict[str, NDArray[Any]] = topology_arrays(counted.topology)
    arrays |= {"ngrams": counted.ngrams, "deviation": counted.deviation}
    write_checkpoint(path, len(counted.passes), Record(fields, arrays), settings)


def read_counted(path: Path, model: NGramModel, settings: Mapping[str, Any]) -> CountedNGrams:
    """What devices counted for this model with these settings; other counts are refused."""
    try:
        _, record = read_checkpoint(path, settings)
        fields, a = record.fields, record.arrays
        topology = Topology(a["first_arc"], a["label"], a["dest"], a["backoff"], int(fields["start"]))
        faults = topology_faults(topology, words=len(model.vocabulary))
        counts = a["ngrams"], a["deviation"]
        fit = all(c.dtype == np.float64 and c.shape == (topology.arcs,) and not np.isnan(c).any() for c in counts)
        if faults or not fit or not np.isfinite(counts[0]).all() or counts[1].min(initial=0.0) < 0:
            raise InvariantError(f"the invariant {faults[0] if faults else 'one count per arc'} does not hold")
        return CountedNGrams(topology, *counts, tuple(fields["passes"]))
    except OtherWorkError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, InvariantError) as error:
        raise InputError(path, f"does not hold counts of n-grams: {error}") from None


def _digest(model: NGramModel) -> str:
    return content_digest({"vocabulary": model.vocabulary.digest}, topology_arrays(model.topology))
