"""The models that are attacked with planted secrets, all made from the same users.

    R                    the network, trained on devices
    A_e A_i A_m A_r      distilled from it
    none threshold dp    the refit of its wide model, with each protection
    … packed             the same as packed files

With `dp` the network has noise too, and everything after it is made from that network; the privacy budget is split
between the network and the counts. If so much noise makes no round better than the start, the start is used, as a
server would do: it is the network of public text. Without a network the refits start from the model of public text.
Files are kept in a folder, and long steps keep checkpoints in it, so that an interrupted audit resumes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.core.compute import Compute
from fedgram.core.progress import Begin, silent
from fedgram.distill.distillation import DistillationOptions, Running, distill
from fedgram.distill.refit.refit import RefitOptions, refit
from fedgram.evaluate.models import as_predictor
from fedgram.evaluate.predictor import Predictor
from fedgram.federated.rounds import Checkpointing
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.neural.network import Network, read_network, write_network
from fedgram.neural.new_network import create_network
from fedgram.privacy.options import PrivacyOptions, Protection
from fedgram.text.corpus import Corpus
from fedgram.text.population import Population
from fedgram.text.unigrams import UnigramCounts
from fedgram.training.central_training import pretrain
from fedgram.training.fedavg_run import DivergedError
from fedgram.training.noise_plan import with_noise
from fedgram.training.options import FedAvgOptions, PretrainingOptions
from fedgram.training.train_federated import train_federated

_CHECKPOINT = 25  # rounds


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What models are made with: public text and its model, the devices' word counts, and the settings of a run.

    `networks_share` is the share of the privacy budget that a network with noise gets, and the counts get the rest.
    """

    public: Corpus
    external: NGramModel
    unigrams: UnigramCounts
    privacy: PrivacyOptions
    preset: str = "W_demo"
    networks_share: float = 0.4
    pretraining: PretrainingOptions = field(default_factory=PretrainingOptions)
    training: FedAvgOptions = field(default_factory=FedAvgOptions)
    distillation: DistillationOptions = field(default_factory=DistillationOptions)
    refit: RefitOptions = field(default_factory=RefitOptions)
    budget: Budget = field(default_factory=Budget)
    room: float = 2.0
    seed: int = 0

    def protected(self, protection: Protection) -> PrivacyOptions:
        """The privacy with another protection."""
        p = self.privacy
        return PrivacyOptions(
            protection, p.min_devices, p.network_devices, p.epsilon, p.delta, p.simulated, p.noise_seed
        )  # fmt: skip


def start_of(trial: Trial, folder: Path, *, compute: Compute, begin: Begin) -> Network:
    """The network of public text, with which all trainings of an audit start; it is made once and kept in the folder.

    An interrupted pretraining resumes.
    """
    path, work = folder / "start.safetensors", folder / ".work"
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        network = create_network(trial.preset, trial.unigrams, seed=trial.seed, any_size=True)
        made = pretrain(
            network, trial.public, trial.pretraining, seed=trial.seed, compute=compute, checkpoint=work / "start",
            begin=begin,
        )  # fmt: skip
        write_network(path, made)
    return read_network(path)


class Models:
    """Makes the models of a trial from users, one after the other, and keeps them in a folder."""

    def __init__(
        self, trial: Trial, users: Population, folder: Path, *, compute: Compute | None = None, begin: Begin = silent
    ) -> None:
        self._trial, self._users, self._folder, self._begin = trial, users, folder, begin
        self._compute = compute or Compute()
        self.notes: list[str] = []

    def predictors(self, *, network: bool = True) -> Iterator[tuple[str, Predictor]]:
        """All models by name, each ready to be attacked; without regard to case."""
        plain = self._trial.external
        if network:
            yield from self._chain("", PrivacyOptions("none"))
            plain = self._ngram("wide")
        for protection in ("none", "threshold"):
            yield from self._refits(protection, plain, self._trial.protected(protection))
        noisy, privacy = self._trial.external, self._trial.protected("dp")
        if network:
            yield from self._chain("dp ", privacy.part(self._trial.networks_share))
            noisy, privacy = self._ngram("dp wide"), privacy.part(1.0 - self._trial.networks_share)
        yield from self._refits("dp", noisy, privacy)

    def _chain(self, prefix: str, privacy: PrivacyOptions) -> Iterator[tuple[str, Predictor]]:
        """A network and the models that are distilled from it."""
        path = self._path(f"{prefix}network", ".safetensors")
        if not path.exists():
            write_network(path, self._trained(privacy, self._work(f"{prefix}training")))
        network = read_network(path)
        if privacy.is_dp and "rounds" not in network.about:
            self.notes.append("noise made no round better than the start: the dp network is that of public text")
        yield f"{prefix}network", as_predictor(network, cased=False)
        t = self._trial
        if not self._path(f"{prefix}wide", ".ngram").exists():
            models = distill(
                network, t.external, t.distillation, budget=t.budget, room=t.room, seed=t.seed,
                running=Running(self._compute, folder=self._work(f"{prefix}distillation"), begin=self._begin),
            )  # fmt: skip
            for letter, model in models.by_letter().items():
                write_ngram(model, self._path(f"{prefix}A_{letter}", ".ngram"))
            assert models.wide is not None
            write_ngram(models.wide, self._path(f"{prefix}wide", ".ngram"))
        for letter in "eimr":
            yield f"{prefix}A_{letter}", as_predictor(self._ngram(f"{prefix}A_{letter}"), cased=False)

    def _trained(self, privacy: PrivacyOptions, work: Path) -> Network:
        t = self._trial
        start = start_of(t, self._folder, compute=self._compute, begin=self._begin)
        options = with_noise(t.training, privacy, len(self._users.train))
        try:
            return train_federated(
                start, self._users.train, options, dev=self._users.dev, seed=t.seed, compute=self._compute,
                checkpoints=Checkpointing(work, every=_CHECKPOINT), begin=self._begin,
            )  # fmt: skip
        except DivergedError:
            if not privacy.is_dp:
                raise
            return start

    def _refits(
        self, protection: Protection, prior: NGramModel, privacy: PrivacyOptions
    ) -> Iterator[tuple[str, Predictor]]:
        """The refit with one protection, and its packed file."""
        t, name = self._trial, f"refit {protection}"

        def make() -> NGramModel:
            return refit(
                prior, self._users.train, t.refit, privacy=privacy, casing=t.external, public=t.external,
                budget=t.budget, seed=t.seed, folder=self._work(name), begin=self._begin,
            )  # fmt: skip

        model = self._ngram(name, make)
        yield name, as_predictor(model, cased=False)
        packed = self._path(name, ".fgram")
        if not packed.exists():
            pack(model, packed)
        yield f"{name}, packed", as_predictor(open_model(packed), cased=False)

    def _ngram(self, name: str, make: Callable[[], NGramModel] | None = None) -> NGramModel:
        path = self._path(name, ".ngram")
        if make is not None and not path.exists():
            write_ngram(make(), path)
        return read_ngram(path)

    def _work(self, name: str) -> Path:
        """A folder for checkpoints."""
        folder = self._folder / ".work" / name.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _path(self, name: str, suffix: str) -> Path:
        return self._folder / f"{name.replace(' ', '_')}{suffix}"
