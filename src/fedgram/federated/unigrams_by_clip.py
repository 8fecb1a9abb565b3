"""Word counts for several clipping thresholds λ from the same devices, for Table 1 of the paper.

Each device sends its clipped counts once for every λ, in one report. So the sums for all λ are over the same devices,
and no two of them differ by a device's report alone, as those of separate collections could. Paper: §3.3.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedgram.core.arrays import IntArray
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.core.random import Stream
from fedgram.core.storage import Record, limit_from_json, limit_to_json
from fedgram.federated.collect_unigrams import UnigramOptions
from fedgram.federated.counting import CountingTask
from fedgram.federated.devices import Devices, as_devices
from fedgram.federated.job import Job
from fedgram.federated.run_task import by_round, run_job
from fedgram.federated.task import Update
from fedgram.federated.unigram_collection import COUNT, FRACTION_BITS, UnigramTask
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.population import ClientDataset, Users
from fedgram.text.unigrams import UnigramCounts
from fedgram.text.vocabulary import Vocabulary, vocabulary_from_bytes, vocabulary_to_bytes

MAX_CLIPS = 16


class UnigramsByClip(CountingTask):
    """The collection as a `FederatedTask`: a vector of counts per λ."""

    name, bits = "unigrams-by-clip", FRACTION_BITS
    pinned_as = "unigrams"  # a device that has pinned settings of that task does not answer others in this one

    def __init__(self, vocabulary: Vocabulary, clips: Sequence[float]) -> None:
        if not 1 <= len(clips) <= MAX_CLIPS:
            raise FedgramError(f"name 1 to {MAX_CLIPS} clipping thresholds, not {len(clips)}")
        self.vocabulary, self.clips = vocabulary, tuple(clips)
        self._tasks = {f"{COUNT}{i}": UnigramTask(vocabulary, clip=clip) for i, clip in enumerate(self.clips)}
        self.size: Mapping[str, int] = dict.fromkeys(self._tasks, len(vocabulary))
        norms = [NormLimit((name,), task.clip, order=1) for name, task in self._tasks.items() if task.clip < np.inf]
        self.bounds = UpdateBounds(weight=1.0, norms=tuple(norms), non_negative=tuple(self._tasks))

    def settings(self) -> Record:
        """Every λ, and the words."""
        clips = [limit_to_json(float(clip)) for clip in self.clips]
        return Record({"clips": clips}, {"words": vocabulary_to_bytes(self.vocabulary)})

    @classmethod
    def from_settings(cls, settings: Record) -> "UnigramsByClip":
        """The task with these settings."""
        clips = [float(limit_from_json(clip)) for clip in settings.fields["clips"]]
        return cls(vocabulary_from_bytes(settings.arrays["words"]), clips)

    def encode(self, words: Sequence[str]) -> IntArray:
        """The ids of words, ignoring capitals."""
        return next(iter(self._tasks.values())).encode(words)

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:
        """A device's clipped counts for every λ."""
        sent = {name: task.client_update(broadcast, data, rng) for name, task in self._tasks.items()}
        index, values = ({n: getattr(u, part)[COUNT] for n, u in sent.items()} for part in ("index", "values"))
        return Update(self.size, index, values, weight=1.0)


def collect_by_clip(
    users: Users | Devices, whitelist: Vocabulary, clips: Sequence[float], options: UnigramOptions, *, seed: int = 0,
    folder: Path | None = None, begin: Begin = silent,
) -> dict[float, UnigramCounts]:  # fmt: skip
    """The counts of a whitelist's words by λ, from devices that take part once; `clip` of the options is not used."""
    task, devices = UnigramsByClip(whitelist, clips), as_devices(users)
    advance = begin("Collecting unigrams for every λ", options.rounds)
    job = Job(task, seed, devices.participations(1))
    run = run_job(job, devices, options, rounds=options.rounds, folder=folder, tell=by_round(advance))
    if not any(sums.any() for sums in run.state.values()):
        raise FedgramError("no device reported a word of the whitelist; check its language")
    weights = [np.ldexp(run.state[name].astype(np.float64), -task.bits) for name in task.size]
    reports = run.progress.tally.reports
    return {
        clip: UnigramCounts(whitelist, weight, reports, run.progress.round, clip)
        for clip, weight in zip(task.clips, weights, strict=True)
    }
