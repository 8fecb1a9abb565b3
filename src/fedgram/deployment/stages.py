"""The stages of `fedgram run` that ask devices, on a federation: the same files come out, and the rest goes on.

A stage's working folder holds its checkpoints and what passes to and from the server; so a killed stage resumes. The
population of the configuration is then what the server may see: its dev and test users. Its train users are not asked;
the devices of the federation are. Without users in the configuration, devices of the dev and test arms measure.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError
from fedgram.deployment.evaluation import check_arms
from fedgram.deployment.federation_devices import FederationDevices, Servers
from fedgram.deployment.folder import Folder
from fedgram.deployment.judges import ByDevices, noise_of
from fedgram.federated.cohort import CohortOptions
from fedgram.pipeline import (
    baseline_stage,
    clipping_stage,
    evaluation_stages,
    model_stages,
    network_stages,
    refit_stage,
    text_stages,
)
from fedgram.pipeline.config import PiecesSection, RunConfig, WordsSection
from fedgram.pipeline.judges import ByUsers, Judges
from fedgram.pipeline.participants import DevicesOf
from fedgram.pipeline.stages import run_stages
from fedgram.pipeline.workspace import Stage, Work
from fedgram.privacy.ledger import LEDGER_FILE, Budget, Ledger
from fedgram.privacy.options import PrivacyOptions
from fedgram.training.options import FedAvgOptions

_MEASURING = (
    "baselines",
    "final",
    "evaluation",
    "clipping",
)  # the stages that measure models on devices if there are no users


def on_federation(servers: Servers, config: RunConfig) -> Callable[[list[Stage]], list[Stage]]:
    """What puts federations in the place of the simulation, where the configuration names no file instead.

    Several servers share the rounds; the settings of the first count.
    """

    def devices(work: Work) -> FederationDevices:
        return FederationDevices(servers, work.write("servers"))

    judges: Judges = ByUsers()
    if config.population.is_on_devices:
        check_arms(servers.home, config.evaluation.split)
        judges = ByDevices(servers, config.final.bits, config.seed, noise_of(config))
    functions = _functions(config, devices, judges, _ledger(servers.home, config.privacy))

    def change(stages: list[Stage]) -> list[Stage]:
        for stage in stages:
            if stage.name in functions and stage.name not in _MEASURING:
                _check_masked(servers.home, *_cohort_of(stage.name, config))
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


def stages_that_ask(change: Callable[[list[Stage]], list[Stage]], config: RunConfig) -> frozenset[str]:
    """The names of the stages that ask devices; `change` is what `on_federation` returned."""
    before = run_stages(config)
    return frozenset(own.name for own, put in zip(before, change(before), strict=True) if put is not own)


def _ledger(server: Folder, privacy: PrivacyOptions) -> Ledger | None:
    """The ledger of the server's devices, with the budget of this run; None if nothing is spent."""
    if not privacy.is_dp:
        return None
    return Ledger.open(server.server / LEDGER_FILE, Budget(privacy.epsilon, privacy.delta))


def _functions(
    config: RunConfig, devices: DevicesOf, judges: Judges, ledger: Ledger | None
) -> dict[str, Callable[[Work], None]]:
    """The stages that ask devices, by name."""
    c = config
    functions: dict[str, Callable[[Work], None]] = {
        "refit": lambda work: refit_stage.refit(
            work, c.refit, c.privacy.of_ngrams, c.budget, c.seed, devices=devices, ledger=ledger
        )
    }
    if c.unigrams.counts is None:
        functions["unigrams"] = lambda work: text_stages.unigrams(
            work, c.unigrams, c.privacy.of_unigrams, c.seed, devices=devices, ledger=ledger
        )
    sections: list[tuple[str, WordsSection | PiecesSection]] = [("R_W", c.words), ("R_P", c.pieces)]
    for name, section in sections:
        if section.network is None:
            what = "words" if name == "R_W" else "pieces"
            functions[f"train_{what}"] = _training(section.training, c, name, devices, judges, ledger)
    return functions | (_measuring(c, devices, judges) if c.population.is_on_devices else {})


def _measuring(c: RunConfig, devices: DevicesOf, judges: Judges) -> dict[str, Callable[[Work], None]]:
    """The stages that measure models, by name."""
    return dict(
        zip(
            _MEASURING,
            (
                lambda work: baseline_stage.baselines(work, c.baselines, c.budget, judges=judges),
                lambda work: model_stages.final(work, c.final.cased, c.privacy.protection, c.budget, judges=judges),
                lambda work: evaluation_stages.evaluation(
                    work, c.evaluation, c.population.language, c.seed, judges=judges
                ),
                lambda work: clipping_stage.clipping(
                    work,
                    c.clipping,
                    replace(c.unigrams, counts=None),
                    c.evaluation,
                    c.seed,
                    devices=devices,
                    judges=judges,
                ),
            ),
            strict=True,
        )
    )


def _training(
    options: FedAvgOptions, c: RunConfig, name: str, devices: DevicesOf, judges: Judges, ledger: Ledger | None
) -> Callable[[Work], None]:
    compute = Compute("cpu", 1)  # of the server, which only scores
    return lambda work: network_stages.train_network(
        work, options, c.privacy.of_network(c.trained), c.seed, name=name, compute=compute, devices=devices,
        ledger=ledger, judges=judges,
    )  # fmt: skip


def _cohort_of(stage: str, config: RunConfig) -> tuple[str, CohortOptions]:
    """The settings of a stage's cohorts, with the name of their section."""
    if stage.startswith("train_"):
        what = stage.removeprefix("train_")
        return f"{what}.training", getattr(config, what).training
    return stage, getattr(config, stage)


def _identity(server: Folder | Path) -> str:
    """What tells a federation from others: its authority, which stays when certificates are renewed.

    One without TLS is on this machine alone, and has its place there; so has a folder that is shared.
    """
    if isinstance(server, Path):
        return str(server.resolve())
    return sha256(server.authority.read_bytes()).hexdigest() if server.config.tls else str(server.path.resolve())


def _check_masked(folder: Folder, section: str, cohort: CohortOptions) -> None:
    """Refuse rounds of fewer devices than may be summed."""
    devices, masked_with = cohort.devices_per_round, folder.config.masked_with
    if devices < masked_with:
        name = f"{section}.devices_per_round"
        raise FedgramError(f"{name} = {devices} is less than the federation's masked_with = {masked_with}")
