"""The stage in which devices count n-grams: the federated refit of the network of words. Beyond the paper."""

from collections.abc import Mapping
from typing import Any

from fedgram.automata.budget import Budget
from fedgram.distill.refit.refit import RefitOptions
from fedgram.distill.refit.refit import refit as refit_model
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.pipeline.model_names import WIDE
from fedgram.pipeline.participants import DevicesOf, simulated
from fedgram.pipeline.text_stages import ledger_entries, write_json
from fedgram.pipeline.workspace import Work
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.options import PrivacyOptions

OUTPUTS = ("refit.ngram", "refit_uncased.ngram", "refit.json")


def refit(
    work: Work, options: RefitOptions, privacy: PrivacyOptions, budget: Budget, seed: int, *,
    devices: DevicesOf = simulated, ledger: Ledger | None = None,
) -> None:  # fmt: skip
    """A_W_wide fitted to what devices count, uncased and cased, both within the budget; devices are asked once."""
    prior, external = read_ngram(work.read(WIDE)), read_ngram(work.read("A_W.ngram"))
    ledger = ledger or Ledger()
    model = refit_model(
        prior, devices(work), options, privacy=privacy, casing=external, public=external, budget=budget, seed=seed,
        counts=work.write("counted"), folder=work.write("passes"), ledger=ledger, begin=work.begin,
    )  # fmt: skip
    write_ngram(model, work.write("refit.ngram"))
    write_ngram(model.uncased, work.write("refit_uncased.ngram"))
    counted, passes = model.counted, model.counted.passes
    ngrams = {"prior": prior, "uncased": model.uncased, "cased": model}
    write_json(work.write("refit.json"), {
        "passes": [told_of_pass(counted, privacy) for counted in passes],
        "words_counted": round(counted.words),
        "ngrams_counted": counted.topology.arcs,
        "ngrams": {name: model.topology.arcs for name, model in ngrams.items()}, **ledger_entries(ledger),
    })  # fmt: skip


def told_of_pass(counted: Mapping[str, Any], privacy: PrivacyOptions) -> dict[str, Any]:
    """What is told of a pass. With dp, no sizes in bytes: how long a report is depends on what its device typed."""
    if privacy.is_dp:
        return {name: value for name, value in counted.items() if not name.startswith("bytes")}
    return {**counted, "bytes_per_report": round(counted["bytes_received"] / max(counted["reports"], 1))}
