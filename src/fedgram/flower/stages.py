"""The stages of `fedgram run` that ask devices, on a federation: the same files come out, and the rest goes on.

A stage's working folder holds its orders, and the rounds that are committed; so a killed stage goes on where it was.
The population of the configuration is then what the server may see: its dev and test users. Its train users are not
asked; the devices of the federation are.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.fedavg.run import RunResult
from fedgram.flower.folder import Folder
from fedgram.flower.job import FedAvgJob, Job, UnigramJob
from fedgram.flower.journal import read_status
from fedgram.flower.orders import Order, collected, trained, write_order
from fedgram.flower.rounds import RoundPlan
from fedgram.flower.submit import carry_out
from fedgram.neural.network import Network, read_network
from fedgram.neural.scoring import text_to_score
from fedgram.pipeline.config import RunConfig, TrainingConfig, UnigramsConfig
from fedgram.pipeline.network_stages import write_trained
from fedgram.pipeline.text_stages import describe_unigrams, judged
from fedgram.pipeline.training import TrainingJob, scores_before
from fedgram.pipeline.workspace import Stage, Work
from fedgram.text.population import open_population
from fedgram.text.unigrams import write_unigrams
from fedgram.text.vocabulary import read_vocabulary


def on_federation(folder: Folder, config: RunConfig) -> Callable[[list[Stage]], list[Stage]]:
    """What puts the federation in the place of the simulation, where the configuration names no file instead."""
    functions: dict[str, Callable[[Work], None]] = {}
    if config.unigrams.counts is None:
        functions["unigrams"] = lambda work: unigrams(work, folder, config.unigrams, config.seed)
    for what, name, given in (("words", "R_W", config.words.network), ("pieces", "R_P", config.pieces.network)):
        if given is None:
            functions[f"train_{what}"] = _training(folder, config, name)

    def change(stages: list[Stage]) -> list[Stage]:
        if any(stage.name == "refit" for stage in stages):
            raise FedgramError("devices of a federation do not count n-grams yet; set refit.run = false")
        asking = functions.keys() & {stage.name for stage in stages}
        if "unigrams" in asking:
            _check_masked(folder, "unigrams.devices_per_round", config.unigrams.devices_per_round)
        if asking - {"unigrams"}:
            _check_masked(folder, "training.clients_per_round", config.training.clients_per_round)
        own = {"federation": _identity(folder), "masked_with": folder.config.masked_with}
        return [
            replace(stage, function=functions[stage.name], config=[stage.config, own])
            if stage.name in functions
            else stage
            for stage in stages
        ]

    return change


def _identity(folder: Folder) -> str:
    """What tells a federation from others: its authority, which stays when certificates are renewed.

    One without TLS is on this machine alone, and has its place there.
    """
    return sha256(folder.authority.read_bytes()).hexdigest() if folder.config.tls else str(folder.path.resolve())


def _check_masked(folder: Folder, name: str, devices: int) -> None:
    """Refuse rounds of fewer devices than may be summed."""
    if devices < (masked_with := folder.config.masked_with):
        raise FedgramError(f"{name} = {devices} is less than the federation's masked_with = {masked_with}")


def for_federation(config: RunConfig) -> RunConfig:
    """The configuration without the refit: its devices are simulated alone, and a federation's text is not here."""
    return replace(config, refit=replace(config.refit, run=False))


def _training(folder: Folder, config: RunConfig, name: str) -> Callable[[Work], None]:
    return lambda work: train_network(work, folder, config.training, config.seed, name=name)


def round_plan(folder: Folder, devices: int, over_selection: float) -> RoundPlan:
    """How rounds with so many devices are run here."""
    c = folder.config.rounds
    minimum = min(devices, max(1, ceil(c.minimum * devices), folder.config.masked_with))
    return RoundPlan(
        devices, over_selection, minimum, c.deadline, c.attempts, c.wait_for or devices, c.wait_seconds, c.batch
    )


def _carry_out(work: Work, folder: Folder, order: Order, job: Job, title: str, start: Network | None = None) -> Path:
    orders = work.write("orders")
    write_order(orders, order, job, start)
    advance, done = work.begin(title, order.rounds), [0]

    def on_round(number: int) -> None:
        if number > done[0]:
            advance(number - done[0])
            done[0] = number

    carry_out(folder, orders, on_round=on_round)
    return orders


def unigrams(work: Work, folder: Folder, config: UnigramsConfig, seed: int) -> None:
    """U from the federation's devices."""
    whitelist = read_vocabulary(work.read("whitelist.txt"))
    job = UnigramJob(whitelist, config.clip, seed)
    plan = round_plan(folder, config.devices_per_round, config.over_selection)
    order = Order(config.rounds, plan, str(folder.server), masked_with=folder.config.masked_with)
    orders = _carry_out(work, folder, order, job, f"Collecting unigrams, λ = {config.clip:g}")
    devices = max(int(read_status(folder.server).get("devices", 0)), plan.devices)
    counts, story = judged(job.task(), collected(orders), devices)
    write_unigrams(work.write("U.unigrams"), counts)
    describe_unigrams(work, counts, whitelist, story)


def train_network(work: Work, folder: Folder, config: TrainingConfig, seed: int, *, name: str) -> None:
    """FederatedAveraging on the federation's devices; dev users are the server's."""
    users, start = work.read("users.arrow"), read_network(work.read(f"{name}_start.safetensors"))
    training = TrainingJob(users, Path(), Path(), config, seed, "cpu").plan()
    job = FedAvgJob(start.shape, training, start.coding, seed)
    order = Order(
        config.rounds, round_plan(folder, config.clients_per_round, config.over_selection), str(folder.server),
        config.evaluate_every, config.patience, folder.config.masked_with, str(users.resolve()), config.dev_users,
    )  # fmt: skip
    orders = _carry_out(work, folder, order, job, f"Training {name} on devices", start)
    network, story = trained(orders)
    people = open_population(users)
    dev = text_to_score(start.coding, people, people.clients("dev")[: config.dev_users])
    about: dict[str, Any] = scores_before(start, dev)
    write_trained(work, name, start, RunResult(network.weights, story), about, training)
