"""Where a count goes on after an interruption: the sum of all shards so far, in one file that is replaced whole.

The counts and the number of samples they are of stand in the same file, so that no sample is counted twice and none is
left out, whenever the process ends. The file names the work it belongs to; that of other work is refused.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgram.core.errors import InputError
from fedgram.core.fixed_point import BITS
from fedgram.core.storage import Artefact, read_artefact, write_artefact
from fedgram.distill.sample_counts import SampleCounts

KIND, VERSION = "sample-counts", 1
_ARRAYS = ("summed", "visits", "source_visits")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file of an unfinished, or finished, count."""

    path: Path

    def read(self, none: SampleCounts, digest: str, samples: int) -> SampleCounts:
        """The counts so far, or none if there is no file; at most `samples` samples may have been counted."""
        if not self.path.exists():
            return none
        artefact = read_artefact(self.path, kind=KIND, version=VERSION)
        try:
            found, counted, entropy = (artefact.fields[name] for name in ("work", "samples", "entropy"))
            arrays = [artefact.arrays[name] for name in _ARRAYS]
        except KeyError as error:
            raise InputError(self.path, f"does not hold counts: {error} is missing") from None
        if found != digest:
            remedy = "name another file, or remove it to count anew"
            raise InputError(self.path, "holds counts of another source, topology or seed", remedy=remedy)
        if any(array.shape != getattr(none, name).shape for name, array in zip(_ARRAYS, arrays, strict=True)):
            raise InputError(self.path, "its counts do not fit the topology")
        if any(array.dtype != np.int64 for array in arrays) or not isinstance(counted, int):
            raise InputError(self.path, "does not hold counts: an array has another type")
        if counted > samples:
            raise InputError(self.path, f"holds counts of {counted} samples already", remedy="ask for as many or more")
        summed, visits, source_visits = arrays
        return SampleCounts(none.topology, summed, visits, source_visits, counted, entropy)

    def write(self, counts: SampleCounts, digest: str) -> None:
        """Commit the counts so far."""
        fields = {"work": digest, "samples": counts.samples, "entropy": counts.entropy, "bits": BITS}
        arrays = {name: getattr(counts, name) for name in _ARRAYS}
        write_artefact(self.path, Artefact(KIND, VERSION, fields, arrays))
