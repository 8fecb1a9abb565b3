"""Devices as the judges of a run: those of the dev arm for choices, those of the test arm for results.

N-gram models are sent packed, as phones get them. A training pauses while the dev arm scores its network. With
differential privacy every evaluation gets noise: the budget of an arm is divided among the evaluations that the run
plans on it, and each is entered in the ledger of the arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import NamedTuple

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.deployment.arms import DEV, TRAIN
from fedgram.deployment.evaluation import cohort_size, evaluate_on_federation
from fedgram.deployment.federation_devices import FederationDevices, Servers
from fedgram.evaluate.comparison import Comparison
from fedgram.evaluate.evaluation import Evaluation
from fedgram.evaluate.jackknife import BUCKETS
from fedgram.evaluate.models import Model
from fedgram.evaluate.on_devices import DeviceComparison, DeviceEvaluationOptions
from fedgram.federated.devices import Devices
from fedgram.fgram.pack import pack
from fedgram.formats.artefact import read_ngram
from fedgram.neural.network import Network, WeightArrays
from fedgram.neural.scoring import Scores
from fedgram.pipeline.config import EvaluationSection, RunConfig
from fedgram.pipeline.judges import Models
from fedgram.pipeline.model_names import BASELINE, cases
from fedgram.pipeline.workspace import Work
from fedgram.privacy.ledger import Budget
from fedgram.text.population import Users
from fedgram.training.fedavg_run import DevScorer

_CHOICES = 3  # evaluations on the dev arm besides the curves: the baseline's pruning, the best model, its unigrams
_SENT = "sent"  # the folder of packed models, in that of a stage


class Noise(NamedTuple):
    """What protects devices that measure: the budget of an arm, ε of each of its evaluations, and their clip norm."""

    budget: Budget
    epsilon: Mapping[str, float]
    clip: float


def noise_of(config: RunConfig) -> Noise | None:
    """The noise of a run's evaluations; None if it has no differential privacy."""
    privacy = config.privacy
    if not privacy.is_dp:
        return None
    if config.evaluation.split == TRAIN:
        raise FedgramError("evaluation.split must be dev or test: devices that train have spent their privacy budget")
    each = {arm: privacy.part(1.0 / number).epsilon for arm, number in planned_evaluations(config).items()}
    return Noise(Budget(privacy.epsilon, privacy.delta), each, privacy.evaluation_clip)


def planned_evaluations(config: RunConfig) -> dict[str, int]:
    """How many evaluations a run asks of each arm at most."""
    planned = {DEV: _CHOICES, config.evaluation.split: 0}
    for section, used in ((config.words, True), (config.pieces, config.pieces.use)):
        t = section.training
        if used and section.network is None and t.dev_users:
            planned[DEV] += 1 + ceil(t.rounds / t.evaluate_every)  # the start is scored too
    planned[config.evaluation.split] += len((False, True))  # without and with regard to capitals
    return planned


class ByDevices:
    """Judges that are the devices of a federation; n-gram models are packed with so many bits per weight."""

    whom = "devices"

    def __init__(self, servers: Servers, bits: int, seed: int, noise: Noise | None = None) -> None:
        self._servers, self._bits, self._seed, self._noise = servers, bits, seed, noise

    def dev_scorer(
        self, work: Work, network: Network, devices: Users | Devices, dev_users: int
    ) -> DevScorer | None:  # fmt: skip
        """Scores by at most so many devices of the dev arm; None if there are to be none."""
        if not isinstance(devices, FederationDevices):
            raise FedgramError("only the training of a federation can be scored on its devices")
        if not dev_users:
            return None
        size = cohort_size(self._servers.home, DEV, BUCKETS)
        options = DeviceEvaluationOptions(rounds=ceil(dev_users / size), over_selection=1.0)

        def scores(several: Sequence[WeightArrays]) -> list[Scores]:
            models: dict[str, Model] = {str(i): replace(network, weights=weights) for i, weights in enumerate(several)}
            with devices.resting():
                found = self._evaluate(work, models, options, arm=DEV)
            return [_scores(found, name, pieces=network.coding.pieces is not None) for name in models]

        return scores

    def top1(self, work: Work, models: Models, *, cased: bool) -> dict[str, float]:
        """All models in one evaluation by the dev arm."""
        sent = self._packed(work, models)
        found = self._evaluate(work, sent, DeviceEvaluationOptions(over_selection=1.0), cased=cased, arm=DEV)
        return {name: _known(found.models[name]["top1"]["value"]) for name in models}

    def measure(
        self, work: Work, models: Mapping[str, NGramModel], config: EvaluationSection
    ) -> dict[str, Evaluation]:  # fmt: skip
        """All models in one evaluation by the arm of the split; those with the same content are sent once."""
        sent, unique = self._packed(work, models), dict[bytes, str]()
        of = {name: unique.setdefault(path.read_bytes(), name) for name, path in sent.items()}
        options = DeviceEvaluationOptions(buckets=config.buckets, over_selection=1.0)
        found = self._evaluate(work, {name: sent[name] for name in unique.values()}, options, arm=config.split)
        return {name: found.evaluations[of[name]] for name in models}

    def evaluate(
        self, work: Work, files: Mapping[str, Path], config: EvaluationSection, seed: int  # noqa: ARG002
    ) -> dict[bool, Comparison]:  # fmt: skip
        """All models in one evaluation by the arm of the split, without and with regard to capitals."""
        sent = self._packed(work, files)
        options, found = DeviceEvaluationOptions(buckets=config.buckets, over_selection=1.0), dict[bool, Comparison]()
        for cased in (False, True):
            own = {name: model for name, model in sent.items() if cased in cases(name)}
            found[cased] = self._compare(work, own, options, cased=cased, arm=config.split)
        return found

    def _compare(
        self, work: Work, models: Mapping[str, Path], options: DeviceEvaluationOptions, *, cased: bool, arm: str
    ) -> Comparison:
        """Models with the baseline among them; those with the same content are sent once, and have the same figures."""
        baseline, unique = models[BASELINE], dict[bytes, str]()
        for name, path in models.items():
            if name != BASELINE:
                unique.setdefault(path.read_bytes(), name)
        sent = {name: models[name] for name in unique.values()}
        compared = self._evaluate(work, sent, options, baseline=baseline, cased=cased, arm=arm)
        first = {name: unique[path.read_bytes()] for name, path in models.items() if name != BASELINE}
        figures = {name: compared.models[str(baseline) if name == BASELINE else first[name]] for name in models}
        return replace(compared, models=figures, baseline=BASELINE)

    def _evaluate(
        self, work: Work, models: Mapping[str, Model], options: DeviceEvaluationOptions, *, arm: str,
        baseline: "Model | None" = None, cased: bool = False,
    ) -> DeviceComparison:  # fmt: skip
        budget = self._noise.budget if self._noise else None
        if self._noise:
            epsilon, delta = self._noise.epsilon[arm], self._noise.budget.delta
            options = replace(options, epsilon=epsilon, delta=delta, clip=self._noise.clip)
        return evaluate_on_federation(
            self._servers, models, options, baseline=baseline, cased=cased, arm=arm, seed=self._seed,
            work=work.write("servers"), budget=budget, begin=work.begin,
        )  # fmt: skip

    def _packed(self, work: Work, models: Models) -> dict[str, Path]:
        """The files to send; n-gram models are packed."""
        folder, advance = work.write(_SENT), work.begin("Packing models for devices", len(models))
        folder.mkdir(exist_ok=True)
        sent: dict[str, Path] = {}
        for number, (name, model) in enumerate(models.items()):
            sent[name] = folder / f"{number}.fgram"
            if isinstance(model, Path) and model.suffix != ".ngram":
                sent[name] = model
            else:
                pack(read_ngram(model) if isinstance(model, Path) else model, sent[name], bits=self._bits)
            advance(1)
        return sent


def _scores(found: DeviceComparison, name: str, *, pieces: bool) -> Scores:
    figures = found.models[name]
    sll, sll_e, perplexity = (_known(figures[key]["value"]) for key in ("sll", "sll_e", "perplexity"))
    top1, top3 = (None if pieces else _known(figures[key]["value"]) for key in ("top1", "top3"))
    sentences = round(float(found.evaluations[name].measures["sll"].count.sum()))
    return Scores(sll, sll_e, perplexity, top1, top3, sentences, found.words)


def _known(value: float | None) -> float:
    """A figure that a choice depends on."""
    if value is None:
        raise FedgramError(
            "the noise hides what devices measured; ask more devices, raise privacy.epsilon, or evaluate less often"
        )
    return float(value)
