"""What `federation run` hands to the ServerApp: a working folder on the server's disk, which is also where it commits.

    order.json, job, start.safetensors     what to do
    rounds/                                 committed rounds
    outcome.json                            how it ended, if it has

The folder outlives both processes, so a run goes on where it was whoever dies. Whoever works in it holds its lock.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import atomic_write
from fedgram.federated.secure.settings import SecureSettings
from fedgram.flower.fleet import Fleet, Lost
from fedgram.flower.job import FedAvgJob, Job, UnigramJob, job_from_bytes, job_to_bytes
from fedgram.flower.journal import Journal
from fedgram.flower.ledger import read_rounds
from fedgram.flower.locks import locked
from fedgram.flower.rounds import RoundPlan
from fedgram.flower.server import Server, run_fedavg, run_unigrams

if TYPE_CHECKING:
    from fedgram.federated.unigram_collection import UnigramState
    from fedgram.neural.network import Network

ORDER, JOB, START, ROUNDS, OUTCOME = "order.json", "job", "start.safetensors", "rounds", "outcome.json"


@dataclass(frozen=True, slots=True)
class Order:
    """What to run: how many rounds, how, and for FedAvg how to follow it; `dev` is a population with dev users.

    `masked_with` is the fewest devices of a masked sum; 0: updates come unmasked.
    """

    rounds: int
    plan: RoundPlan
    journal: str
    evaluate_every: int = 10
    patience: int | None = None
    masked_with: int = 0
    dev: str | None = None
    dev_users: int = 0


def write_order(work: Path, order: Order, job: Job, start: "Network | None" = None) -> None:
    """Put an order into a working folder; what was committed there before stays, if it belongs to the same job."""
    work.mkdir(parents=True, exist_ok=True)
    content = job_to_bytes(job)
    with atomic_write(work / JOB) as file:
        file.write(content)
    if start is not None:
        from fedgram.neural.network import write_network

        write_network(work / START, start)
    (work / OUTCOME).unlink(missing_ok=True)
    with atomic_write(work / ORDER) as file:
        file.write(json.dumps(asdict(order)).encode())


def read_order(work: Path) -> tuple[Order, Job]:
    """The order of a working folder."""
    try:
        fields = json.loads((work / ORDER).read_text("utf-8"))
        order = Order(**{**fields, "plan": RoundPlan(**fields["plan"])})
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(work / ORDER, f"does not hold an order: {error}") from None
    return order, job_from_bytes((work / JOB).read_bytes())


def settings_of(order: Order, job: Job) -> dict[str, Any]:
    """What committed rounds must agree on to be gone on with."""
    from fedgram.flower.job import job_digest

    devices = {"devices": order.plan.devices, "over_selection": order.plan.over_selection}
    return {"job": job_digest(job_to_bytes(job)), **devices}


def execute(work: Path, fleet: Fleet) -> None:
    """Do what a working folder says, on this fleet; only one process does so at a time.

    Whatever goes wrong is the run's outcome, so that nobody starts it again in vain; all but the loss of the fleet.
    """
    with locked(work, seconds=120):
        journal = None
        try:
            order, job = read_order(work)
            journal = Journal(Path(order.journal), job.name, order.rounds)
            masking = SecureSettings(min_devices=order.masked_with) if order.masked_with else None
            journal.tell("run began", {"rounds": order.rounds})
            _run(work, order, job, Server(fleet, job, order.plan, masking=masking, tell=journal.tell))
            journal.tell("run completed", {"rounds": order.rounds})
            _write_outcome(work, {"done": True})
        except Lost:
            raise
        except Exception as error:
            why = _in_words(error)
            _write_outcome(work, {"error": why})
            if journal is not None:
                journal.tell("run failed", {"why": why})
            raise


def _in_words(error: Exception) -> str:
    """A line on what went wrong; of an error that nobody foresaw, its kind alone, as its text may quote anything."""
    if isinstance(error, FedgramError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror.lower()}, on the server; what was committed is kept"
    return f"the ServerApp failed with {type(error).__name__}; see superlink.log in the server's folder"


def _run(work: Path, order: Order, job: Job, server: Server) -> None:
    settings, folder = settings_of(order, job), work / ROUNDS
    if isinstance(job, UnigramJob):
        run_unigrams(server, job, order.rounds, folder, settings)
        return
    from fedgram.fedavg.run import RunOptions
    from fedgram.neural.network import read_network
    from fedgram.neural.scoring import text_to_score
    from fedgram.text.population import open_population

    dev = None
    if order.dev is not None and order.dev_users:
        people = open_population(order.dev)
        chosen = people.clients("dev")[: order.dev_users]
        dev = text_to_score(job.coding, people, chosen) if len(chosen) else None
    options = RunOptions(order.rounds, job.seed, order.evaluate_every, order.patience)
    run_fedavg(server, job, read_network(work / START).weights, options, dev, folder, settings)


def collected(work: Path) -> "UnigramState":
    """What a finished collection has."""
    order, job = read_order(work)
    state = read_rounds(work / ROUNDS, settings_of(order, job))
    if len(state.rounds) < order.rounds:
        raise FedgramError(f"the collection ended after {len(state.rounds)} of {order.rounds} rounds")
    return state


def trained(work: Path) -> "tuple[Network, Mapping[str, Any]]":
    """The best network of a finished training, and its story."""
    from fedgram.fedavg.checkpoint import read_checkpoint
    from fedgram.neural.network import Network

    order, job = read_order(work)
    found = read_checkpoint(work / ROUNDS, settings_of(order, job))
    if found is None or not isinstance(job, FedAvgJob):
        raise FedgramError("the training left no checkpoint")
    story = found.story
    about = {"rounds": len(story["loss"]), "best_round": story["best_round"], "plan": asdict(job.plan)}
    return Network(job.shape, found.best, job.coding, json.loads(json.dumps(about))), story


def outcome(work: Path) -> dict[str, Any]:
    """How the run ended; empty if it has not."""
    try:
        found = json.loads((work / OUTCOME).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_outcome(work: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(work / OUTCOME) as file:
        file.write(json.dumps(content).encode())
