"""Training a network on devices: the operation behind the command, the stage of a run, and the library."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.core.settings import chosen
from fedgram.federated.devices import Devices, SimulatedDevices
from fedgram.federated.job import Job
from fedgram.federated.rounds import Checkpointing
from fedgram.neural.cell_registry import is_process_local
from fedgram.neural.network import Coding, Network, read_network, write_network
from fedgram.neural.ranks import Ranks, join_ranks
from fedgram.neural.scoring import ScoredText, text_to_score
from fedgram.neural.torch_devices import choose_torch_device
from fedgram.privacy.ledger import Ledger, ledger_facts
from fedgram.text.population import Population, Users, open_population, write_population
from fedgram.training.fedavg_run import DevSchedule, DevScorer, RoundProgress, TrainingResult, train
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.noise_plan import NoisePlan
from fedgram.training.options import FedAvgOptions
from fedgram.training.plan import TrainingPlan
from fedgram.training.workers import sharing

OnRound = Callable[[RoundProgress], object]
_HELP = ".training.train_federated:help_training"


@dataclass(frozen=True, slots=True, eq=False)
class TrainedNetwork(Network):
    """A network after its training, with the history of the rounds."""

    history: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __repr__(self) -> str:
        rounds, best = len(self.history["loss"]), self.history["best_round"]
        dev = self.history["dev"]
        score = f", dev SLL^e {max(point['sll_e'] for point in dev):.2f}" if dev else ""
        return f"TrainedNetwork({self.summary}; {rounds} rounds, best {best}{score})"


def train_federated(
    network: Network,
    users: Population | Users | Devices,
    options: FedAvgOptions | None = None,
    *,
    dev: Users | DevScorer | None = None,
    seed: int = 0,
    compute: Compute | None = None,
    checkpoints: Checkpointing | None = None,
    ledger: Ledger | None = None,
    name: str = "training",
    begin: Begin = silent,
    **settings: Any,
) -> TrainedNetwork:
    """Train a network on devices that keep their text, by federated averaging.

    In every round some devices train the server's network on their own sentences and send the change of its weights.
    The server averages the changes and takes a step of its optimiser. The result are the weights with the best SLL^e on
    dev users, of all rounds that were scored; without dev users, the weights after the last round.

    Args:
        network: The network to start from.
        users: A population, whose train users train and whose dev users score; or the users or devices that train.
        options: How to train; its fields may be given as keywords instead.
        dev: The users to score on, if `users` is not a population; or what scores weights elsewhere, on real devices.
        seed: Of the cohorts and of the order of sentences on devices.
        compute: The processes that share the work, or the GPU.
        checkpoints: Where to keep checkpoints; an interrupted training resumes from there.
        ledger: Where privacy spent on these users is recorded, and their budget; used if there is noise.
        name: What the ledger calls this training.
        begin: Progress callback.

    With noise the result is differentially private as far as the options say, provided that it was chosen by dev users
    who did not train. Its history has the cost under `privacy`; the loss on devices is then not known.
    """
    options, compute = chosen(FedAvgOptions, options, settings), compute or Compute()
    if isinstance(users, Population):
        dev, users = users.dev if dev is None else dev, users.train
    torch_device = str(choose_torch_device(compute.torch_device))
    work = _Work(network, options, seed, torch_device, checkpoints, ledger or Ledger(), name)
    advance, done = begin("Training", options.rounds), [0]

    def on_round(progress: RoundProgress) -> None:
        sll = f", SLL^e {progress.scores.sll_e:.2f}" if progress.scores else ""
        rate = f"{progress.tokens_per_second:,.0f} tokens/s"
        about = f"Round {progress.round}/{options.rounds}: loss {progress.loss:.3f}{sll}, {rate}"
        advance(progress.round - done[0], about)
        done[0] = progress.round

    if not isinstance(users, Users):
        return work.trained(work.train(users, dev, Ranks(), on_round))
    if callable(dev):
        raise FedgramError("simulated devices are scored on dev users; give users as dev")
    _check_vocabulary(users, network.coding)
    needs_all = options.secure_aggregation or options.aggregation != "mean"
    alone = work.torch_device != "cpu" or needs_all or is_process_local(network.shape.cell)
    workers = 1 if alone else compute.cores
    if "RANK" in os.environ:  # torchrun started several processes
        with closing(join_ranks()) as ranks:
            return work.trained(work.train_simulated(users, dev, ranks, on_round))
    with sharing(workers, _HELP, lambda folder: _share(folder, work, users, dev)) as ranks:
        return work.trained(work.train_simulated(users, dev, ranks, on_round))


@dataclass(frozen=True, slots=True)
class _Work:
    """One training, without the devices that take part."""

    network: Network
    options: FedAvgOptions
    seed: int
    torch_device: str
    checkpoints: Checkpointing | None
    ledger: Ledger
    name: str

    def train_simulated(self, users: Users, dev: Users | None, ranks: Ranks, on_round: OnRound) -> TrainingResult:
        """Train on users of a population, together with the other ranks."""
        return self.train(SimulatedDevices(users, ranks=ranks), dev, ranks, on_round, {"dropout": self.options.dropout})

    def train(
        self, devices: Devices, dev: Users | DevScorer | None, ranks: Ranks, on_round: OnRound,
        belongs_to: Mapping[str, Any] | None = None,
    ) -> TrainingResult:  # fmt: skip
        """Train on any devices."""
        network, options = self.network, self.options
        plan = TrainingPlan.of(options)
        task = FederatedAveraging(network.shape, network.weights, plan, network.coding, self.torch_device)
        noise = NoisePlan.of(options, devices.count)
        job = Job(task, self.seed, *noise.limits) if noise else Job(task, self.seed)
        mechanism = noise.mechanism(job, self.ledger, self.name, ranks) if noise else None
        text: ScoredText | DevScorer | None = None
        if isinstance(dev, Users):
            scored = dev.first(options.dev_users)
            text = text_to_score(network.coding, scored.population, scored.clients) if len(scored) else None
        elif options.dev_users:
            text = dev
        about = {**(belongs_to or {}), **(noise.about if noise else {})}
        kept = replace(self.checkpoints, belongs_to=about) if self.checkpoints else None
        with devices.working_on(job, options, options.rounds) as fleet:
            return train(
                job, fleet, devices.run_options(options, options.rounds), dev=text,
                dev_schedule=DevSchedule(options.evaluate_every, options.patience), ranks=ranks,
                checkpoints=kept, on_round=on_round, mechanism=mechanism,
            )  # fmt: skip

    def trained(self, result: TrainingResult) -> TrainedNetwork:
        """The network with its new weights."""
        history = json.loads(json.dumps(dict(result.history), sort_keys=True))  # in one order, resumed or not
        about = {**self.network.about, "central": False, "rounds": len(history["loss"]),
                 "best_round": history["best_round"],
                 "plan": json.loads(json.dumps(TrainingPlan.of(self.options).fields()))}  # fmt: skip
        if self.options.noise != "none":
            history["privacy"] = ledger_facts(self.ledger)
            about["privacy"] = {"noise": self.options.noise, **history["privacy"]}
        return TrainedNetwork(self.network.shape, result.weights, self.network.coding, about, history)


def _check_vocabulary(users: Users, coding: Coding) -> None:
    if not len(users):
        raise FedgramError("there are no users to train on; check the column `split` of the population")
    if not (coding.codes(users.population.words).values > 0).any():
        raise FedgramError("the population has no word of the network's vocabulary; check the language of its unigrams")


def _share(folder: Path, work: _Work, users: Users, dev: Users | None) -> Mapping[str, Any]:
    """Write what the workers need."""
    write_network(folder / "network.safetensors", work.network)
    kept = work.checkpoints
    return {
        "users": _save(folder, "users", users), "dev": _save(folder, "dev", dev) if dev is not None else None,
        "options": asdict(work.options), "seed": work.seed,
        "checkpoints": [str(kept.folder.absolute()), kept.resume, kept.every] if kept else None,
    }  # fmt: skip


def _save(folder: Path, name: str, users: Users) -> str:
    np.save(folder / f"{name}.npy", users.clients)
    path = users.population.path or folder / f"{name}.population"
    if users.population.path is None:
        write_population(path, users.population)
    return str(path)


def help_training(folder: Path, shared: Mapping[str, Any], ranks: Ranks) -> None:
    """Take part in a training as one of its workers."""
    torch_device = str(choose_torch_device("cpu"))
    kept = Checkpointing(Path(shared["checkpoints"][0]), *shared["checkpoints"][1:]) if shared["checkpoints"] else None
    network = read_network(folder / "network.safetensors")
    options = FedAvgOptions(**shared["options"])
    work = _Work(network, options, shared["seed"], torch_device, kept, Ledger(), "")  # the first process has the ledger
    open_once = cache(open_population)
    users, dev = (
        Users(open_once(shared[name]), np.load(folder / f"{name}.npy")) if shared[name] else None
        for name in ("users", "dev")
    )
    assert users is not None
    work.train_simulated(users, dev, ranks, lambda _: None)
