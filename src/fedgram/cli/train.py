"""`fedgram train`: FederatedAveraging of a network over simulated devices."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import click

from fedgram.cli.console import json_option, output_path, secure_option, show, steps
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.parent import end_with
from fedgram.core.storage import atomic_write
from fedgram.neural.new_network import check_start, coding_for, device_option, network_shape, presets_table

_LOOK, _LAST_WORDS = 0.1, 10.0  # seconds


def _list_presets(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(presets_table())
        ctx.exit()


@click.command("train")
@click.option(
    "--list-presets",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_presets,
    help="Print the networks of Table 2, with their sizes here and in the paper.",
)
@click.option("--users", required=True, help="Population: .parquet or .arrow")
@click.option("--unigrams", required=True, help="Word frequencies, for the vocabulary: .unigrams, or word, tab, count.")
@click.option("--pieces", help="Word pieces, for a word-piece network.")
@click.option("--preset", default="W_30K", show_default=True, help="Network; see --list-presets.")
@click.option("--start", help="Network to start from, such as one of `fedgram pretrain`.")
@click.option("--rounds", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--clients-per-round", type=click.IntRange(1), default=500, show_default=True)
@click.option(
    "--over-selection", type=click.FloatRange(1), default=1.3, show_default=True, help="Devices asked a report needed."
)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.1, show_default=True)
@secure_option
@click.option("--client-lr", type=float, default=0.5, show_default=True)
@click.option("--rows", type=click.IntRange(1), default=6, show_default=True, help="Rows of a device's batch.")
@click.option(
    "--length", type=click.IntRange(2), default=21, show_default=True, help="Longest sentence, its end included."
)
@click.option(
    "--epochs", type=click.IntRange(1), default=1, show_default=True, help="Passes a device makes in a round."
)
@click.option(
    "--max-sentences",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Sentences that a device trains on in a round, at most.",
)
@click.option("--weighting", type=click.Choice(["sentences", "uniform"]), default="sentences", show_default=True)
@click.option(
    "--update-norm", type=float, default=1.0, show_default=True,
    help="Limit on the norm of a device's change, which is scaled down to it; inf means no limit.",
)  # fmt: skip
@click.option(
    "--server-rule", type=click.Choice(["nesterov", "momentum", "adam"]), default="nesterov", show_default=True
)
@click.option("--server-lr", type=float, default=1.0, show_default=True)
@click.option("--server-momentum", type=float, default=0.9, show_default=True)
@click.option(
    "--schedule",
    type=click.Choice(["constant", "linear", "cosine"]),
    default="constant",
    show_default=True,
    help="How the server's learning rate falls over the rounds.",
)
@click.option(
    "--client-schedule", type=click.Choice(["constant", "linear", "cosine"]), default="constant", show_default=True
)
@click.option(
    "--warmup", type=click.IntRange(0), default=0, show_default=True, help="Rounds in which the server's rate rises."
)
@click.option(
    "--evaluate-every", type=click.IntRange(1), default=10, show_default=True, help="Rounds between dev scores."
)
@click.option(
    "--dev-users", type=click.IntRange(0), default=100, show_default=True, help="Dev users to score on; 0 for none."
)
@click.option("--patience", type=click.IntRange(1), help="Stop after so many dev scores without progress in SLL^e.")
@click.option("--checkpoint-every", type=click.IntRange(1), default=1, show_default=True)
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint of this output.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Processes that share the devices of a round; 0: one a core, or one with a GPU.",
)
@device_option
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("-o", "--output", required=True, callback=output_path, help="Network to write: .safetensors")
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), help="Folder for the curves, as PNG and JSON."
)
@json_option
def command(**options: Any) -> None:
    """Train a network on devices that keep their text.

    In every round some devices train the server's network on their own sentences and send the change; the server moves
    along the mean. Of the rounds that were scored, the one with the best SLL^e on dev users is written; without dev
    users, the last. A checkpoint is kept in OUTPUT.checkpoints. With several GPUs or machines, start it with torchrun.
    """
    from fedgram.neural.torch_devices import choose_device

    device = choose_device(options["device"])
    alone = device.type != "cpu" or options["secure_aggregation"]
    workers = options["workers"] or (1 if alone else os.cpu_count() or 1)
    if workers > 1 and "RANK" not in os.environ:
        _start_workers(workers)
        return
    if parent := os.environ.get("FEDGRAM_PARENT"):
        end_with(int(parent))
    _train(str(device), options)


def _start_workers(count: int) -> None:
    """Run the command in several processes, which meet through a file and talk on this machine alone."""
    with tempfile.TemporaryDirectory(prefix="fedgram-") as folder:
        common = {**os.environ, "WORLD_SIZE": str(count), "FEDGRAM_RENDEZVOUS": f"file://{folder}/meet",
                  "FEDGRAM_PARENT": str(os.getpid()),
                  "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"), "OMP_NUM_THREADS": "1"}  # fmt: skip
        arguments = [sys.executable, "-m", "fedgram", *click.get_current_context().find_root().obj]
        running = [
            subprocess.Popen(
                arguments, env={**common, "RANK": str(rank)}, stdout=None if rank == 0 else subprocess.DEVNULL,
                stderr=None if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(count)
        ]  # fmt: skip
        try:
            code = _await_first(running)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(_LAST_WORDS)
                except subprocess.TimeoutExpired:  # one that waits for others in torch does not hear of it
                    process.kill()
                    process.wait()
    if code:
        raise click.exceptions.Exit(code)


def _await_first(running: "list[subprocess.Popen[bytes]]") -> int:
    """The exit code of the first process, which speaks for all, also of what ends them all.

    It would wait for ever for another one that was lost before they met.
    """
    while (code := running[0].poll()) is None:
        if lost := next((process.returncode for process in running[1:] if process.poll()), 0):
            try:
                return running[0].wait(_LAST_WORDS)
            except subprocess.TimeoutExpired:
                how = f"ended with code {lost}" if lost > 0 else f"was ended by signal {-lost}"
                raise FedgramError(f"a worker {how}; go on with --resume, or with fewer --workers") from None
        sleep(_LOOK)
    return code


def _train(device: str, options: dict[str, Any]) -> None:
    import torch

    from fedgram.federated.averaging import ServerStep
    from fedgram.federated.cohort import RoundPlan
    from fedgram.federated.job import Job
    from fedgram.federated.rounds import RunOptions
    from fedgram.federated.secure.settings import SecureSettings
    from fedgram.federated.simulation import SimulatedFleet
    from fedgram.neural.local_training import LocalTraining
    from fedgram.neural.model import initial_weights
    from fedgram.neural.network import Network, as_arrays, read_network, write_network
    from fedgram.neural.ranks import join_ranks
    from fedgram.neural.scoring import text_to_score
    from fedgram.text.population import open_population
    from fedgram.training.fedavg_task import FederatedAveraging, Schedule, TrainingPlan
    from fedgram.training.federated_training import Following, Moment, train

    began, output = perf_counter(), options["output"]
    rounds = options["rounds"]
    if device == "cpu":
        torch.set_num_threads(1)
    server = ServerStep(options["server_rule"], options["server_lr"], options["server_momentum"])
    plan = TrainingPlan(
        LocalTraining(options["client_lr"]), options["rows"], options["length"], options["epochs"],
        options["max_sentences"], options["weighting"], options["update_norm"], server,
        Schedule(options["client_schedule"], rounds), Schedule(options["schedule"], rounds, options["warmup"]),
    )  # fmt: skip
    ranks = join_ranks()
    try:
        with steps() as step:
            people = open_population(options["users"], on_rows=step.begin(f"Reading {options['users']}"))
            preset = options["preset"]
            coding = coding_for(preset, options["unigrams"], options["pieces"])
            shape = network_shape(preset, coding)
            if options["start"]:
                given = read_network(options["start"])
                check_start(options["start"], given, preset, coding)
                start, preset = given.weights, given.about.get("preset", preset)
            else:
                start = as_arrays(initial_weights(shape, seed=options["seed"]))
            task = FederatedAveraging(shape, start, plan, coding, device)
            job = Job(task, options["seed"])
            _check_population(people, coding, options["users"])
            fleet = SimulatedFleet(job, people, people.clients("train"), dropout=options["dropout"], ranks=ranks)
            dev_users = people.clients("dev")[: options["dev_users"]]
            dev = text_to_score(coding, people, dev_users) if len(dev_users) else None
            advance = step.begin("Training", rounds)

            def on_round(moment: Moment) -> None:
                sll = f", SLL^e {moment.scores.sll_e:.2f}" if moment.scores else ""
                rate = f"{moment.tokens_per_second:,.0f} tokens/s"
                step.describe(f"Round {moment.round}/{rounds}: loss {moment.loss:.3f}{sll}, {rate}")
                advance(1)

            secure = SecureSettings() if options["secure_aggregation"] else None
            plan_of_rounds = RoundPlan(options["clients_per_round"], options["over_selection"])
            result = train(
                job, fleet, RunOptions(rounds, plan_of_rounds, secure, options["checkpoint_every"]), dev=dev,
                following=Following(options["evaluate_every"], options["patience"]), ranks=ranks,
                folder=Path(f"{output}.checkpoints"), resume=options["resume"],
                belongs_to={"dropout": options["dropout"]}, on_round=on_round,
            )  # fmt: skip
    finally:
        ranks.close()
    if ranks.rank:
        return
    story = result.story
    rounds_done = {"rounds": len(story["loss"]), "best_round": story["best_round"]}
    about = json.loads(json.dumps({"preset": preset, **rounds_done, "plan": plan.fields()}))
    write_network(output, Network(shape, result.weights, coding, about))
    if options["plots"]:
        _draw(options["plots"], preset, story)
    best = next((p for p in story["dev"] if p["round"] == story["best_round"]), None)
    seconds = perf_counter() - began
    summary = {
        "network": str(output), "preset": preset, "parameters": shape.parameters(),
        **rounds_done, "loss": story["loss"][-1],
        **{f"dev_{k}": v for k, v in (best or {}).items() if k != "round" and v is not None},
        **{k: story[k] for k in ("reports", "empty")}, "refused": sum(story["refused"].values()),
        **(_secure_costs(story) if options["secure_aggregation"] else {}), "tokens": story["targets"],
        "seconds": round(seconds, 3),
    }  # fmt: skip
    show({**summary, "curve": story["dev"]} if options["as_json"] else summary, options["as_json"])


def _secure_costs(story: Mapping[str, Any]) -> dict[str, int]:
    """What became of secure rounds."""
    traffic = {"bytes_up": story["bytes_received"], "bytes_down": story["bytes_sent"]}
    return {"abandoned_rounds": story["abandoned"], **traffic}


def _check_population(people: Any, coding: Any, users: str) -> None:
    if not len(people.clients("train")):
        raise InputError(users, "has no users in the train split", remedy="check the column `split`")
    if not (coding.codes(people.words).values > 0).any():
        raise InputError(users, "holds no word of the vocabulary", remedy="check the language of --unigrams")


def _draw(folder: Path, name: str, story: Mapping[str, Any]) -> None:
    from fedgram.report.figures import draw_likelihood

    if not story["dev"]:
        raise FedgramError("there are no dev scores to draw; give --dev-users")
    folder.mkdir(parents=True, exist_ok=True)
    draw_likelihood({name: [(p["round"], p["sll_e"]) for p in story["dev"]]}, folder / "likelihood.png", chosen=[name])
    with atomic_write(folder / "likelihood.json") as file:
        file.write(json.dumps({name: {"dev": story["dev"], "loss": story["loss"]}}).encode())
