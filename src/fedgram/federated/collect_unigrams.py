"""Collecting word frequencies from devices: the operation behind the command, the stage of a run, and the library."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.progress import Begin, silent
from fedgram.core.settings import AtLeastOne, Between, Limit, chosen, setting
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.convergence import Convergence, measure_convergence
from fedgram.federated.devices import Devices, as_devices
from fedgram.federated.job import Job
from fedgram.federated.rounds import Progress
from fedgram.federated.run_task import by_round, run_job
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.text.normalize import uncase
from fedgram.text.population import Users
from fedgram.text.unigrams import UnigramCounts
from fedgram.text.vocabulary import SPECIAL, Vocabulary, read_vocabulary


@dataclass(frozen=True, slots=True)
class UnigramOptions(CohortOptions):
    """How word frequencies are collected (§3.1 of the paper)."""

    clip: Limit = setting(1000.0, "λ: maximum number of words counted per device; inf means no limit.")
    rounds: AtLeastOne = setting(300, "Maximum number of rounds.")
    participations: Annotated[int, Between(0)] = setting(
        1, "Maximum number of rounds per device; 0 means no limit, so that few simulated users stand for many."
    )


@dataclass(frozen=True, slots=True, eq=False)
class CollectedUnigrams(UnigramCounts):
    """Word frequencies, how they converged round by round, and what happened in the rounds."""

    convergence: Convergence
    progress: Progress

    def __repr__(self) -> str:
        words = f"{len(self.frequency()):,} of {len(self.vocabulary) - len(SPECIAL):,} words"
        return f"CollectedUnigrams({words}; {self.clients:,} reports in {self.rounds:,} rounds, λ = {self.clip:g})"


def collect_unigrams(
    users: Users | Devices,
    whitelist: Vocabulary | Iterable[str] | str | Path,
    options: UnigramOptions | None = None,
    *,
    seed: int = 0,
    folder: Path | None = None,
    begin: Begin = silent,
    **settings: Any,
) -> CollectedUnigrams:
    """Count the words of a whitelist on devices, with a limit on what each device may contribute.

    Args:
        users: The users whose devices count, such as `population.train`.
        whitelist: The words to count, in lower case: a vocabulary, some words, or a file with one word per line.
        options: How to collect; its fields may be given as keywords instead.
        seed: Of the cohorts.
        folder: For checkpoints; an interrupted collection resumes from there.
        begin: Progress callback.
    """
    options = chosen(UnigramOptions, options, settings)
    devices, words = as_devices(users), _whitelist(whitelist)
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


def _whitelist(given: Vocabulary | Iterable[str] | str | Path) -> Vocabulary:
    if isinstance(given, str | Path):
        words = read_vocabulary(given)
    else:
        words = given if isinstance(given, Vocabulary) else Vocabulary.of(given)
    if capitals := sum(uncase(word) != word for word in words.words):
        place = given if isinstance(given, str | Path) else "whitelist"
        remedy = "write the whitelist in lower case: devices count uncased words"
        raise InputError(place, f"{capitals} words are not in lower case", remedy=remedy)
    return words
