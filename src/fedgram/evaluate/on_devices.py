"""Models compared on devices, which keep their text: the operation behind the commands and the library.

The figures are those of `fedgram evaluate` on the same users, to the last digit. The intervals are from the same
jackknife, with the devices of each round as a bucket.

With an ε, every sum gets Gaussian noise before it is used, and the evaluation is entered in a ledger. A device is in
one round, so the whole evaluation is one Gaussian event.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Any

from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.core.settings import Between, Limit, Needs, chosen, setting
from fedgram.evaluate.comparison import Comparison, EvaluationOptions, named_models
from fedgram.evaluate.evaluation import Evaluation
from fedgram.evaluate.jackknife import BUCKETS
from fedgram.evaluate.models import Model
from fedgram.evaluate.scoring_task import ScoringTask, norm_limit, sizes
from fedgram.evaluate.sent_model import SentModel
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.devices import Devices, as_devices
from fedgram.federated.job import Job
from fedgram.federated.mechanism import Account, NoisySums
from fedgram.federated.rounds import Checkpointing, Progress, RunOptions, run_rounds
from fedgram.privacy.accounting import Gaussian
from fedgram.privacy.gaussian import multiplier_for
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.mechanisms import GaussianSums
from fedgram.privacy.noise import Randomness, SystemRandomness
from fedgram.text.population import Users

_OPERATION = "evaluation"  # its name in a ledger
_MAX_ROUNDS = 1_000_000  # a device is in one of them, so their number does not matter


@dataclass(frozen=True, slots=True)
class DeviceEvaluationOptions(CohortOptions):
    """How models are compared on devices."""

    devices_per_round: Annotated[int, Between(0)] = setting(
        0, "Number of devices that must report per round; 0 means all known devices in --buckets rounds."
    )
    buckets: Annotated[int, Between(2)] = setting(
        BUCKETS, "Number of rounds to aim for. The devices of a round are a bucket of the jackknife."
    )
    rounds: Annotated[int, Between(0)] = setting(
        0, "Maximum number of rounds; 0 means until every device has taken part."
    )
    clip: Limit = setting(
        100_000.0, "Maximum L2 norm of a device's sums per model, about 2.5 times its words; inf means no limit."
    )
    epsilon: Limit = setting(inf, "Add noise so that this evaluation costs ε at most; inf adds none.")
    delta: Annotated[float, Between(above=0, high=0.1)] = setting(1e-8, "With epsilon: δ.", needs=Needs("epsilon"))

    @property
    def is_private(self) -> bool:
        """Whether the sums get noise."""
        return self.epsilon < inf


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceComparison(Comparison):
    """A comparison on devices: `buckets` rounds, and what happened in them; `users` are the devices in the sums.

    `evaluations` are the sums of each model by round. `privacy` has ε and δ of this evaluation if there was noise.
    """

    buckets: int = 0
    progress: Progress | None = None
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    privacy: Mapping[str, float] | None = None

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        case = "cased" if self.cased else "uncased"
        noise = f", noise of ε = {self.privacy['epsilon']:g}" if self.privacy else ""
        devices = f"{self.users:,} device{'s' * (self.users != 1)}"
        buckets = f"{self.buckets:,} bucket{'s' * (self.buckets != 1)}"
        return f"{devices} in {buckets}, {self.words:,} typed words, {case}{noise}"


def evaluate_on_devices(
    models: "Model | Iterable[Model] | Mapping[str, Model]",
    users: Users | Devices,
    options: DeviceEvaluationOptions | None = None,
    *,
    baseline: "Model | None" = None,
    cased: bool = False,
    arm: str = "test",
    seed: int = 0,
    ledger: Ledger | None = None,
    randomness: Randomness | None = None,
    folder: Path | None = None,
    begin: Begin = silent,
    **settings: Any,
) -> DeviceComparison:
    """Measure how well models predict what people type, on their devices, which send sums.

    Every device scores all models on its own text, in one round. The figures are those of `evaluate` on the same users.

    Args:
        models: One model, several, or several by name: n-gram models, packed models, networks, or files.
        users: The users whose devices take part, such as `population.test`, or devices.
        options: How to compare; its fields may be given as keywords instead.
        baseline: The model to compare the others with.
        cased: Whether capitals must be right.
        arm: The arm whose devices are asked: train, dev or test. Real devices know their own arm.
        seed: Of the cohorts.
        ledger: Where an evaluation with an ε is recorded, and the budget of these devices.
        randomness: The source of the noise; by default, the operating system.
        folder: For checkpoints. An interrupted evaluation resumes from there; repeated, it adds devices that were away.
        begin: Progress callback.
    """
    options, devices = chosen(DeviceEvaluationOptions, options, settings), as_devices(users)
    named, name = named_models(models, baseline)
    begin("Reading the models")
    task = ScoringTask.of([SentModel.of(m) for m in named.values()], cased=cased, arm=arm, clip=options.clip)
    shared = task.scorers(task.broadcast(task.init())).shared
    cohort = replace(options, devices_per_round=cohort_size(options, devices))
    rounds, job = options.rounds or None, Job(task, seed, devices.participations(1))
    mechanism = evaluation_noise(len(named), cohort, ledger or Ledger(), randomness) if options.is_private else None
    kept = _checkpoints(folder, job.question[:16], options) if folder else None
    advance = begin("Evaluating on devices", devices.count)
    with devices.working_on(job, cohort, rounds) as fleet:
        run = run_rounds(
            job, fleet, _smallest_rounds(devices.run_options(cohort, rounds)), checkpoints=kept, mechanism=mechanism,
            tell=lambda event, about: advance(about["reports"]) if event == "round summed" else None,
        )  # fmt: skip
    evaluations = dict(zip(named, task.evaluations(run.state), strict=True))
    if not next(iter(evaluations.values())).words:
        hidden = "the noise hides all words; ask more devices, or raise --epsilon"
        raise FedgramError(hidden if options.is_private else "these devices typed no words; choose another arm")
    buckets = len(run.state.rounds)
    privacy = {"epsilon": options.epsilon, "delta": options.delta} if options.is_private else None
    compared = Comparison.of(
        evaluations, EvaluationOptions(buckets=max(2, buckets)), shared=shared, cased=cased, baseline=name, seed=seed,
        users=run.progress.tally.reports - (0 if privacy else run.progress.tally.empty),
    )  # fmt: skip
    values = {each.name: getattr(compared, each.name) for each in fields(compared)}
    return DeviceComparison(
        **values, buckets=buckets, progress=run.progress, evaluations=evaluations, privacy=privacy
    )  # fmt: skip


def evaluation_noise(
    models: int, options: DeviceEvaluationOptions, ledger: Ledger, randomness: Randomness | None = None
) -> NoisySums:
    """Gaussian noise for an evaluation of so many models, the baseline included, and its entry in a ledger.

    Formal guarantee: one Gaussian event that costs ε at δ, however many rounds there are. Every device is in one round,
    its vectors have the norm clip·√models at most, and every number of a sum gets noise for that norm. Adjacent
    populations differ by one device.
    """
    if not options.clip < inf:
        raise FedgramError("noise needs a limit on what one device sends; give a finite --clip, such as 2500")
    source, multiplier = randomness or SystemRandomness(), multiplier_for(options.epsilon, options.delta)
    deviation = multiplier * norm_limit(models, options.clip)
    noise = GaussianSums(sizes(models), dict.fromkeys(sizes(models), deviation), source, label=_OPERATION)
    account = Account(ledger, _OPERATION, Gaussian(multiplier), _MAX_ROUNDS, source.name)
    return NoisySums(noise, source, account, expected=options.devices_per_round)


def _checkpoints(folder: Path, name: str, options: DeviceEvaluationOptions) -> Checkpointing:
    """Those of an evaluation; exact sums and sums with noise are never mixed, nor noise of one ε with another."""
    if not options.is_private:
        return Checkpointing(folder / name)
    return Checkpointing(
        folder / f"{name}-noise", belongs_to={"epsilon": options.epsilon, "delta": options.delta}
    )  # fmt: skip


def cohort_size(options: DeviceEvaluationOptions, devices: Devices) -> int:
    """How many devices a round has: as many as were asked for, or all known devices in so many rounds.

    The size is a little larger where the last round would otherwise be too small to be summed.
    """
    count = devices.count
    if options.devices_per_round:
        return options.devices_per_round
    if not count:
        raise FedgramError("the number of devices is not known; say how many a round has (--devices-per-round)")
    least = devices.run_options(replace(options, devices_per_round=count), None)
    minimum = _smallest_rounds(least).minimum
    size = max(minimum, ceil(count / options.buckets))
    while size < count and 0 < count % size < minimum:
        size += 1
    return size


def _smallest_rounds(options: RunOptions) -> RunOptions:
    """Let the last round be as small as masking allows: no device is left out if it can be summed."""
    return replace(options, plan=replace(options.plan, minimum=options.masking.min_devices if options.masking else 1))
