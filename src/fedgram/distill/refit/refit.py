"""The federated refit: a distilled model fitted to what devices count on their own text. Beyond the paper.

A distilled model knows what its network learned, averaged over histories. Devices can count the n-grams of its
topology on their own text, and the n-grams that these counts make likely (`device_counts.py`). The server then fits the
model to the counts, with the distilled model as the prior (`count_fit.py`), and prunes it to the budget. Devices count
uncased words; a cased model gets its capitals back afterwards.
"""

import shutil
from dataclasses import dataclass, field
from math import inf, sqrt
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedgram.automata.budget import Budget
from fedgram.automata.build import ngrams_of, topology_from_ngrams
from fedgram.automata.counting import express_on
from fedgram.automata.lowercase import lowercase_model
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.prune import prune_to_size
from fedgram.automata.trie import MAX_ORDER
from fedgram.core.arrays import BoolArray, Ragged
from fedgram.core.progress import Begin, silent
from fedgram.core.settings import Between, Limit, Positive, SettingError, chosen, setting
from fedgram.core.storage import content_digest
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_ngrams import capitalize_model
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.refit.asked_ngrams import uncased_ids
from fedgram.distill.refit.clipped_ngrams import Clipping
from fedgram.distill.refit.count_fit import Prior, fit_counts, trusted_counts
from fedgram.distill.refit.count_release import CountRelease, ExactCounts, NoisyCounts
from fedgram.distill.refit.counted_ngrams import counting_settings, read_counted, write_counted
from fedgram.distill.refit.device_counts import CountedNGrams, CountingPlan, Passes, Sketch, count_on_devices
from fedgram.distill.refit.ngram_growth import Growth
from fedgram.distill.refit.pair_sketch import SketchSize
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.devices import Devices, SimulatedDevices
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.options import PrivacyOptions, Protection, as_privacy
from fedgram.text.normalize import uncase
from fedgram.text.population import Users
from fedgram.text.vocabulary import SPECIAL, UNK

_TABLES = 3  # of the sketch
DEFAULT_NORM = 300.0  # limit on a device's counts without noise
_ROOM = 2  # as a multiple of the budget, the n-grams that are fitted and given capitals before pruning


@dataclass(frozen=True, slots=True)
class RefitOptions(CohortOptions):
    """How devices count n-grams, and how the counts are joined with the model."""

    clip: Annotated[float, Between(1, infinite=True)] = setting(
        20_000.0, "λ: maximum number of words counted per device and pass; inf means no limit."
    )
    outliers: Annotated[float, Between(0, 0.9)] = setting(
        0.1,
        "Share of the n-grams whose counts per device are cut to what is usual, so that few devices cannot make an "
        "n-gram frequent; 0 means none.",
    )
    pairs: bool = setting(True, "Look for pairs of words that the model does not have, by a sketch.")
    sketch_bits: Annotated[int, Between(4, 28)] = setting(22, "Size of the sketch: 2^bits cells per table.")
    grow: Annotated[int, Between(0, 9)] = setting(
        3, "Number of passes in which longer n-grams that became likely are counted too."
    )
    order: Annotated[int, Between(1, MAX_ORDER)] = setting(4, "Length of the longest n-gram proposed to devices.")
    norm: Limit | None = setting(
        None,
        "Limit on the norm of a device's counts; a longer vector is scaled down to it. inf means no limit. Default: "
        "300; with dp, a tenth of the square root of the population.",
    )
    prior: Positive = setting(10.0, "β: visits of the model that are added to the devices' counts at every history.")

    def counting(self, privacy: PrivacyOptions, devices: int | None, order: int) -> CountingPlan:
        """What devices count, and what may be used of it.

        `devices` is their number, if it is known, and `order` that of the model.
        """
        pairs = self.pairs and not privacy.is_dp
        growth = Growth(passes=self.grow, shortest=3 if pairs else 2, order=self.order)
        sketch = Sketch(SketchSize(_TABLES, self.sketch_bits), self.clip) if pairs else None
        longest = max(order, self.order if self.grow else 0)
        return CountingPlan(self._release(privacy, devices, longest), sketch, growth)

    def _release(self, privacy: PrivacyOptions, devices: int | None, longest: int) -> CountRelease:
        if not privacy.is_dp:
            clipping = Clipping.up_to(longest, self.norm or DEFAULT_NORM)
            least = (privacy.min_devices, privacy.network_devices) if privacy.protection == "threshold" else (1, 1)
            return ExactCounts(clipping, self.clip, *least, self.outliers)
        if self.norm == inf:
            raise SettingError("norm", "must be finite with protection dp: it limits what one device can change")
        clipping = Clipping.up_to(longest, self.norm or _norm(privacy.simulated or devices))
        return NoisyCounts(clipping, privacy.event.multiplier, privacy.randomness, privacy.stands_for(devices))


def _norm(population: int | None) -> float:
    if population is None:
        raise SettingError("norm", "is needed, since the number of devices is not known")
    return max(sqrt(population) / 10.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class RefittedModel(NGramModel):
    """A model after the refit, the same without capitals, and what devices counted."""

    uncased: NGramModel = field(kw_only=True)
    counted: CountedNGrams = field(kw_only=True)
    protection: Protection = field(kw_only=True)

    def __repr__(self) -> str:
        words, reports = len(self.vocabulary) - len(SPECIAL), [counted["reports"] for counted in self.counted.passes]
        sizes = f"{self.topology.arcs:,} n-grams, {words:,} words; reports {reports}"
        return f"RefittedModel({sizes}; privacy: {self.protection})"


def refit(
    model: NGramModel,
    users: Users | Devices,
    options: RefitOptions | None = None,
    *,
    privacy: PrivacyOptions | Protection | None = None,
    casing: NGramModel | None = None,
    public: NGramModel | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    counts: Path | None = None,
    folder: Path | None = None,
    ledger: Ledger | None = None,
    begin: Begin = silent,
    **settings: Any,
) -> RefittedModel:
    """Fit a model to what devices count on their own text.

    Args:
        model: An n-gram model that the server has, such as `distill` makes of a network.
        users: The users whose devices count, such as `population.train`.
        options: How to count and fit; its fields may be given as keywords instead.
        privacy: What keeps single users out of the model: options, or "threshold" (the default), "dp" or "none".
        casing: A cased n-gram model that gives the capitals; by default, the model itself, if it has any. Devices count
            without capitals, so nobody checks those of a model that has seen users' text: give one of public text.
        public: A model of public text. With "threshold", every n-gram of several words of the result is on enough
            devices or in this model; others are dropped, because a network may have learned them from a single device.
            Words stay: they should be of a public list.
        budget: The size limit of the result.
        seed: Of the cohorts, and of what devices leave out.
        counts: The file of the devices' counts; if it exists and has the same settings, devices are not asked again.
        folder: For checkpoints; an interrupted pass resumes from there.
        ledger: Where privacy spent on these users is recorded, and their budget; used if there is noise.
        begin: Progress callback.
    """
    options, privacy = chosen(RefitOptions, options, settings), as_privacy(privacy)
    budget = budget or Budget()
    devices = SimulatedDevices(users, as_bytes=True) if isinstance(users, Users) else users
    is_cased = any(uncase(word) != word for word in model.vocabulary.words)
    prior = lowercase_model(model) if is_cased else renormalize(model)
    known = public_ngrams(prior, public)
    described = counting_settings(prior, options, privacy, known, seed=seed, users=_digest(users))
    if counts is not None and counts.exists():
        counted = read_counted(counts, prior, described)
    else:
        plan = options.counting(privacy, devices.count, prior.topology.order)
        passes = Passes(devices, options, seed=seed, folder=folder, belongs_to=described, begin=begin)
        if privacy.is_dp:
            passes.event.enter(
                ledger or Ledger(), "n-gram counts", privacy.event, privacy.randomness,
                stands_for=privacy.stands_for(devices.count),
            )  # fmt: skip
        counted = count_on_devices(prior, passes, plan, known)
        if counts is not None:
            write_counted(counts, counted, described)
            if folder is not None:  # the sums of passes also have n-grams that may not be used
                shutil.rmtree(folder, ignore_errors=True)
    begin("Refitting")
    wide = fit_to_counts(prior, counted, Prior(visits=options.prior), max_ngrams=_ROOM * budget.max_ngrams)
    uncased = result = budget.within(wide, expected_histories=True)
    if is_cased or casing is not None:
        begin("Adding capitals")
        words = casing_of(Capitalizer(casing if casing is not None else model), prior.vocabulary)
        result = budget.within(capitalize_model(wide, words), expected_histories=True)
    return RefittedModel(
        result.topology, result.vocabulary, result.log_weight, result.log_backoff, uncased=uncased, counted=counted,
        protection=privacy.protection,
    )  # fmt: skip


def public_ngrams(model: NGramModel, public: NGramModel | None) -> BoolArray:
    """Which n-grams of a model in lower case a model of public text has, whatever its capitals.

    Where the two have different words, `<unk>` stands for others in each, so no n-gram of several words with it counts.
    """
    if public is None:
        return np.zeros(model.topology.arcs, bool)
    ids, ngrams = uncased_ids(model.vocabulary, public.vocabulary.words), ngrams_of(public.topology)
    found = Ragged(ids[ngrams.values], ngrams.offsets)
    if {uncase(word) for word in public.vocabulary.words} != set(model.vocabulary.words):
        lengths = np.diff(found.offsets)
        unknown = np.repeat(np.arange(len(found)), lengths)[found.values == UNK]
        found = found.select((lengths == 1) | (np.bincount(unknown, minlength=len(found)) == 0))
    rows = [ngrams_of(model.topology), found]
    arc = topology_from_ngrams(Ragged.concatenate(rows), len(model.vocabulary)).arc
    return np.isin(arc[: len(rows[0])], arc[len(rows[0]) :])


def _digest(users: Users | Devices) -> str | None:
    """A name for simulated users and their text; None for the devices of a federation, whose text nobody knows."""
    if not isinstance(users, Users):
        return None
    p = users.population
    arrays: dict[str, NDArray[Any]] = {
        "clients": users.clients,
        "sentences": p.first_sentence,
        "tokens": p.first_token,
        "token": p.token,
    }
    return content_digest({"words": "\n".join(p.words)}, arrays)


def fit_to_counts(model: NGramModel, counted: CountedNGrams, prior: Prior, *, max_ngrams: int) -> NGramModel:
    """The model fitted to the devices' counts, with at most `max_ngrams` n-grams."""
    wide = express_on(renormalize(model), counted.topology)  # if n-grams are missing there, only its weights are used
    counts = trusted_counts(wide, counted.ngrams, counted.deviation)
    return prune_to_size(fit_counts(wide, counts, prior), max_ngrams, split_ties=True)
