"""The refit under privacy: top-1 and perplexity over ε and the size of the population that the noise is scaled to.

    python -m benchmarks.private_refit measure MODEL.ngram --users users.parquet --public A_W.ngram --save NAME
        [--workers 16] [--split dev] [--privacy dp threshold none] [--network-devices 2 3 5 10] [--epsilon 1 3.42 8]
        [--norm 300] [--outliers 0.1]
        [--populations 0 100_000 1_000_000 10_000_000]
    python -m benchmarks.private_refit show benchmarks/results/NAME.json … -o docs/results

MODEL is any n-gram model that the server has: `A_W_wide.ngram` of a run, distilled from its network, or `A_W.ngram`,
that of the supplement. The users of a real population are few, so each stands for many: the noise is what it would be
in a population of the given size (docs/privacy.md: simulated); 0 is the number of users that there are. PUBLIC is the
model of public text, whose n-grams stay with the threshold. Noise is drawn
from a seed, so that the table is repeatable. Users of `train` count, and those of the split are measured. `show` prints
the table, and draws privacy-NAME.png.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import save

from fedgram.automata.budget import Budget
from fedgram.automata.lowercase import lowercase_model
from fedgram.automata.model import NGramModel, renormalize
from fedgram.distill.refit.refit import RefitOptions, refit
from fedgram.evaluate.comparison import evaluate
from fedgram.formats.artefact import read_ngram
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.normalize import uncase
from fedgram.text.population import Users, open_population

COLUMNS = ("top1", "top3", "perplexity")
DELTAS = {100_000: 1e-7, 1_000_000: 1e-8, 10_000_000: 1e-10}  # else a hundredth of 1/population
Row = dict[str, Any]


def settings(given: argparse.Namespace, devices: int) -> Iterator[tuple[Row, PrivacyOptions]]:
    """Every cell of the table, with what it is."""
    for protection in given.privacy:
        if protection == "none":
            yield {"refit": "none"}, PrivacyOptions("none")
        for least in given.network_devices if protection == "threshold" else ():
            yield (
                {"refit": f"threshold {given.min_devices}, network {least}"},
                PrivacyOptions("threshold", given.min_devices, least),
            )
        if protection != "dp":
            continue
        for population in given.populations:
            for epsilon in given.epsilon:
                people = population or devices
                delta = DELTAS.get(people, 0.01 / people)
                about = {"refit": "dp", "population": people, "epsilon": epsilon, "delta": delta}
                yield about, PrivacyOptions("dp", epsilon=epsilon, delta=delta, simulated=people, noise_seed=0)


def figures(model: NGramModel, users: Users) -> Row:
    measured = evaluate({"model": model}, users).models["model"]
    return {"n-grams": model.topology.arcs} | {name: round(measured[name]["value"], 2) for name in COLUMNS}


def prior_of(given: argparse.Namespace) -> NGramModel:
    """The model in lower case, as devices count."""
    model = read_ngram(given.model)
    return lowercase_model(model) if any(uncase(w) != w for w in model.vocabulary.words) else renormalize(model)


def cell(given: argparse.Namespace, case: tuple[Row, PrivacyOptions]) -> Row:
    """One refit, measured."""
    began, people, (about, privacy) = perf_counter(), open_population(given.users), case
    options = RefitOptions(prior=given.prior, norm=given.norm, outliers=given.outliers)
    budget = Budget(max_ngrams=given.max_ngrams)
    public = read_ngram(given.public) if given.public else None
    result = refit(prior_of(given), people.train, options, privacy=privacy, public=public, budget=budget)
    found = figures(result.uncased, people.users(given.split))
    return {**about, "counted": result.counted.topology.arcs, **found, "seconds": round(perf_counter() - began)}


def measure(given: argparse.Namespace) -> None:
    people, budget = open_population(given.users), Budget(max_ngrams=given.max_ngrams)
    users = people.users(given.split)
    prior = budget.within(prior_of(given), expected_histories=True)
    rows: list[Row] = [{"refit": "prior", "model": given.model.name, "split": given.split, **figures(prior, users)}]
    print(rows[0], flush=True)
    cases = list(settings(given, len(people.train)))
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for row in pool.map(partial(cell, given), cases):
            rows.append(row)
            print(row, flush=True)
    if given.save:
        save(given.save, rows)


def show(given: argparse.Namespace) -> None:
    for path in given.results:
        rows: list[Row] = json.loads(path.read_text("utf-8"))
        print(f"\n{path.stem}\n\n{table(rows)}")
        if given.output:
            draw(rows, given.output / f"privacy-{path.stem}.png")


def table(rows: list[Row]) -> str:
    """Top-1 and perplexity by population and ε, as Markdown; then the other refits, and the worst cell."""
    noisy, others = ([r for r in rows if (r["refit"] == "dp") == is_dp] for is_dp in (True, False))
    by = {(r["population"], r["epsilon"]): f"{r['top1']:.2f} / {r['perplexity']:.1f}" for r in noisy}
    spent = sorted({r["epsilon"] for r in noisy})
    lines = [" | ".join(["| population (δ)", *(f"ε = {e:g}" for e in spent)]) + " |", "|---" * (len(spent) + 1) + "|"]
    for people, delta in sorted({(r["population"], r["delta"]) for r in noisy}):
        lines.append(" | ".join([f"| {people:,} ({delta:.2g})", *(by.get((people, e), "–") for e in spent)]) + " |")
    lines += ["", *(f"{r['refit']}: {r['top1']:.2f} / {r['perplexity']:.1f}" for r in others)]
    if noisy:
        worst = min(r["top1"] for r in noisy) - rows[0]["top1"]
        lines.append(f"the worst cell against the prior: {worst:+.2f} points")
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """Top-1 over the population, one line per ε; the prior and the refit without noise as dashed lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for epsilon in sorted({r["epsilon"] for r in rows if r["refit"] == "dp"}):
        points = sorted((r["population"], r["top1"]) for r in rows if r.get("epsilon") == epsilon)
        axes.plot(*zip(*points, strict=True), marker="o", label=f"ε = {epsilon:g}")
    for row in rows:
        if row["refit"] != "dp":
            axes.axhline(row["top1"], linestyle="--", color="0.5")
            axes.annotate(
                row["refit"], (1.0, row["top1"]), xycoords=("axes fraction", "data"), xytext=(4, -3),
                textcoords="offset points", fontsize=8,
            )  # fmt: skip
    axes.set(xscale="log", xlabel="users that the noise is scaled to", ylabel="top-1, %")
    axes.legend(loc="lower right")
    FigureCanvasAgg(figure).print_figure(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(required=True)
    one = ways.add_parser("measure")
    one.add_argument("model", type=Path)
    one.add_argument("--users", required=True)
    one.add_argument("--public", type=Path)
    one.add_argument("--split", default="dev")
    one.add_argument("--privacy", nargs="+", default=["none", "threshold", "dp"])
    one.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.42, 8.0])
    one.add_argument("--populations", nargs="+", type=int, default=[0, 100_000, 1_000_000, 10_000_000])
    one.add_argument("--norm", type=float)
    one.add_argument("--outliers", type=float, default=RefitOptions().outliers)
    one.add_argument("--prior", type=float, default=RefitOptions().prior)
    one.add_argument("--min-devices", type=int, default=10)
    one.add_argument("--network-devices", nargs="+", type=int, default=[2])
    one.add_argument("--max-ngrams", type=int, default=1_500_000)
    one.add_argument("--workers", type=int, default=1)
    one.add_argument("--save")
    one.set_defaults(way=measure)
    other = ways.add_parser("show")
    other.add_argument("results", type=Path, nargs="+")
    other.add_argument("-o", "--output", type=Path)
    other.set_defaults(way=show)
    given = parser.parse_args()
    given.way(given)


if __name__ == "__main__":
    main()
