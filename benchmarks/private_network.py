"""Networks trained with noise, and how to divide a privacy budget between a network and the counts of the refit.

    python -m benchmarks.private_network noise R_W_start.safetensors --users users.parquet --ratio 1e-4 3e-4
        [--config en_us] [--with update_norm=1.0 …] [--save NAME]
    python -m benchmarks.private_network split R_W_start.safetensors --users users.parquet --external A_W.ngram
        -o FOLDER --share 0.1 0.35 [--epsilon 3.42] [--delta 1e-8] [--population 1_000_000] [--config en_us]
        [--with …] [--save NAME]
    python -m benchmarks.private_network show benchmarks/results/NAME.json …

`noise` trains from a run's start network with independent Gaussian noise in every round. The ratio is the standard
deviation of the noise in a coordinate of the mean update, divided by the norm limit: the noise multiplier divided by
the size of cohorts. `split` gives a share of the budget (as zCDP) to the network, with BLT noise, distills it, and
refits the result with the rest; the users stand for a population of the given size. The settings are those of the
configuration's words.training, but for what `--with` changes. All figures are of dev users.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import save

from fedgram.core.compute import Compute
from fedgram.core.toml_config import from_table
from fedgram.distill.distillation import Running, distill
from fedgram.distill.refit.refit import refit
from fedgram.evaluate.comparison import evaluate
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.neural.network import read_network, write_network
from fedgram.pipeline.config import RunConfig, read_run_config
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import open_population
from fedgram.training.noise_plan import with_noise
from fedgram.training.options import FedAvgOptions
from fedgram.training.train_federated import TrainedNetwork, train_federated

Row = dict[str, Any]


def settings(given: argparse.Namespace) -> tuple[RunConfig, FedAvgOptions, Row]:
    """The configuration, its training of words as changed, and the changes."""
    files = {("population", name): given.users for name in ("users", "supplement", "whitelist")}  # not read here
    config, changes = read_run_config(given.config, files), dict(given.changes)
    training = replace(config.words.training, weighting="uniform", dropout=0.0, noise_seed=0)
    return config, replace(training, **changes), changes


def train(given: argparse.Namespace, options: FedAvgOptions) -> TrainedNetwork:
    return train_federated(
        read_network(given.start), open_population(given.users), options, seed=given.seed, compute=Compute("auto"),
    )  # fmt: skip


def best(network: TrainedNetwork) -> Row:
    """The round that was kept, as dev users see it."""
    point = next(p for p in network.history["dev"] if p["round"] == network.history["best_round"])
    return {"round": point["round"], "top1": round(point["top1"], 2), "perplexity": round(point["perplexity"], 1)}


def noise(given: argparse.Namespace) -> None:
    _, options, changes = settings(given)
    rows: list[Row] = []
    for ratio in given.ratio:
        began = perf_counter()
        devices = options.devices_per_round
        noisy = replace(options, noise="poisson", noise_multiplier=ratio * devices) if ratio else options
        network = train(given, noisy)
        about = {"rounds": options.rounds, "devices": devices, **best(network)}
        rows.append({"ratio": ratio, **changes, **about, "seconds": round(perf_counter() - began)})
        print(rows[-1], flush=True)
        keep(given, rows)


def split(given: argparse.Namespace) -> None:
    config, options, changes = settings(given)
    people, external, rows = open_population(given.users), read_ngram(given.external), list[Row]()
    whole = PrivacyOptions(
        "dp", epsilon=given.epsilon, delta=given.delta, simulated=given.population, noise_seed=given.seed
    )  # fmt: skip
    given.output.mkdir(parents=True, exist_ok=True)
    for share in given.share:
        began, prior = perf_counter(), external
        row: Row = {"share": share, **changes}
        if share:
            noisy = with_noise(options, whole.part(share), len(people.train))
            network = train(given, noisy)
            write_network(given.output / f"network-{share:g}.safetensors", network)
            row |= {"noise multiplier": round(noisy.noise_multiplier, 3), "network": best(network)}
            print(row, flush=True)
            models = distill(
                network, external, config.distillation, budget=config.budget, room=config.distillation.room,
                seed=given.seed, running=Running(Compute("auto")),
            )  # fmt: skip
            assert models.wide is not None
            prior = models.wide
            write_ngram(prior, given.output / f"wide-{share:g}.ngram")
        result = refit(
            prior, people.train, config.refit, privacy=whole.part(1 - share), casing=external, public=external,
            budget=config.budget, seed=given.seed,
        )  # fmt: skip
        for name, model in (("distilled", prior), ("refitted", result.uncased)):
            found = evaluate({name: model}, people.dev).models[name]
            row[name] = {measure: round(found[measure]["value"], 2) for measure in ("top1", "perplexity")}
        rows.append({**row, "seconds": round(perf_counter() - began)})
        print(rows[-1], flush=True)
        keep(given, rows)


def keep(given: argparse.Namespace, rows: list[Row]) -> None:
    if given.save:
        save(given.save, rows)


def show(given: argparse.Namespace) -> None:
    for path in given.results:
        for row in json.loads(path.read_text("utf-8")):
            print("| " + " | ".join(f"{name} {value}" for name, value in row.items()) + " |")


def change(text: str) -> tuple[str, Any]:
    """A setting of the training, and its value."""
    name, _, value = text.partition("=")
    try:
        kind = type(getattr(FedAvgOptions(), name))
        return name, getattr(from_table({name: kind(value)}, FedAvgOptions), name)
    except (AttributeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text} is no setting of a training: {error}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(required=True)
    noising, splitting, showing = (ways.add_parser(way.__name__) for way in (noise, split, show))
    for way, function in ((noising, noise), (splitting, split)):
        way.add_argument("start", type=Path)
        way.add_argument("--users", required=True)
        way.add_argument("--config", default="en_us")
        way.add_argument("--with", dest="changes", metavar="SETTING=VALUE", type=change, action="append", default=[])
        way.add_argument("--seed", type=int, default=7)
        way.add_argument("--save")
        way.set_defaults(way=function)
    noising.add_argument("--ratio", type=float, nargs="+", required=True)
    splitting.add_argument("--external", required=True)
    splitting.add_argument("--share", type=float, nargs="+", required=True)
    splitting.add_argument("--epsilon", type=float, default=3.42)
    splitting.add_argument("--delta", type=float, default=1e-8)
    splitting.add_argument("--population", type=int, default=1_000_000)
    splitting.add_argument("-o", "--output", type=Path, required=True)
    showing.add_argument("results", type=Path, nargs="+")
    showing.set_defaults(way=show)
    given = parser.parse_args()
    given.way(given)


if __name__ == "__main__":
    main()
