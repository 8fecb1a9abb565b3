"""Devices as the judges of a run: those of the dev arm for choices, those of the test arm for results.

N-gram models are sent packed, as phones get them. A training pauses while the dev arm scores its network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from fedgram.core.errors import FedgramError
from fedgram.deployment.arms import DEV
from fedgram.deployment.evaluation import cohort_size, evaluate_on_federation
from fedgram.deployment.federation_devices import FederationDevices, Servers
from fedgram.evaluate.comparison import Comparison
from fedgram.evaluate.jackknife import BUCKETS
from fedgram.evaluate.models import Model
from fedgram.evaluate.on_devices import DeviceComparison, DeviceEvaluationOptions
from fedgram.federated.devices import Devices
from fedgram.fgram.pack import pack
from fedgram.formats.artefact import read_ngram
from fedgram.neural.network import Network, WeightArrays
from fedgram.neural.scoring import Scores
from fedgram.pipeline.config import EvaluationSection
from fedgram.pipeline.judges import Models
from fedgram.pipeline.model_names import BASELINE, cases
from fedgram.pipeline.workspace import Work
from fedgram.text.population import Users
from fedgram.training.fedavg_run import DevScorer

_SENT = "sent"  # the folder of packed models, in that of a stage


class ByDevices:
    """Judges that are the devices of a federation; n-gram models are packed with so many bits per weight."""

    whom = "devices"

    def __init__(self, servers: Servers, bits: int, seed: int) -> None:
        self._servers, self._bits, self._seed = servers, bits, seed

    def dev_scorer(
        self, work: Work, network: Network, devices: Users | Devices, dev_users: int
    ) -> DevScorer | None:  # fmt: skip
        """Scores by at most so many devices of the dev arm; None for word pieces, which devices cannot score."""
        if not isinstance(devices, FederationDevices):
            raise FedgramError("only the training of a federation can be scored on its devices")
        if network.coding.pieces is not None or not dev_users:
            return None
        size = cohort_size(self._servers.home, DEV, BUCKETS)
        options = DeviceEvaluationOptions(rounds=ceil(dev_users / size), over_selection=1.0)

        def scores(several: Sequence[WeightArrays]) -> list[Scores]:
            models: dict[str, Model] = {str(i): replace(network, weights=weights) for i, weights in enumerate(several)}
            with devices.resting():
                found = self._evaluate(work, models, options, arm=DEV)
            return [_scores(found, name) for name in models]

        return scores

    def top1(self, work: Work, models: Models, *, cased: bool) -> dict[str, float]:
        """All models in one evaluation by the dev arm."""
        sent = self._packed(work, models)
        found = self._evaluate(work, sent, DeviceEvaluationOptions(over_selection=1.0), cased=cased, arm=DEV)
        return {name: float(found.models[name]["top1"]["value"]) for name in models}

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
        return evaluate_on_federation(
            self._servers, models, options, baseline=baseline, cased=cased, arm=arm, seed=self._seed,
            work=work.write("servers"), begin=work.begin,
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


def _scores(found: DeviceComparison, name: str) -> Scores:
    figures = {key: float(found.models[name][key]["value"]) for key in ("sll", "sll_e", "perplexity", "top1", "top3")}
    sentences = round(float(found.evaluations[name].measures["sll"].count.sum()))
    return Scores(**figures, sentences=sentences, words=found.words)
