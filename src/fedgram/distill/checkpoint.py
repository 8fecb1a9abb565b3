"""Where a count resumes after an interruption: the sum of all shards so far, in one checkpoint that is replaced whole.

The counts and the number of samples they are of stand in the same file, so that no sample is counted twice and none is
left out, whenever the process ends.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgram.core.checkpoint import read_checkpoint, write_checkpoint
from fedgram.core.errors import InputError
from fedgram.core.fixed_point import BITS
from fedgram.core.storage import Record
from fedgram.distill.sample_counts import SampleCounts

_ARRAYS = ("summed", "visits", "source_visits")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file of an unfinished, or finished, count."""

    path: Path

    def read(self, none: SampleCounts, digest: str, samples: int) -> SampleCounts:
        """The counts so far, or none if there is no file; at most `samples` samples may have been counted."""
        if not self.path.exists():
            return none
        counted, record = read_checkpoint(self.path, _description(digest))
        try:
            arrays, entropy = [record.arrays[name] for name in _ARRAYS], record.fields["entropy"]
        except KeyError as error:
            raise InputError(self.path, f"does not hold counts: {error} is missing") from None
        if any(array.shape != getattr(none, name).shape for name, array in zip(_ARRAYS, arrays, strict=True)):
            raise InputError(self.path, "its counts do not fit the topology")
        if any(array.dtype != np.int64 for array in arrays):
            raise InputError(self.path, "does not hold counts: an array has another type")
        if counted > samples:
            raise InputError(self.path, f"holds counts of {counted} samples already", remedy="ask for as many or more")
        summed, visits, source_visits = arrays
        return SampleCounts(none.topology, summed, visits, source_visits, counted, entropy)

    def write(self, counts: SampleCounts, digest: str) -> None:
        """Commit the counts so far."""
        arrays = {name: getattr(counts, name) for name in _ARRAYS}
        write_checkpoint(self.path, counts.samples, Record({"entropy": counts.entropy}, arrays), _description(digest))


def _description(digest: str) -> dict[str, str | int]:
    return {"source, topology or seed": digest, "bits": BITS}
