"""The refit under privacy: top-1 and perplexity over ε and the size of the population that the noise is scaled to.

    python -m benchmarks.private_refit MODEL.ngram --users users.parquet [--split dev] [--epsilon 1 3.42 8]
        [--populations 100_000 1_000_000] [--norm S] [--privacy dp threshold none] [--save NAME]

The users of a real population are few, so each stands for many: the noise is what it would be in a population of the
given size (privacy.md: simulated). δ is a hundredth of 1/population. Noise is drawn from a seed, so that the table is
repeatable. Users of `train` count; those of the split are measured.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import save

from fedgram.automata.budget import Budget
from fedgram.automata.lowercase import lowercase_model
from fedgram.automata.model import NGramModel, renormalize
from fedgram.distill.refit.refit import RefitOptions, RefittedModel, refit
from fedgram.evaluate.comparison import evaluate
from fedgram.formats.artefact import read_ngram
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.normalize import uncase
from fedgram.text.population import Users, open_population

COLUMNS = ("top1", "top3", "perplexity")


def settings(given: argparse.Namespace, devices: int) -> Iterator[tuple[str, PrivacyOptions]]:
    """Every cell of the table, by its name."""
    for protection in given.privacy:
        if protection != "dp":
            yield protection, PrivacyOptions(protection, min_devices=given.min_devices)
            continue
        for population in given.populations:
            for epsilon in given.epsilon:
                people = population or devices
                yield (
                    f"dp {people:,} ε {epsilon:g}",
                    PrivacyOptions("dp", epsilon=epsilon, delta=0.01 / people, simulated=people, noise_seed=0),
                )


def figures(model: NGramModel, users: Users) -> dict[str, Any]:
    measured = evaluate({"model": model}, users).models["model"]
    return {name: round(measured[name]["value"], 2) for name in COLUMNS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--users", required=True)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--privacy", nargs="+", default=["none", "threshold", "dp"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.42, 8.0])
    parser.add_argument("--populations", nargs="+", type=int, default=[0, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--norm", type=float)
    parser.add_argument("--prior", type=float, default=3.0)
    parser.add_argument("--min-devices", type=int, default=10)
    parser.add_argument("--max-ngrams", type=int, default=1_500_000)
    parser.add_argument("--save")
    given = parser.parse_args()
    people, model = open_population(given.users), read_ngram(given.model)
    users, budget = people.users(given.split), Budget(max_ngrams=given.max_ngrams)
    prior = lowercase_model(model) if any(uncase(w) != w for w in model.vocabulary.words) else renormalize(model)
    within = budget.within(prior, expected_histories=True)
    rows: list[dict[str, Any]] = [{"refit": "prior", "n-grams": within.topology.arcs, **figures(within, users)}]
    print(rows[0], flush=True)
    options = RefitOptions(prior=given.prior, norm=given.norm)
    for name, privacy in settings(given, len(people.train)):
        began = perf_counter()
        result: RefittedModel = refit(prior, people.train, options, privacy=privacy, budget=budget)
        rows.append(
            {"refit": name, "n-grams": result.uncased.topology.arcs, "counted": result.counted.topology.arcs}
            | figures(result.uncased, users) | {"seconds": round(perf_counter() - began)}
        )  # fmt: skip
        print(rows[-1], flush=True)
    if given.save:
        save(given.save, rows)


if __name__ == "__main__":
    main()
