"""Models compared on the devices of a federation: `evaluate_on_devices` behind a server."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path

from fedgram.core.errors import InputError
from fedgram.core.progress import Begin, silent
from fedgram.deployment.arms import DEV, LEDGERS, TRAIN, ArmShares
from fedgram.deployment.federation_devices import FederationDevices, Servers
from fedgram.deployment.folder import CONFIG, Folder
from fedgram.deployment.waiting import Timeouts
from fedgram.evaluate.models import Model
from fedgram.evaluate.on_devices import DeviceComparison, DeviceEvaluationOptions, evaluate_on_devices
from fedgram.privacy.ledger import Budget, Ledger

EVALUATIONS = "evaluations"  # the folder, in the server's part, of what passes to and from the server and is kept


def evaluate_on_federation(
    servers: Servers,
    models: "Iterable[Model] | Mapping[str, Model]",
    options: DeviceEvaluationOptions,
    *,
    baseline: "Model | None" = None,
    cased: bool = False,
    arm: str = "test",
    seed: int = 0,
    work: Path | None = None,
    budget: Budget | None = None,
    begin: Begin = silent,
) -> DeviceComparison:
    """Compare models on a federation's devices of an arm; an interrupted evaluation resumes.

    What passes to and from the servers is in the folder `work`. `wait_for` of a federation counts devices of all arms,
    so an arm does not wait for so many. Noise is entered in the ledger of the arm; a `budget` replaces the one that it
    has. Devices with a budget are not asked for exact sums.
    """
    home = servers.home
    ledger = arm_ledger(home, arm, budget)
    if ledger.budget and not options.is_private:
        remedy = "give an ε for this evaluation (--epsilon, with --clip 2500)"
        raise InputError(arm_ledger_path(home, arm), f"limits what devices of the {arm} arm may reveal", remedy=remedy)
    folder, share = home.server / EVALUATIONS, shares_of(home).of(arm)
    options = replace(options, devices_per_round=options.devices_per_round or cohort_size(home, arm, options.buckets))

    def waiting(timeouts: Timeouts) -> Timeouts:
        return replace(timeouts, wait_for=timeouts.wait_for if share == 1 else 0)

    return evaluate_on_devices(
        models, FederationDevices(servers, work or folder / "work", waiting), options, baseline=baseline, cased=cased,
        arm=arm, seed=seed, ledger=ledger, folder=folder, begin=begin,
    )  # fmt: skip


def arm_ledger_path(home: Folder, arm: str) -> Path:
    """The file of an arm's ledger."""
    return home.server / LEDGERS[arm]


def arm_ledger(home: Folder, arm: str, budget: Budget | None = None) -> Ledger:
    """The ledger of the devices of an arm; a budget replaces the one that it has."""
    return Ledger.open(arm_ledger_path(home, arm), budget)


def shares_of(home: Folder) -> ArmShares:
    """The shares of a federation's arms."""
    return ArmShares(home.config.dev_share, home.config.test_share)


def cohort_size(home: Folder, arm: str, buckets: int) -> int:
    """Devices per round where nobody said: those that the server waits for in so many rounds, or the fewest."""
    expected = shares_of(home).of(arm) * home.config.rounds.wait_for
    return max(1, home.config.masked_with, ceil(expected / buckets))


def check_arms(home: Folder, split: str) -> None:
    """Refuse a run without users if the federation has no devices to choose models on, or to measure results on."""
    shares = shares_of(home)
    if missing := [f"{arm}_share" for arm in dict.fromkeys((DEV, split)) if arm != TRAIN and not shares.of(arm) > 0]:
        remedy = (
            f"set {' and '.join(missing)} in {CONFIG} of the server and of devices that have not joined yet, such as "
            "0.1; or name users in the configuration (population.users)"
        )
        raise InputError(home.path, "has no devices to measure models on, and the run names no users", remedy=remedy)
