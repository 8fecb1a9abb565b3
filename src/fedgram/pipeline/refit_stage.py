"""The stage in which devices count n-grams: the federated refit, beyond the paper.

Its prior is A_W_r in lower case. The train users' devices count its n-grams, and those that grow from them, on their
own uncased text, clipped; the server fits the model to the sums (`distill/refit/federated_refit.py`) and gives it the
capitals of A_W. The devices' counts are kept in the stage's folder, so that they are asked once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgram.automata.lowercase import lowercase_model
from fedgram.automata.model import NGramModel
from fedgram.automata.prune import prune_to_size
from fedgram.automata.topology import Topology
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_ngrams import capitalize_model
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.refit.counted_ngrams import counting_settings, read_counted, write_counted
from fedgram.distill.refit.federated_refit import (
    ATTEMPTS,
    CountedNGrams,
    Passes,
    Prior,
    RefitOptions,
    count_on_devices,
    refit_to_counts,
)
from fedgram.distill.refit.ngram_collection import Limits
from fedgram.distill.refit.ngram_growth import Growth
from fedgram.distill.refit.pair_sketch import SketchSize
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Fleets
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.pipeline.config import BudgetConfig, RefitConfig
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.population import open_population

OUTPUTS = ("refit.ngram", "refit_uncased.ngram", "refit.json")
_ROOM = 2  # times as many n-grams are given their capitals as are kept of them


@dataclass(frozen=True, slots=True)
class Asking:
    """How devices are asked to count: which ones, how many in a round, and whether their counts are masked.

    `devices` is how many there are, if that is known.
    """

    fleets: Fleets
    plan: RoundPlan
    masking: SecureSettings | None = None
    devices: int | None = None


def refit(work: Work, config: RefitConfig, budget: BudgetConfig, seed: int) -> None:
    """A_W_r fitted to what simulated devices count."""

    def asking() -> Asking:
        people = open_population(work.read("users.arrow"))
        clients, plan = (
            people.clients("train"),
            RoundPlan(config.devices_per_round, config.over_selection, attempts=ATTEMPTS),
        )
        return Asking(
            lambda job: SimulatedFleet(job, people, clients, dropout=config.dropout, as_bytes=True), plan,
            devices=len(clients),
        )  # fmt: skip

    refit_on(work, config, budget, seed, asking)


def refit_on(
    work: Work, config: RefitConfig, budget: BudgetConfig, seed: int, asking: Callable[[], Asking]
) -> None:  # fmt: skip
    """A_W_r fitted to what devices count, uncased and cased, both within the budget; they are asked once."""
    kept = work.write("counted")
    work.begin("A_W_r in lower case", None)
    prior = lowercase_model(read_ngram(work.read("A_W_r.ngram")))
    asked = asking()
    options = _options(config, _ROOM * budget.ngrams, asked)
    settings = counting_settings(prior, options, seed=seed)
    if not kept.exists():
        write_counted(kept, _count(work, prior, options, seed, asked), settings)
    counted = read_counted(kept, prior, settings)
    work.begin("Refitting", None)
    wide = refit_to_counts(prior, counted, options)
    uncased = _within(wide, budget)
    work.begin("Giving the refitted model its capitals", None)
    casing = casing_of(Capitalizer(read_ngram(work.read("A_W.ngram"))), prior.vocabulary)
    cased = _within(capitalize_model(wide, casing), budget)
    write_ngram(cased, work.write("refit.ngram"))
    write_ngram(uncased, work.write("refit_uncased.ngram"))
    passes = [
        {**p, "bytes_a_report": round(p["bytes_received"] / max(p["reports"], 1))} for p in counted.passes
    ]  # fmt: skip
    ngrams = {"prior": prior, "uncased": uncased, "cased": cased}
    write_json(work.write("refit.json"), {
        "passes": passes, "words_counted": int(counted.count.sum()), "ngrams_counted": counted.topology.arcs,
        "ngrams": {name: model.topology.arcs for name, model in ngrams.items()},
    })  # fmt: skip


def _options(config: RefitConfig, max_ngrams: int, asked: Asking) -> RefitOptions:
    return RefitOptions(
        Limits(config.clip, config.ngram_clip),
        asked.plan,
        SketchSize(bits=config.sketch_bits) if config.pairs else None,
        Growth(passes=config.grow, shortest=3 if config.pairs else 2, order=config.order, least=config.least),
        Prior(visits=config.prior),
        max_ngrams,
        asked.masking,
    )


def _within(model: NGramModel, budget: BudgetConfig) -> NGramModel:
    return prune_to_size(model, budget.ngrams, split_ties=True, expected_histories=True)


def _count(work: Work, prior: NGramModel, options: RefitOptions, seed: int, asked: Asking) -> CountedNGrams:
    advance = work.begin("Asking devices", None)

    def on_pass(what: str, topology: Topology | None) -> None:
        nonlocal advance
        number = f"{topology.arcs:,} " if topology else ""
        advance = work.begin(f"Devices count {number}{what}", asked.devices)

    def tell(event: str, about: Mapping[str, Any]) -> None:
        if event == "round summed":
            advance(about["reports"])

    passes = Passes(asked.fleets, options, seed=seed, folder=work.write("passes"), on_pass=on_pass, tell=tell)
    return count_on_devices(prior, passes, options)
