"""`fedgram privacy`: what noise costs before a run, and what has been spent."""

from math import inf
from pathlib import Path
from typing import Any, Literal, cast

import click

from fedgram.cli.commands import Group
from fedgram.cli.console import show, warn
from fedgram.cli.parameters import json_option
from fedgram.core.errors import FedgramError, InputError

_POSITIVE = click.FloatRange(0, inf, min_open=True)
_COUNT = click.IntRange(1)
_DELTA = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.group(
    cls=Group,
    examples=[
        "fedgram privacy plan --mechanism gaussian --noise 1.82 --delta 1e-10",
        "fedgram privacy plan --population 1000000 --cohort 5000 --rounds 240 --noise 1 --delta 1e-8",
    ],
)
def group() -> None:
    """Plan the noise of a run and show what has been spent: user-level differential privacy."""


@group.command(
    "plan",
    examples=[
        "fedgram privacy plan --population 1000000 --cohort 5000 --rounds 240 --noise 1 --delta 1e-8",
        "fedgram privacy plan --mechanism blt --rounds 2000 --min-separation 400 --epsilon 3.42 --delta 1e-10 --json",
        "fedgram privacy plan --zcdp 0.1506840301548885 --delta 1e-10",
    ],
)
@click.option(
    "--mechanism",
    type=click.Choice(["gaussian", "poisson", "blt"]),
    help="Independent noise, independent noise on randomly sampled cohorts, or correlated (BLT) noise.  "
    "[default: poisson with --population and --cohort, else gaussian]",
)
@click.option("--population", type=_COUNT, help="Number of devices of the population.")
@click.option("--cohort", type=_COUNT, help="Number of devices per round, on average with Poisson sampling.")
@click.option("--rounds", type=_COUNT, default=1, show_default=True, help="Number of sums that are released.")
@click.option("--min-separation", type=_COUNT, default=1, show_default=True,
              help="Minimum number of rounds from one participation of a device to its next.")  # fmt: skip
@click.option("--participations", type=_COUNT, help="Maximum number of rounds per device; by default, all that fit.")
@click.option("--noise", type=_POSITIVE, help="Noise multiplier: standard deviation of the (fresh) noise per norm "
              "limit.")  # fmt: skip
@click.option("--epsilon", type=_POSITIVE, help="ε, in place of --noise: the noise multiplier is found.")
@click.option("--zcdp", type=_POSITIVE, help="ρ of Gaussian events, in place of a mechanism: ε is found.")
@click.option("--delta", type=_DELTA, required=True, help="δ, well below 1 / population.")
@json_option
def plan_command(
    mechanism: str | None, population: int | None, cohort: int | None, rounds: int, min_separation: int,
    participations: int | None, noise: float | None, epsilon: float | None, zcdp: float | None, delta: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Show what noise costs, or how much noise an ε needs; nothing is run.

    The unit of privacy is one user; neighbouring populations differ by one user. BLT noise is given by its fresh noise:
    `sensitivity` is what one user can change in it, `error` the standard deviation of the noise in the sum of all
    rounds per unit of fresh noise. Two trust models are shown: an honest server adds the noise, or every device adds
    its share.
    """
    from fedgram.privacy.blt import Participation
    from fedgram.privacy.planning import PrivacyPlan

    if sum(value is not None for value in (noise, epsilon, zcdp)) != 1:
        raise FedgramError("give one of --noise, --epsilon and --zcdp")
    if zcdp is not None:
        if mechanism not in (None, "gaussian"):
            raise FedgramError("--zcdp is converted for Gaussian events only; leave --mechanism out")
        show(_converted(zcdp, delta), as_json)
        return
    kind = mechanism or ("poisson" if population and cohort else "gaussian")
    taking_part = Participation(rounds, min_separation, participations)
    plan = PrivacyPlan(cast(Literal["gaussian", "poisson", "blt"], kind), taking_part, population, cohort)
    multiplier = noise if noise is not None else plan.multiplier(cast(float, epsilon), delta)
    show(_figures(plan, multiplier, delta, as_json), as_json)
    if kind == "blt" and population and cohort and population < min_separation * cohort:
        warn(f"a population of {population:,} cannot fill cohorts of {cohort:,} at a separation of {min_separation:,}")


def _converted(zcdp: float, delta: float) -> dict[str, Any]:
    from fedgram.privacy.gaussian import epsilon_of_zcdp, multiplier_of_zcdp

    return {
        "epsilon": epsilon_of_zcdp(zcdp, delta), "delta": delta, "zcdp": zcdp, "noise": multiplier_of_zcdp(zcdp)
    }  # fmt: skip


def _figures(plan: Any, multiplier: float, delta: float, as_json: bool) -> dict[str, Any]:
    from fedgram.privacy.accounting import ADJACENCY
    from fedgram.privacy.blt import prefix_errors, sensitivity
    from fedgram.privacy.planning import trust_models

    cost = plan.cost(multiplier, delta)
    unknown = None if as_json else "not known for Poisson sampling"
    figures = {
        "mechanism": plan.mechanism, "rounds": plan.rounds, "noise": multiplier, "epsilon": cost.epsilon,
        "delta": delta, "zcdp": unknown if cost.zcdp is None else cost.zcdp, "adjacency": f"{ADJACENCY} user",
    }  # fmt: skip
    if plan.mechanism == "poisson":
        figures |= {"sampling_probability": plan.sampling_probability}
    else:
        figures |= {"participations": plan.taking_part.most}
    if plan.mechanism == "blt":
        blt = plan.blt
        error, sens = float(prefix_errors(blt, plan.rounds)[-1]), sensitivity(blt, plan.taking_part)
        figures |= {"sensitivity": sens, "error": error, "max_loss": error * sens, "decay": list(blt.decay),
                    "scale": list(blt.scale)}  # fmt: skip
    if plan.cohort is not None:
        figures |= {"noise_of_mean": multiplier / plan.cohort}
    models = trust_models(plan, multiplier, delta)
    if as_json:
        return {**figures, "trust_models": [model._asdict() for model in models]}
    return {**figures, **{model.name: _in_words(model) for model in models}}


def _in_words(model: Any) -> str:
    share = f", of which each device adds {model.share:.4g}" if model.share is not None else ""
    return (
        f"noise {model.noise:.4g} per round{share}, {model.last_sum:.4g} in the sum of all rounds; "
        f"ε = {model.epsilon:.4g}; {model.about}"
    )


@group.command(
    "ledger",
    examples=["fedgram privacy ledger privacy.json", "fedgram privacy ledger privacy.json --delta 1e-8 --json"],
)
@click.argument("file", metavar="FILE")
@click.option(
    "--delta",
    type=_DELTA,
    help="δ; by default, that of the budget, or else the largest that an operation was asked for with.",
)
@json_option
def ledger_command(file: str, delta: float | None, as_json: bool) -> None:
    """Show what was spent of a population's privacy: all operations of a ledger, composed.

    An operation whose noise came from a seed is not private; its ε is what the same noise would give if it were secret.
    """
    from fedgram.privacy.ledger import Ledger, ledger_facts, operations_in_words, total_in_words

    if not Path(file).is_file():
        raise InputError(file, "does not exist", remedy="name the ledger that a run wrote")
    facts = ledger_facts(Ledger.open(file), delta)
    if as_json:
        show(facts, as_json)
        return
    show({"total": total_in_words(facts), **operations_in_words(facts)}, as_json)
