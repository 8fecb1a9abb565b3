"""Who measures the models of a run: users whose text the server has, or devices that keep theirs.

Stages ask a `Judges`, as they ask `DevicesOf` who takes part. `ByUsers` measures on the dev and test users of the run's
population. A federation has judges of its own (`deployment/judges.py`): the devices of its dev and test arms.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fedgram.automata.model import NGramModel
from fedgram.evaluate.comparison import Comparison, shared_words
from fedgram.evaluate.evaluation import Evaluation, evaluate_model
from fedgram.evaluate.model_files import ModelFile, evaluate_files
from fedgram.evaluate.models import as_predictor, in_memory, vocabulary_of
from fedgram.evaluate.ngram_predictor import NGramPredictor
from fedgram.federated.devices import Devices
from fedgram.formats.artefact import read_ngram
from fedgram.neural.network import Network
from fedgram.pipeline.config import EvaluationSection
from fedgram.pipeline.model_names import BASELINE, cases
from fedgram.pipeline.workspace import Work
from fedgram.text.population import Population, Users, open_population
from fedgram.training.fedavg_run import DevScorer

Models = Mapping[str, "NGramModel | Path"]


class Judges(Protocol):
    """Measures models for the stages of a run."""

    @property
    def whom(self) -> str:
        """Whom results are measured on, in a word: users or devices."""

    def dev_scorer(
        self, work: Work, network: Network, devices: Users | Devices, dev_users: int
    ) -> Users | DevScorer | None:
        """What scores the network of a training on at most so many dev users; None if nobody can."""

    def top1(self, work: Work, models: Models, *, cased: bool) -> Mapping[str, float]:
        """Top-1 accuracy of n-gram models or their files on dev users, in per cent, by name."""

    def evaluate(
        self, work: Work, files: Mapping[str, Path], config: EvaluationSection, seed: int
    ) -> Mapping[bool, Comparison]:
        """The models of files compared with the baseline, by whether capitals count."""

    def measure(
        self, work: Work, models: Mapping[str, NGramModel], config: EvaluationSection
    ) -> Mapping[str, Evaluation]:
        """The measures of each model by name, without regard to capitals, all over the same users or devices."""


class ByUsers:
    """Judges with the text of users, `users.population` of the stage; `workers` processes evaluate files of models."""

    whom = "users"

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers

    def dev_scorer(
        self, work: Work, network: Network, devices: Users | Devices, dev_users: int  # noqa: ARG002
    ) -> Users:  # fmt: skip
        """The dev users."""
        return _people(work).dev

    def top1(self, work: Work, models: Models, *, cased: bool) -> dict[str, float]:
        """One model at a time, on all dev users."""
        people, advance, found = _people(work), work.begin("Measuring on dev users", len(models)), dict[str, float]()
        for name, model in models.items():
            found[name] = dev_accuracy(read_ngram(model) if isinstance(model, Path) else model, people, cased=cased)
            advance(1)
        return found

    def measure(self, work: Work, models: Mapping[str, NGramModel], config: EvaluationSection) -> dict[str, Evaluation]:
        """One model at a time, each over its own words."""
        users, found = _people(work).users(config.split), dict[str, Evaluation]()
        for name, model in models.items():
            advance, predictor = work.begin(f"Evaluating {name}", len(users)), as_predictor(model, cased=False)
            found[name] = evaluate_model(predictor, users.population, users.clients, on_users=advance)
        return found

    def evaluate(
        self, work: Work, files: Mapping[str, Path], config: EvaluationSection, seed: int
    ) -> dict[bool, Comparison]:
        """Every model on the users of the split."""
        shared, advance = _shared(work, files), work.begin("Evaluating models", len(files))
        models = {name: ModelFile(path, cases(name)) for name, path in files.items()}
        found = evaluate_files(
            models, work.read("users.population"), config.split, shared, workers=self._workers, advance=advance
        )  # fmt: skip
        return {
            cased: Comparison.of(
                evaluations, replace(config, experiment=False) if cased else config, shared=shared[cased], cased=cased,
                baseline=BASELINE, seed=seed,
            )
            for cased, evaluations in found.items()
        }  # fmt: skip


def dev_accuracy(model: NGramModel, people: Population, *, cased: bool) -> float:
    """Top-1 accuracy over the typed words of dev users, in per cent."""
    top1 = evaluate_model(NGramPredictor(model, cased=cased), people, people.clients("dev")).measures["top1"]
    return 100.0 * float(top1.amount.sum() / top1.count.sum())


def _people(work: Work) -> Population:
    return open_population(work.read("users.population"))


def _shared(work: Work, files: Mapping[str, Path]) -> dict[bool, frozenset[str]]:
    """𝒱, by whether capitals count."""
    work.begin("Reading all vocabularies", None)
    words = {name: vocabulary_of(in_memory(path)) for name, path in files.items()}
    return {
        cased: shared_words((v for name, v in words.items() if cased in cases(name)), cased=cased)
        for cased in (False, True)
    }
