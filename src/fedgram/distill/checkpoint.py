"""Where a count goes on after an interruption: the sum of all shards so far, in one file that is replaced whole.

The counts and the number of samples they are of stand in the same file, so that no sample is counted twice and none is
left out, whenever the process ends. The file names the work it belongs to; that of other work is refused.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgram.automata.topology import Topology
from fedgram.core.errors import InputError
from fedgram.core.storage import Artefact, read_artefact, write_artefact
from fedgram.distill.sample_counts import BITS, SampleCounts

KIND, VERSION = "sample-counts", 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The file of an unfinished, or finished, count."""

    path: Path

    def read(self, topology: Topology, digest: str, samples: int) -> SampleCounts:
        """The counts so far, none if there is no file; at most `samples` samples may have been counted."""
        if not self.path.exists():
            return SampleCounts.zero(topology)
        artefact = read_artefact(self.path, kind=KIND, version=VERSION)
        try:
            found, counted, entropy = (artefact.fields[name] for name in ("work", "samples", "entropy"))
            summed, visits = artefact.arrays["summed"], artefact.arrays["visits"]
        except KeyError as error:
            raise InputError(self.path, f"does not hold counts: {error} is missing") from None
        if found != digest:
            remedy = "name another file, or remove it to count anew"
            raise InputError(self.path, "holds counts of another source, topology or seed", remedy=remedy)
        if summed.shape != (topology.arcs,) or visits.shape != (topology.states,):
            raise InputError(self.path, "its counts do not fit the topology")
        if summed.dtype != np.int64 or visits.dtype != np.int64 or not isinstance(counted, int):
            raise InputError(self.path, "does not hold counts: an array has another type")
        if counted > samples:
            raise InputError(self.path, f"holds counts of {counted} samples already", remedy="ask for as many or more")
        return SampleCounts(topology, summed, visits, counted, entropy)

    def write(self, counts: SampleCounts, digest: str) -> None:
        """Commit the counts so far."""
        fields = {"work": digest, "samples": counts.samples, "entropy": counts.entropy, "bits": BITS}
        arrays = {"summed": counts.summed, "visits": counts.visits}
        write_artefact(self.path, Artefact(KIND, VERSION, fields, arrays))
