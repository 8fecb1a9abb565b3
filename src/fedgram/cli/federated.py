"""`fedgram federated`: what devices do together: word frequencies, training, and the refit; simulated here."""

import json
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.automata.budget import Budget
from fedgram.cli.commands import Group, Option, hint
from fedgram.cli.console import Steps, show, steps, warn
from fedgram.cli.discover import command as discover_command
from fedgram.cli.federated_evaluate import command as evaluate_command
from fedgram.cli.network import print_presets
from fedgram.cli.parameters import (
    json_option,
    ledger_options,
    model_argument,
    model_input,
    model_output_option,
    output_option,
    output_path,
    pieces_option,
    plots_option,
    preset_option,
    seed_option,
    split_option,
    unigrams_option,
    users_option,
    with_suffix,
)
from fedgram.cli.settings import settings_options
from fedgram.cli.sizes import size
from fedgram.cli.unigrams import group as unigrams_group
from fedgram.core.checkpoint import OtherWorkError
from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.lazy import lazy
from fedgram.core.settings import Needs
from fedgram.core.storage import atomic_write
from fedgram.distill.refit.refit import RefitOptions, RefittedModel, refit
from fedgram.formats.models import read_model, write_model
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import Population, open_population
from fedgram.text.unigrams import read_unigrams
from fedgram.training.options import FedAvgOptions

_THRESHOLD = Needs("protection", ("threshold",), otherwise="no n-gram has to be public")


@click.group(
    cls=Group,
    examples=[
        "fedgram federated unigrams collect --users users.parquet --whitelist whitelist.txt -o U.unigrams",
        "fedgram federated train --users users.parquet --unigrams U.unigrams --preset W_demo --rounds 10 "
        "--devices-per-round 20 -o R_W.safetensors",
    ],
)
def group() -> None:
    """Collect word frequencies, train networks and count n-grams on simulated devices that keep their text.

    `fedgram federation` does the same on real devices.
    """


group.add_command(unigrams_group, "unigrams")
group.add_command(discover_command)
group.add_command(evaluate_command)


def _list_presets(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Serve an option of earlier versions."""
    if value:
        hint("--list-presets", "fedgram network presets")
        print_presets("--json" in (ctx.find_root().obj or ()))
        ctx.exit()


@group.command(
    "train",
    examples=[
        "fedgram federated train --users users.parquet --unigrams U.unigrams --preset W_demo --rounds 10 "
        "--devices-per-round 20 -o R_W.safetensors",
        "fedgram federated train --users users.parquet --unigrams U.unigrams --preset W_demo --rounds 2 "
        "--dev-users 0 --devices-per-round 10 --secure-aggregation -o masked.safetensors --json",
        "fedgram federated train --users users.parquet --unigrams U.unigrams --preset W_demo --rounds 4 "
        "--devices-per-round 10 --noise blt --noise-multiplier 5 --weighting uniform --simulated 1000000 "
        "--ledger privacy.json -o private.safetensors",
    ],
)
@click.option("--list-presets", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_list_presets)
@users_option
@unigrams_option
@pieces_option
@preset_option
@click.option("--start", help="Network to start from, such as one of `fedgram network pretrain`.")
@settings_options(FedAvgOptions, "options")
@settings_options(Compute, "compute")
@seed_option
@output_option("Network to write: .safetensors", with_suffix(".safetensors", what="a network"))
@click.option(
    "--checkpoint-every", type=click.IntRange(1), default=1, show_default=True, help="Rounds between checkpoints."
)
@click.option("--resume/--restart", default=True, show_default=True, help="Whether to resume from a checkpoint.")
@ledger_options
@plots_option("Folder for the curves, as PNG and JSON.")
@json_option
def train_command(
    users: str, unigrams: str, pieces: str | None, preset: str, start: str | None, options: FedAvgOptions,
    compute: Compute, seed: int, output: Path, checkpoint_every: int, resume: bool, ledger: Any, plots: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Train a network on devices that keep their text.

    In every round some devices train the server's network on their own sentences and send the change. The server
    averages the changes and applies the result to its network. OUTPUT is the round with the best score on dev users
    (SLL^e, the log-likelihood per sentence over known words), or the last round without dev users. Checkpoints are in
    OUTPUT.checkpoints. With several GPUs or machines, start it with torchrun.
    """
    from fedgram.federated.rounds import Checkpointing
    from fedgram.neural.network import read_network, write_network
    from fedgram.neural.new_network import check_start, create_network
    from fedgram.neural.ranks import is_leader
    from fedgram.training.train_federated import train_federated

    began = perf_counter()
    with steps() as step:
        people = _population(users, step)
        network = create_network(preset, read_unigrams(unigrams), pieces=_bytes(pieces), seed=seed)
        if start:
            given = read_network(start)
            check_start(start, given, network)
            network = given
        kept = Checkpointing(Path(f"{output}.checkpoints"), resume, checkpoint_every)
        try:
            trained = train_federated(
                network, people, options, seed=seed, compute=compute, checkpoints=kept, ledger=ledger,
                begin=step.begin,
            )  # fmt: skip
        except OtherWorkError as error:
            remedy = "use the same settings, or start again with --restart"
            raise InputError(error.path, error.problem, remedy=remedy) from None
    if not is_leader():
        return
    write_network(output, trained)
    if plots:
        _draw(plots, preset, trained.history)
    about = {"preset": trained.about.get("preset"), "parameters": trained.shape.parameters()}
    figures = _figures_of_training(trained.history, options)
    result = {"network": str(output), **about, **figures, "seconds": round(perf_counter() - began, 3)}
    show({**result, "curve": trained.history["dev"]} if as_json else result, as_json)


def _population(users: str, step: Steps) -> Population:
    people = open_population(users, on_rows=step.begin(f"Reading {users}"))
    if not len(people.train):
        raise InputError(users, "has no users in the train split", remedy="check the column `split`")
    return people


def _bytes(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _figures_of_training(history: Mapping[str, Any], options: FedAvgOptions) -> dict[str, Any]:
    best: Mapping[str, Any] = next((p for p in history["dev"] if p["round"] == history["best_round"]), {})
    figures = {
        "rounds": len(history["loss"]), "best_round": history["best_round"], "loss": history["loss"][-1],
        **{f"dev_{k}": v for k, v in best.items() if k != "round" and v is not None},
        **{k: history[k] for k in ("reports", "empty")}, "refused": sum(history["refused"].values()),
    }  # fmt: skip
    if options.secure_aggregation:
        traffic = {"bytes_up": history["bytes_received"], "bytes_down": history["bytes_sent"]}
        figures |= {"abandoned_rounds": history["abandoned"], **traffic}
    if "privacy" in history:
        spent = history["privacy"]
        real = {"real_epsilon": spent["real_epsilon"]} if spent["simulated"] else {}
        figures |= {name: spent[name] for name in ("epsilon", "delta", "zcdp", "simulated")} | real
        return {name: value for name, value in figures.items() if name != "loss"}  # it is withheld, as are tokens
    return {**figures, "tokens": history["targets"]}


def _draw(folder: Path, name: str, history: Mapping[str, Any]) -> None:
    draw_likelihood = lazy(".report.figures:draw_likelihood")
    if not history["dev"]:
        raise FedgramError("there are no dev scores to draw; set --dev-users")
    folder.mkdir(parents=True, exist_ok=True)
    curve = [(p["round"], p["sll_e"]) for p in history["dev"]]
    draw_likelihood({name: curve}, folder / "likelihood.png", chosen=[name])
    with atomic_write(folder / "likelihood.json") as file:
        file.write(json.dumps({name: {"dev": history["dev"], "loss": history["loss"]}}).encode())


@group.command(
    "refit",
    examples=[
        "fedgram federated refit A_u.arpa --users users.parquet --public b.arpa -o refit.arpa",
        "fedgram federated refit A_u.arpa --users users.parquet --counts counted --max-ngrams 20000 -o refit.arpa",
        "fedgram federated refit A_u.arpa --users users.parquet --protection dp --simulated 1000000 -o refit.arpa",
    ],
)
@model_argument("model")
@users_option
@split_option("train")
@click.option(
    "--casing",
    callback=model_input,
    help="Cased n-gram model that gives the capitals; by default, MODEL. Devices do not check capitals.",
)
@click.option("--public", cls=Option, needs=(_THRESHOLD,), callback=model_input,
              help="N-gram model of public text: with a threshold, its n-grams stay, whoever typed them.")  # fmt: skip
@settings_options(RefitOptions, "options")
@settings_options(PrivacyOptions, "privacy")
@ledger_options
@settings_options(Budget, "budget", without=["max_words"])
@seed_option
@click.option(
    "--counts", callback=output_path,
    help="File of the devices' counts; if it exists and has the same settings, devices are not asked again.",
)  # fmt: skip
@model_output_option
@json_option
def refit_command(
    model: str, users: str, split: str, casing: str | None, public: str | None, options: RefitOptions,
    privacy: PrivacyOptions, ledger: Any, budget: Budget, seed: int, counts: Path | None, output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Fit MODEL to what simulated devices count on their own text.

    MODEL is an n-gram model that the server has, as `fedgram distill` makes it of a network. Devices mark pairs of
    words in a sketch, from which the server learns those that several devices have. Then they count the n-grams of
    MODEL and these pairs, and in further passes the longer n-grams that became likely. They send sums of at most --clip
    words, and no text. The server fits the model to the counts, with MODEL as the prior, and prunes it. Devices count
    uncased words; a cased MODEL gets its capitals back.

    By default, an n-gram of several words that devices add must be on at least --min-devices devices. One that MODEL
    has must be in the --public model or on at least --network-devices devices, because a network may have learned what
    one user typed; others are dropped. Single words stay. With --protection dp, devices scale their counts down to a
    limit, and the server adds noise to every count.
    """
    began = perf_counter()
    with steps() as step:
        step.begin(f"Reading {model}")
        given, cased, known = read_model(model), *(read_model(path) if path else None for path in (casing, public))
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        refitted = refit(
            given, people.users(split), options, privacy=privacy, casing=cased, public=known, budget=budget,
            seed=seed, counts=counts, ledger=ledger.asked_at(privacy.delta), begin=step.begin,
        )  # fmt: skip
        step.begin(f"Writing {output}")
        write_model(refitted, output)
    seconds = round(perf_counter() - began, 3)
    figures = _figures_of_refit(refitted, as_json)
    show({"model": str(output), **figures, **size(refitted), "seconds": seconds}, as_json)
    if refitted.counted.is_hidden:
        hidden = f"its standard deviation is {refitted.counted.deviation_of_words:,.0f} words"
        remedy = "use a larger population, a larger --epsilon, or another --protection"
        warn(f"the noise hides what devices counted ({hidden}); the model learned little from them; {remedy}")


def _figures_of_refit(refitted: RefittedModel, as_json: bool) -> dict[str, Any]:
    counted, passes = refitted.counted, refitted.counted.passes
    sizes = [round(p["bytes_received"] / max(p["reports"], 1)) for p in passes]
    return {
        "reports": [p["reports"] for p in passes], "rounds": [p["rounds"] for p in passes],
        **({} if refitted.protection == "dp" else {"bytes_per_report": sizes}),  # they depend on what devices typed
        "words_counted" if as_json or not counted.deviation_of_words else "words_counted, with noise": round(
            counted.words
        ),
        "ngrams_counted": counted.topology.arcs, "privacy": refitted.protection,
    }  # fmt: skip
