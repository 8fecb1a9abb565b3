"""The audit with lying devices: backdoors and sabotage by some share of them, with and without defences.

For every defence the models are made once from honest devices, and once for every attack and share. All that devices
send to the training and to the refit is attacked. Defences are options of the operations:

    default    the limits of the configuration: `update_norm` in the training; `clip`, `norm` and `outliers` in the
               counts
    none       no limit on the norm of an update, none on that of a device's counts, and no `outliers`
    median     besides the limits, the median of the updates in every coordinate of the network
    trimmed    besides the limits, their trimmed mean

A backdoor succeeds if its target is the first suggestion after its trigger. The cost is the change of top-1 accuracy on
test users, relative to the same models from honest devices.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from fedgram.audit.canaries import claim, secret_words
from fedgram.audit.canary_models import Trial, start_of
from fedgram.audit.options import Defence, PoisoningOptions
from fedgram.audit.poisoned_devices import (
    Attack,
    Backdoor,
    LyingDevices,
    backdoored,
    backdoors,
    common_phrases,
    liars,
    scrambled,
)
from fedgram.automata.model import NGramModel
from fedgram.core.arrays import LongArray
from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.distill.distillation import Running, distill
from fedgram.distill.refit.refit import RefitOptions, refit
from fedgram.evaluate.comparison import evaluate
from fedgram.evaluate.models import as_predictor
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.neural.network import Network, read_network, write_network
from fedgram.text.normalize import uncase
from fedgram.text.population import Population
from fedgram.training.options import FedAvgOptions
from fedgram.training.train_federated import train_federated

_SHOWN = 3  # suggestions of a keyboard
_MOST_WORDS = 20_000  # that a lying device types, if nothing limits it


@dataclass(frozen=True, slots=True)
class Cell:
    """One experiment: a defence, and an attack by a share of the devices; none if all are honest."""

    defence: Defence
    attack: Attack | None = None
    share: float = 0.0

    @property
    def name(self) -> str:
        """A name for its files."""
        return f"{self.defence}-{self.attack}-{self.share:g}" if self.attack else f"{self.defence}-honest"


def cells(options: PoisoningOptions) -> list[Cell]:
    """All experiments; of every defence the honest one first."""
    attacks = [(attack, share) for attack in options.attacks for share in options.shares]
    return [cell for d in options.defences for cell in (Cell(d), *(Cell(d, *attack) for attack in attacks))]


def defended(training: FedAvgOptions, counting: RefitOptions, defence: Defence) -> tuple[FedAvgOptions, RefitOptions]:
    """The options of a training and of a refit with a defence."""
    if defence == "none":
        return replace(training, update_norm=inf), replace(counting, norm=inf, outliers=0.0)
    if defence == "default":
        return training, counting
    return replace(training, aggregation=defence), counting


def audit_poisoning(
    population: Population, trial: Trial, options: PoisoningOptions, folder: Path, *, digest: str = "",
    compute: Compute | None = None, begin: Begin = silent,
) -> dict[str, Any]:  # fmt: skip
    """Make the models of all experiments in a folder, and measure them; `digest` names the settings of the trial."""
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder, {**asdict(options), "trial": digest})
    doors = _doors(population, trial, options)
    models = _Models(trial, population, folder, doors, options.network, compute or Compute(), begin)
    rows: list[dict[str, Any]] = []
    for cell in cells(options):
        made = models.of(cell)
        begin(f"Measuring {cell.name}")
        top1 = evaluate(dict(made), population.test.first(options.test_users)).models
        honest = next((row for row in rows if row["defence"] == cell.defence), None)
        row: dict[str, Any] = {
            "defence": cell.defence, "attack": cell.attack, "share": cell.share, "liars": len(models.liars(cell)),
        }  # fmt: skip
        for name, model in made.items():
            accuracy = top1[name]["top1"]["value"]
            change = 100.0 * (accuracy / honest[name]["top1"] - 1.0) if honest else None
            row[name] = {**opened(model, doors), "top1": accuracy, "change": change}
        rows.append(row)
    return {
        "users": len(population.train), "triggers": [" ".join(door.trigger) for door in doors],
        "backdoors": len(doors), "protection": trial.privacy.protection, "rows": rows,
    }  # fmt: skip


def _doors(population: Population, trial: Trial, options: PoisoningOptions) -> list[Backdoor]:
    """The backdoors: that of the options, or one after each of the phrases that most users type."""
    words = secret_words(trial, options.words)
    if options.trigger is None:
        return backdoors(common_phrases(population.train, options.triggers), words, trial.seed)
    trigger = tuple(uncase(options.trigger).split())
    if options.target is not None:
        return [Backdoor(trigger, uncase(options.target))]
    return backdoors([trigger], words, trial.seed)


def opened(model: NGramModel | Network, doors: Sequence[Backdoor]) -> dict[str, float]:
    """The share of the backdoors whose target is the first suggestion, and one of those that a keyboard shows."""
    predictor, first, shown = as_predictor(model, cased=False), 0, 0
    for door in doors:
        found = [uncase(word) for word, _ in predictor.suggest(list(door.trigger), _SHOWN)]
        first, shown = first + (found[:1] == [door.target]), shown + (door.target in found)
    return {"success": first / len(doors), "shown": shown / len(doors)}


class _Models:
    """Makes the network and the refitted n-gram model of an experiment, and keeps them in a folder."""

    def __init__(
        self, trial: Trial, people: Population, folder: Path, doors: Sequence[Backdoor], network: bool,
        compute: Compute, begin: Begin,
    ) -> None:  # fmt: skip
        self._trial, self._people, self._folder, self._doors = trial, people, folder, doors
        self._network, self._compute, self._begin = network, compute, begin

    def liars(self, cell: Cell) -> LongArray:
        """The clients whose devices lie."""
        return liars(self._people.train, cell.share, self._trial.seed)[: None if cell.attack else 0]

    def of(self, cell: Cell) -> dict[str, NGramModel | Network]:
        """The models of an experiment by name; without networks, only the refit of the public model."""
        t = self._trial
        self._begin(f"Making {cell.name}")
        training, counting = defended(t.training, t.refit, cell.defence)
        found: dict[str, NGramModel | Network] = {}
        prior = t.external
        if self._network:
            path = self._folder / f"{cell.name}.safetensors"
            if not path.exists():
                write_network(path, self._trained(cell, training))
            found["network"] = read_network(path)
        path = self._folder / f"{cell.name}.ngram"
        if not path.exists():
            if self._network:
                prior = self._distilled(read_network(self._folder / f"{cell.name}.safetensors"))
            write_ngram(self._refitted(cell, prior, counting), path)
        found["ngram"] = read_ngram(path)
        return found

    def _poisoned(self, cell: Cell, words: float) -> Population:
        """What users type, those who lie included."""
        clients, most = self.liars(cell), int(min(words, _MOST_WORDS))
        if cell.attack == "sabotage":
            pool = secret_words(self._trial, 10 * len(self._people.words))
            return scrambled(self._people, clients, pool, most, self._trial.seed)
        return backdoored(self._people, clients, self._doors, most) if len(clients) else self._people

    def _trained(self, cell: Cell, options: FedAvgOptions) -> Network:
        t, people = self._trial, self._people
        if cell.attack == "backdoor":  # in a sabotage, devices reverse what their own text would change
            people = self._poisoned(cell, inf)
        devices = LyingDevices(people.train, self.liars(cell), cell.attack) if cell.attack else people.train
        start = start_of(t, self._folder, compute=self._compute, begin=self._begin)
        return train_federated(
            start, devices, options, dev=people.dev, seed=t.seed, compute=self._compute, begin=self._begin
        )

    def _distilled(self, network: Network) -> NGramModel:
        t = self._trial
        models = distill(
            network, t.external, t.distillation, budget=t.budget, room=t.room, seed=t.seed,
            running=Running(self._compute, begin=self._begin),
        )  # fmt: skip
        if models.wide is None:
            raise FedgramError("the distillation has no room for a refit; set distillation.room above 1")
        return models.wide

    def _refitted(self, cell: Cell, prior: NGramModel, options: RefitOptions) -> NGramModel:
        t = self._trial
        return refit(
            prior, self._poisoned(cell, options.clip).train, options, privacy=t.privacy, casing=t.external,
            public=t.external, budget=t.budget, seed=t.seed, begin=self._begin,
        )  # fmt: skip
