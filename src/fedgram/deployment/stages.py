"""The stages of `fedgram run` that ask devices, on a federation: the same files come out, and the rest goes on.

A stage's working folder holds its checkpoints and what passes to and from the server; so a killed stage resumes. The
population of the configuration is then what the server may see: its dev and test users. Its train users are not asked;
the devices of the federation are.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.deployment.folder import Folder
from fedgram.deployment.remote_fleet import Patience
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.fleet import Fleet
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.shards import ShardedFleet
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.neural.network import read_network
from fedgram.neural.scoring import text_to_score
from fedgram.pipeline.config import BudgetConfig, RefitConfig, RunConfig, TrainingConfig, UnigramsConfig
from fedgram.pipeline.network_stages import write_trained
from fedgram.pipeline.refit_stage import Asking, refit_on
from fedgram.pipeline.text_stages import describe_unigrams, judged
from fedgram.pipeline.training import TrainingJob
from fedgram.pipeline.workspace import Stage, Work
from fedgram.text.population import open_population
from fedgram.text.unigrams import write_unigrams
from fedgram.text.vocabulary import read_vocabulary
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.federated_training import Following, Moment, train

_AWAY, _SHARD_AWAY = 600.0, 30.0  # seconds that a server may be away, and until a round goes on without one of several


@dataclass(frozen=True, slots=True)
class Servers:
    """The server of a run, whose settings count for all, and others that share its rounds.

    Another server is that of a federation's folder on this machine; or it works on another machine, in a folder that
    both share (`fedgram federation collect`).
    """

    home: Folder
    others: tuple[Folder | Path, ...] = ()

    @property
    def all(self) -> tuple[Folder | Path, ...]:
        """Every server."""
        return self.home, *self.others


def on_federation(servers: Servers, config: RunConfig) -> Callable[[list[Stage]], list[Stage]]:
    """What puts federations in the place of the simulation, where the configuration names no file instead.

    Several servers share the rounds; the settings of the first count.
    """
    functions: dict[str, Callable[[Work], None]] = {
        "refit": lambda work: refit(work, servers, config.refit, config.budget, config.seed)
    }
    if config.unigrams.counts is None:
        functions["unigrams"] = lambda work: unigrams(work, servers, config.unigrams, config.seed)
    for what, name, given in (("words", "R_W", config.words.network), ("pieces", "R_P", config.pieces.network)):
        if given is None:
            functions[f"train_{what}"] = _training(servers, config, name)

    def change(stages: list[Stage]) -> list[Stage]:
        asking = functions.keys() & {stage.name for stage in stages}
        sizes = {
            "unigrams": ("unigrams.devices_per_round", config.unigrams.devices_per_round),
            "train_words": ("training.clients_per_round", config.training.clients_per_round),
            "train_pieces": ("training.clients_per_round", config.training.clients_per_round),
            "refit": ("refit.devices_per_round", config.refit.devices_per_round),
        }
        for stage in asking:
            _check_masked(servers.home, *sizes[stage])
        own = {
            "federation": [_identity(server) for server in servers.all], "masked_with": servers.home.config.masked_with
        }  # fmt: skip
        return [
            replace(stage, function=functions[stage.name], config=[stage.config, own])
            if stage.name in functions
            else stage
            for stage in stages
        ]

    return change


def _identity(server: Folder | Path) -> str:
    """What tells a federation from others: its authority, which stays when certificates are renewed.

    One without TLS is on this machine alone, and has its place there; so has a folder that is shared.
    """
    if isinstance(server, Path):
        return str(server.resolve())
    return sha256(server.authority.read_bytes()).hexdigest() if server.config.tls else str(server.path.resolve())


def _check_masked(folder: Folder, name: str, devices: int) -> None:
    """Refuse rounds of fewer devices than may be summed."""
    if devices < (masked_with := folder.config.masked_with):
        raise FedgramError(f"{name} = {devices} is less than the federation's masked_with = {masked_with}")


def _training(servers: Servers, config: RunConfig, name: str) -> Callable[[Work], None]:
    return lambda work: train_network(work, servers, config.training, config.seed, name=name)


def round_plan(folder: Folder, devices: int, over_selection: float) -> RoundPlan:
    """How rounds with so many devices are run here."""
    c = folder.config.rounds
    minimum = min(devices, max(1, ceil(c.minimum * devices), folder.config.masked_with))
    return RoundPlan(devices, over_selection, minimum, c.attempts)


def patience_of(folder: Folder) -> Patience:
    """How long the server of a federation waits."""
    c = folder.config.rounds
    return Patience(c.deadline, c.wait_seconds, c.idle_seconds, c.wait_for, c.batch)


def masking_of(folder: Folder) -> SecureSettings | None:
    """How sums are masked, if they are."""
    return SecureSettings(min_devices=folder.config.masked_with) if folder.config.masked_with else None


@contextmanager
def served(servers: Servers, work: Path, job: Job[Any], rounds: int | None) -> Iterator[Fleet]:
    """The devices of one federation, or of several, at work on a job."""
    with ExitStack() as stack:
        away = _SHARD_AWAY if servers.others else _AWAY
        fleets: list[Fleet] = []
        for number, server in enumerate(servers.all):
            if isinstance(server, Path):
                fleet = ServedFleet(None, server / job.digest[:16], job, patience_of(servers.home), away)
            else:
                fleet = ServedFleet(server, work / f"server-{number}", job, patience_of(server), away)
            fleets.append(stack.enter_context(fleet.working(rounds)))
        patience, least = patience_of(servers.home), max(1, servers.home.config.masked_with)
        waits = patience.wait_seconds, patience.idle_seconds
        yield ShardedFleet(fleets, *waits, least) if servers.others else fleets[0]


def unigrams(work: Work, servers: Servers, config: UnigramsConfig, seed: int) -> None:
    """U from the federation's devices, each of which takes part once."""
    whitelist, folder = read_vocabulary(work.read("whitelist.txt")), servers.home
    task = UnigramTask(whitelist, clip=config.clip)
    job = Job(task, seed, participations=folder.config.participations)
    options = RunOptions(
        config.rounds, round_plan(folder, config.devices_per_round, config.over_selection), masking_of(folder)
    )
    advance = work.begin(f"Collecting unigrams, λ = {config.clip:g}", config.rounds)
    with served(servers, work.write("servers"), job, config.rounds) as fleet:
        run = run_rounds(
            job, fleet, options, folder=work.write("checkpoints"),
            tell=lambda event, _: advance(1) if event == "round committed" else None,
        )  # fmt: skip
    counts, story = judged(task, run)
    write_unigrams(work.write("U.unigrams"), counts)
    describe_unigrams(work, counts, whitelist, story)


def train_network(work: Work, servers: Servers, config: TrainingConfig, seed: int, *, name: str) -> None:
    """FederatedAveraging on the federation's devices; dev users are the server's."""
    users, start, folder = work.read("users.arrow"), read_network(work.read(f"{name}_start.safetensors")), servers.home
    plan = TrainingJob(users, Path(), Path(), config, seed, "cpu").plan()
    job = Job(FederatedAveraging(start.shape, start.weights, plan, start.coding), seed)
    options = RunOptions(
        config.rounds, round_plan(folder, config.clients_per_round, config.over_selection), masking_of(folder)
    )
    people = open_population(users)
    dev = text_to_score(start.coding, people, people.clients("dev")[: config.dev_users])
    advance, done = work.begin(f"Training {name} on devices", config.rounds), [0]

    def on_round(moment: Moment) -> None:
        advance(moment.round - done[0])
        done[0] = moment.round

    with served(servers, work.write("servers"), job, config.rounds) as fleet:
        result = train(
            job, fleet, options, dev=dev, following=Following(config.evaluate_every, config.patience),
            folder=work.write("checkpoints"), resume=True, on_round=on_round,
        )  # fmt: skip
    write_trained(work, name, start, result, plan)


def refit(work: Work, servers: Servers, config: RefitConfig, budget: BudgetConfig, seed: int) -> None:
    """A_W_r fitted to what the federation's devices count."""
    folder = servers.home
    with ExitStack() as stack:
        open_pass: list[ExitStack] = []

        def fleets(job: Job[Any]) -> Fleet:
            for before in open_pass:
                before.close()
            open_pass[:] = [stack.enter_context(ExitStack())]
            place = work.write("servers") / job.digest[:16]
            return open_pass[0].enter_context(served(servers, place, job, None))

        plan = round_plan(folder, config.devices_per_round, config.over_selection)
        refit_on(work, config, budget, seed, lambda: Asking(fleets, plan, masking_of(folder)))
