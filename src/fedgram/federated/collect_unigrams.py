"""Collecting word frequencies from devices: the operation behind the command, the stage of a run, and the library."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.core.settings import AtLeastOne, Between, Limit, Needs, Positive, SettingError, chosen, setting
from fedgram.core.storage import Record
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.convergence import Convergence, measure_convergence
from fedgram.federated.devices import Devices, as_devices
from fedgram.federated.job import Job
from fedgram.federated.one_event import OneEvent
from fedgram.federated.rounds import Progress
from fedgram.federated.run_task import by_round, run_job
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.whitelist import as_whitelist
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.noise import gaussian_noise
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import Users
from fedgram.text.unigrams import UnigramCounts
from fedgram.text.vocabulary import SPECIAL, Vocabulary

_OPERATION = "unigrams"  # its name in a ledger
_SUMS = "rounds"  # folder of the sums without noise
_VISIBLE = 3.0  # standard deviations of noise, below which a word counts as not typed


@dataclass(frozen=True, slots=True)
class UnigramOptions(CohortOptions):
    """How word frequencies are collected (§3.1 of the paper)."""

    clip: Limit = setting(1000.0, "λ: maximum number of words counted per device; inf means no limit.")
    rounds: AtLeastOne = setting(300, "Maximum number of rounds.")
    participations: Annotated[int, Between(0)] = setting(
        1, "Maximum number of rounds per device; 0 means no limit, so that few simulated users stand for many."
    )
    norm: Positive | None = setting(
        None,
        "With dp: limit on the norm of a device's counts; a longer vector is scaled down to it. By default, the square "
        "root of the population.",
        needs=Needs("protection", ("dp",), in_files=False),  # files have it in another section
    )

    def limit(self, population: int | None) -> float:
        """The limit on the norm, with noise."""
        if self.norm is None and population is None:
            raise SettingError("norm", "is needed, since the number of devices is not known")
        return self.norm or max(sqrt(population or 1), 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class CollectedUnigrams(UnigramCounts):
    """Word frequencies, how they converged round by round, and what happened in the rounds.

    With noise, only the sums of all rounds together are known, and no convergence.
    """

    convergence: Convergence | None
    progress: Progress

    def __repr__(self) -> str:
        words = f"{len(self.frequency()):,} of {len(self.vocabulary) - len(SPECIAL):,} words"
        return f"CollectedUnigrams({words}; {self.clients:,} reports in {self.rounds:,} rounds, λ = {self.clip:g})"


def collect_unigrams(
    users: Users | Devices,
    whitelist: Vocabulary | Iterable[str] | str | Path,
    options: UnigramOptions | None = None,
    *,
    privacy: PrivacyOptions | None = None,
    seed: int = 0,
    folder: Path | None = None,
    ledger: Ledger | None = None,
    begin: Begin = silent,
    **settings: Any,
) -> CollectedUnigrams:
    """Count the words of a whitelist on devices, with a limit on what each device may contribute.

    Args:
        users: The users whose devices count, such as `population.train`.
        whitelist: The words to count, in lower case: a vocabulary, some words, or a file with one word per line.
        options: How to collect; its fields may be given as keywords instead.
        privacy: With `dp`, every device counts once, within a limit on the norm of its counts, and the sum gets noise.
        seed: Of the cohorts.
        folder: For checkpoints; an interrupted collection resumes from there.
        ledger: Where privacy spent on these users is recorded, and their budget; used if there is noise.
        begin: Progress callback.
    """
    options = chosen(UnigramOptions, options, settings)
    devices, words = as_devices(users), as_whitelist(whitelist)
    if privacy is not None and privacy.is_dp:
        return _with_noise(devices, words, options, privacy, seed, folder, ledger or Ledger(), begin)
    task = UnigramTask(words, clip=options.clip)
    job = Job(task, seed, devices.participations(options.participations or None))
    advance = begin(f"Collecting unigrams, λ = {options.clip:g}", options.rounds)
    run = run_job(job, devices, options, rounds=options.rounds, folder=folder, tell=by_round(advance))
    counts = task.counts(run.state)
    if not counts.weight.any():
        raise FedgramError("no device reported a word of the whitelist; check its language")
    return CollectedUnigrams(
        counts.vocabulary, counts.weight, counts.clients, counts.rounds, counts.clip,
        measure_convergence(run.state.rounds), run.progress,
    )  # fmt: skip


def _with_noise(
    devices: Devices, words: Vocabulary, options: UnigramOptions, privacy: PrivacyOptions, seed: int,
    folder: Path | None, ledger: Ledger, begin: Begin,
) -> CollectedUnigrams:  # fmt: skip
    """One pass over all devices. The noise is added once, to the sum of all rounds, which alone is released."""
    stands_for = privacy.stands_for(devices.count)
    task = UnigramTask(words, clip=options.clip, norm=options.limit(privacy.simulated or devices.count))
    job = Job(task, seed, participations=1)
    event = OneEvent(folder, {"job": job.digest, "privacy": asdict(privacy)})
    event.enter(ledger, _OPERATION, privacy.event, privacy.randomness, stands_for=stands_for)
    most = task.bounds.norms[-1].most(len(words), 1.0, task.bits)
    deviation = privacy.event.multiplier * most / stands_for

    def released() -> Record:
        advance = begin("Collecting unigrams with noise", devices.count, unit="devices")
        run = run_job(
            job, devices, options, rounds=None, folder=folder / _SUMS if folder else None,
            tell=lambda event, about: advance(about["reports"]) if event == "round summed" else None,
        )  # fmt: skip
        noise = gaussian_noise(len(words), deviation * 2.0**task.bits, privacy.randomness, _OPERATION)
        noisy = task.counts(run.state).weight + np.ldexp(noise.astype(np.float64), -task.bits)
        return Record.joined(counts=Record({}, {"noisy": noisy}), progress=run.progress.save())

    found = event.release("released", released, sums=_SUMS)
    noisy, progress = found.arrays["counts.noisy"], Progress.load(found.part("progress"))
    weight = np.where(noisy > _VISIBLE * deviation, noisy, 0.0)
    if not weight.any():
        raise FedgramError(
            f"the noise hides all words (its standard deviation is {deviation:,.0f} occurrences); use a larger "
            "population, a larger epsilon, or another protection"
        )
    return CollectedUnigrams(words, weight, progress.tally.reports, progress.round, options.clip, None, progress)
