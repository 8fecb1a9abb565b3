"""`fedgram federation`: a server and devices on their own machines."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from fedgram.cli.commands import Group
from fedgram.cli.console import show, steps
from fedgram.cli.federation_evaluate import evaluate_command
from fedgram.cli.federation_experiment import experiment_command, power_command
from fedgram.cli.federation_keys import admit_command, renew_command, revoke_command
from fedgram.cli.federation_publish import publish_command
from fedgram.cli.parameters import json_option, split_option
from fedgram.cli.run import execute, extras_of, given_files, population_options, running_options, show_plan
from fedgram.cli.settings import settings_options
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.extras import check_extras
from fedgram.deployment.folder import FederationConfig

if TYPE_CHECKING:
    from fedgram.core.compute import Compute
    from fedgram.pipeline.config import RunConfig
    from fedgram.pipeline.run import Change


@click.group(
    cls=Group,
    examples=["fedgram federation init fed", "fedgram federation devices users.parquet --most 3 -o stores"],
)
def group() -> None:
    """Run the federated stages on real devices that keep their text, over Flower, a framework for federated learning.

    The usual order: init and serve on the server, join on every device, admit on the server, then run and status.
    """


for _command in (admit_command, revoke_command, renew_command):
    group.add_command(_command)
group.add_command(publish_command)
group.add_command(experiment_command)
group.add_command(power_command)
group.add_command(evaluate_command)
folder_argument = click.argument("folder", metavar="DIR")


@group.command(
    "init",
    examples=[
        "fedgram federation init fed",
        "fedgram federation init fed --host fed.example.org --masked-with 10",
    ],
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--also", multiple=True, help="Another name or address of the server, for its certificate.")
@settings_options(FederationConfig, "config", without=["rounds", "pins", "participations", "in_memory"])
@json_option
def init_command(folder: Path, also: tuple[str, ...], config: FederationConfig, as_json: bool) -> None:
    """Make the folder of a federation: configuration, keys, certificates, and the Flower app."""
    from fedgram.deployment.flower.programs import require_flower
    from fedgram.deployment.folder import make_folder

    require_flower()
    made = make_folder(folder, config, also)
    about = {"address": made.address, "tls": made.config.tls, "masked_with": made.config.masked_with}
    show({"federation": str(folder), **about, "app": str(made.app)}, as_json)


@group.command(
    "devices",
    examples=[
        "fedgram federation devices users.parquet --most 3 -o stores",
        "fedgram federation devices users.parquet --split dev -o stores --json",
    ],
)
@click.argument("users")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder for the stores.")
@split_option("train")
@click.option("--most", type=click.IntRange(1), help="Maximum number of users.")
@json_option
def devices_command(users: str, output: Path, split: str, most: int | None, as_json: bool) -> None:
    """Make device stores from a population, to try out a federation.

    Every user becomes OUTPUT/NUMBER.sqlite, where NUMBER is the user's place in the population, as in simulations.
    """
    from fedgram.deployment.store import write_population_stores

    with steps() as step:
        step.begin(f"Reading {users}")
        written, messages = write_population_stores(users, output, split=split, most=most)
    if not written:
        raise InputError(users, f"has no users in the {split} split", remedy="check the column `split`")
    show({"devices": written, "messages": messages, "folder": str(output)}, as_json)


@group.command(
    "serve",
    examples=[
        "fedgram federation serve fed",
        "fedgram federation serve fed --metrics-port 9464",
    ],
)
@folder_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Port for Prometheus metrics, instead of the configured one."
)
def serve_command(folder: str, host: str, metrics_port: int | None) -> None:
    """Run the server until stopped.

    Only the port for devices is open to other machines. Its log is DIR/server/superlink.log.
    """
    from fedgram.deployment.checks import check_free, check_ready_to_serve
    from fedgram.deployment.flower.processes import start_superlink, wait_until_served
    from fedgram.deployment.folder import open_folder
    from fedgram.deployment.metrics import serve_metrics
    from fedgram.deployment.restarts import keep_running, log_of, single_instance
    from fedgram.deployment.rotating_log import rotating_log

    home = open_folder(folder)
    if not home.config.tls and host not in ("127.0.0.1", "localhost", "::1"):
        raise FedgramError("a federation without TLS is served on this machine alone; make one with --tls")
    port = home.config.metrics_port if metrics_port is None else metrics_port
    check_ready_to_serve(home, host)
    if port:
        check_free("127.0.0.1", port, "name another with --metrics-port")
        serve_metrics(port, lambda: _metrics(home))

    def say_when_it_answers() -> None:
        with suppress(FedgramError):
            wait_until_served(home)
            click.echo(f"serving {home.address}; stop it with Ctrl-C", err=True)

    path = log_of(home.server / "superlink.log")
    with single_instance(home.server, "the federation is served"), rotating_log(path) as log:
        Thread(target=say_when_it_answers, daemon=True).start()
        keep_running(lambda: start_superlink(home, host=host, log=log), lambda: None, path)


def _metrics(home: Any) -> str:
    from fedgram.deployment.flower.control import nodes
    from fedgram.deployment.journal import read_status
    from fedgram.deployment.metrics import metrics_text

    try:
        by_status = Counter(node["status"] for node in nodes(home))
    except FedgramError:
        by_status = Counter()
    return metrics_text(read_status(home.server), by_status)


@group.command(
    "join",
    examples=[
        "fedgram federation join fed --data stores/0.sqlite",
        "fedgram federation join fed --data stores/0.sqlite --only-when charging --only-when idle",
    ],
)
@folder_argument
@click.option("--data", required=True, type=click.Path(path_type=Path), help="The device's store: .sqlite")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Local port for the device's own use; by default, any free one."
)
@click.option(
    "--min-messages",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Minimum number of messages a device needs to take part.",
)
@click.option(
    "--only-when", multiple=True, type=click.Choice(["charging", "idle"]), help="Take part only in this state."
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="How long to wait for a server that does not answer yet, in seconds.",
)
def join_command(
    folder: str, data: Path, port: int | None, min_messages: int, only_when: tuple[str, ...], wait: float
) -> None:
    """Run as a device until stopped.

    The first time, a key is made in DIR/nodes/device-N, and the server must admit it; on the server's own machine it is
    admitted at once.
    """
    from fedgram.deployment.checks import check_free, check_reachable, once_reachable
    from fedgram.deployment.flower.control import admit
    from fedgram.deployment.flower.processes import start_supernode
    from fedgram.deployment.flower.programs import require_flower
    from fedgram.deployment.folder import open_folder
    from fedgram.deployment.key_list import admit_keys
    from fedgram.deployment.keys import compressed_key, free_port, read_public_key, write_device_key
    from fedgram.deployment.restarts import keep_running, log_of, single_instance, why_refused
    from fedgram.deployment.rotating_log import rotating_log
    from fedgram.deployment.store import open_store

    require_flower()
    home, store = open_folder(folder), open_store(data)
    if not (home.app / "pyproject.toml").is_file():
        raise InputError(home.app, "is missing", remedy="copy it from the server's folder")
    if port:
        check_free("127.0.0.1", port, "name another with --port")
    once_reachable(lambda: check_reachable(home), wait)
    own = home.node(store.number)
    write_device_key(own)
    if home.config.tls and home.server_pair.is_file():
        once_reachable(lambda: admit(home, read_public_key(own / "key.pub"), f"device-{store.number}"), wait)
    elif not home.config.tls and home.server.is_dir():  # on this machine alone, where nobody is registered
        admit_keys(home.server, [compressed_key(read_public_key(own / "key.pub"))])
    hooks, path = ",".join(only_when), log_of(own / "log")
    with single_instance(own, f"device {store.number} has joined"), rotating_log(path) as log:
        click.echo(f"device {store.number} joins {home.address}; stop it with Ctrl-C", err=True)
        keep_running(
            lambda: start_supernode(
                home, store, port=port or free_port(), min_messages=min_messages, hooks=hooks, log=log
            ),
            lambda: why_refused(home, store.number),
            path,
        )


@group.command(
    "status",
    examples=[
        "fedgram federation status fed",
        "fedgram federation status fed --json",
    ],
)
@folder_argument
@json_option
def status_command(folder: str, as_json: bool) -> None:
    """Show the devices, the progress of the rounds, the privacy budget spent, and how many devices have which model."""
    from fedgram.deployment.checks import UnreachableError
    from fedgram.deployment.flower.control import nodes
    from fedgram.deployment.folder import open_folder
    from fedgram.deployment.journal import read_privacy, read_status
    from fedgram.deployment.published import models_on_devices

    home = open_folder(folder)
    models = models_on_devices(home.server)
    try:
        found: list[dict[str, Any]] | None = nodes(home)
    except UnreachableError:
        found = None
    status = read_status(home.server)
    privacy, spent = read_privacy(home.server)
    if as_json:
        show({"serving": found is not None, "nodes": found or [], **privacy, "models": models, **status}, as_json)
        return
    totals = status.get("totals", {})
    by_status = Counter(node["status"] for node in found or [])
    lines = {
        "serving": found is not None,
        "nodes": ", ".join(f"{n} {name}" for name, n in by_status.items()) or "none",
        "task": status.get("task", "none"),
        "state": status.get("state", "–"),
        "round": f"{status.get('round', 0)}" + (f" of {rounds}" if (rounds := status.get("rounds")) else ""),
        "committed": status.get("rounds_committed", 0), "abandoned": status.get("rounds_abandoned", 0),
        **{name: totals.get(name, 0) for name in ("invited", "reports", "late", "bytes_sent", "bytes_received")},
        **{name: ", ".join(f"{n} {why}" for why, n in totals.get(name, {}).items()) or "none"
           for name in ("failed", "refused")},
        "epsilon": spent,
        "models": ", ".join(f"{m['devices']} with version {m['version']}" for m in models) or "none published",
    }  # fmt: skip
    show(lines, as_json)


@group.command(
    "run",
    examples=[
        "fedgram federation run fed config.toml -w run --until unigrams",
        "fedgram federation run fed config.toml -w run --dry-run",
    ],
)
@folder_argument
@click.argument("config", metavar="CONFIG.toml|PRESET")
@click.option("-w", "--workspace", required=True, type=click.Path(path_type=Path), help="Folder for the run's files.")
@population_options
@click.option(
    "--shard", "shards", multiple=True, metavar="DIR", type=click.Path(path_type=Path),
    help="A further server that shares the rounds: its federation's folder, or a folder shared with its machine "
    "(see `federation collect`). May be given several times.",
)  # fmt: skip
@running_options
def run_command(
    folder: str, config: str, workspace: Path, shards: tuple[Path, ...], as_json: bool, **options: Any
) -> None:
    """Run all stages as `fedgram run` does, with word counts, networks and n-gram counts from the federation's devices.

    Without users in the configuration, devices of the dev arm follow the training and choose the final model, and
    devices of the test arm evaluate it; the server needs a supplement and a whitelist.

    It is run on the server's machine, while `federation serve` runs there. An interrupted run resumes, even if the
    server was killed; after a change, only the affected stages run again. With --shard several servers collect a share
    of every round each, and their sums are added.
    """
    from fedgram.deployment.federation_devices import Servers
    from fedgram.deployment.flower.processes import wait_until_served
    from fedgram.deployment.flower.programs import require_flower
    from fedgram.deployment.folder import CONFIG, open_folder
    from fedgram.deployment.stages import on_federation
    from fedgram.pipeline.config import read_run_config

    require_flower()
    home = open_folder(folder)
    others = tuple(open_folder(path) if (path / CONFIG).is_file() else _shared_folder(path) for path in shards)
    read = read_run_config(config, given_files(options))
    change = on_federation(Servers(home, others), read)
    if options.pop("dry_run"):
        _show_dry_run(read, workspace, change, as_json=as_json, **options)
        return
    for near in (home, *(other for other in others if not isinstance(other, Path))):
        wait_until_served(near, seconds=30)
    execute(read, workspace, dry_run=False, as_json=as_json, change=change, **options)


def _show_dry_run(
    config: "RunConfig", workspace: Path, change: "Change", *, until: str | None, compute: "Compute", as_json: bool
) -> None:
    """Say what would be run; nobody knows for how long a stage waits for devices that has never run."""
    from fedgram.deployment.stages import stages_that_ask
    from fedgram.pipeline.estimates import estimate_seconds
    from fedgram.pipeline.run import plan_pipeline
    from fedgram.pipeline.stages import stage_names

    check_extras("this run", *extras_of(config, until, workspace))
    stage_names(config, until)
    plan, asking = plan_pipeline(config, workspace, until=until, change=change), stages_that_ask(change, config)
    estimates = {name: n for name, n in estimate_seconds(config, compute).items() if name not in asking}
    show_plan(plan, estimates, as_json)
    waiting = [p.stage.name for p in plan if p.reason is not None and p.seconds is None and p.stage.name in asking]
    if waiting and not as_json:
        click.echo(f"without an estimate, because they wait for devices: {', '.join(waiting)}")


def _shared_folder(path: Path) -> Path:
    if not path.is_dir():
        raise InputError(path, "is neither a federation's folder nor a folder that is shared", remedy="check --shard")
    return path


@group.command(
    "collect",
    examples=[
        "fedgram federation collect fed shared",
        "fedgram federation collect fed /mnt/shared",
    ],
)
@folder_argument
@click.argument("shared", metavar="SHARED", type=click.Path(exists=True, file_okay=False, path_type=Path))
def collect_command(folder: str, shared: Path) -> None:
    """Collect a share of the rounds of a run on another machine, until stopped.

    SHARED is a folder that both machines can write to, for instance over NFS. Run this beside `federation serve`; the
    other machine runs `fedgram federation run … --shard SHARED`. Only sums pass through SHARED.
    """
    from fedgram.deployment.flower.processes import wait_until_served
    from fedgram.deployment.flower.programs import require_flower
    from fedgram.deployment.folder import open_folder
    from fedgram.deployment.server_app_runs import keep_collecting

    require_flower()
    home = open_folder(folder)
    wait_until_served(home, seconds=30)
    click.echo(f"collecting for runs in {shared}; stop it with Ctrl-C", err=True)
    keep_collecting(home, shared)
