"""Checkpoints of counting: the sum of all shards so far, in one file that is replaced as a whole.

The counts and the number of samples are in the same file. So no sample is counted twice or left out, whenever the
process ends.
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
    """The file of a count, finished or not."""

    path: Path

    def read(self, none: SampleCounts, digest: str, samples: int) -> SampleCounts:
        """The counts so far, or `none` if there is no file; an error if they are of more than `samples` samples."""
        if not self.path.exists():
            return none
        counted, record = read_checkpoint(self.path, _description(digest))
        try:
            arrays, entropy = [record.arrays[name] for name in _ARRAYS], record.fields["entropy"]
        except KeyError as error:
            raise InputError(self.path, f"does not hold counts: {error} is missing") from None
        if any(array.shape != getattr(none, name).shape for name, array in zip(_ARRAYS, arrays, strict=True)):
            raise InputError(self.path, "holds counts on another topology", remedy="remove it to start again")
        if any(array.dtype != np.int64 for array in arrays):
            raise InputError(self.path, "does not hold counts: an array is not of 64-bit integers")
        if counted > samples:
            raise InputError(self.path, f"holds counts of {counted} samples already", remedy="use at least as many")
        summed, visits, source_visits = arrays
        return SampleCounts(none.topology, summed, visits, source_visits, counted, entropy)

    def write(self, counts: SampleCounts, digest: str) -> None:
        """Replace the file by one with these counts."""
        arrays = {name: getattr(counts, name) for name in _ARRAYS}
        write_checkpoint(self.path, counts.samples, Record({"entropy": counts.entropy}, arrays), _description(digest))


def _description(digest: str) -> dict[str, str | int]:
    return {"source, topology or seed": digest, "bits": BITS}
