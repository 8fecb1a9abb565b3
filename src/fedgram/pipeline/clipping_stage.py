"""The stage of Table 1: what the clipping threshold λ does to a keyboard's words. Paper: §3.3.

A few devices take part once each, for every λ the same ones, and the keyboard has room for fewer words than they
report. So words compete for a place, and λ decides whose words win. If there were room for all, λ would not matter.

Every row is the baseline model, cut to the same number of words, with another unigram part:

- the baseline keeps its own weights, for the most frequent words of the supplement;
- λ takes the most frequent words of the devices, and their clipped frequencies in place of the weights;
- the control takes the frequencies of the supplement. It has the same words and text as the baseline, so its change is
  the price of replacing: the unigrams of a Kneser-Ney model are weights for words after a backoff, not frequencies.

Each is also measured with the frequencies interpolated with the model's own weights, half and half. All models are
measured together. On a federation, devices of the train arm count and devices of the arm of the split measure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, isinf
from typing import Any

import numpy as np

from fedgram.automata.merge import replace_unigrams
from fedgram.automata.model import NGramModel
from fedgram.automata.restrict import keep_words
from fedgram.distill.casing.capitalization import Capitalizer, capitalize_unigrams
from fedgram.evaluate.evaluation import Evaluation
from fedgram.evaluate.summary import summarize
from fedgram.federated.collect_unigrams import UnigramOptions
from fedgram.federated.unigrams_by_clip import collect_by_clip
from fedgram.formats.artefact import read_ngram
from fedgram.pipeline.config import ClippingSection, EvaluationSection
from fedgram.pipeline.judges import ByUsers, Judges
from fedgram.pipeline.participants import DevicesOf, simulated
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.corpus import read_corpus
from fedgram.text.normalize import PLACEHOLDERS, uncase
from fedgram.text.unigrams import UnigramCounts
from fedgram.text.vocabulary import Vocabulary, read_vocabulary

BASELINE, CONTROL = "the baseline", "the supplement's frequencies"
WAYS = {"replaced": 1.0, "interpolated": 0.5}  # the weight of the frequencies
CAPACITY = 0.25  # of the distinct words that devices report, unless the configuration names a number
Frequencies = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Table:
    """What all rows have in common."""

    baseline: NGramModel
    capitalizer: Capitalizer
    max_words: int
    buckets: int

    def unigrams(self, frequency: Frequencies) -> Frequencies:
        """The most frequent cased words, as many as there is room for."""
        cased = capitalize_unigrams(frequency, self.capitalizer)
        return dict(sorted(cased.items(), key=lambda pair: (-pair[1], pair[0]))[: self.max_words])

    def kept(self, unigrams: Frequencies) -> NGramModel:
        """The baseline with only these words, and its own weights."""
        return keep_words(self.baseline, {*unigrams, *PLACEHOLDERS})

    def models(self, supplement: Frequencies, collected: Mapping[float, Frequencies]) -> dict[str, NGramModel]:
        """All models by name: the baseline, and each list of frequencies in both ways."""
        found = {BASELINE: self.kept(self.unigrams(supplement))}
        for name, frequency in {CONTROL: supplement, **{_name(clip): f for clip, f in collected.items()}}.items():
            unigrams = self.unigrams(frequency)
            kept = self.kept(unigrams)
            for way, weight in WAYS.items():
                found[f"{name}, {way}"] = replace_unigrams(kept, unigrams, weight=weight)
        return found

    def change(self, new: Evaluation, old: Evaluation) -> dict[str, Any]:
        """The relative change of every measure, over the same users."""
        changes: dict[str, Any] = summarize(new, old, buckets=self.buckets)["change"]
        return {measure: changes[measure] for measure in ("top1", "top3", "oov_rate")}


def _name(clip: float) -> str:
    return f"λ = {clip:g}"


def clipping(
    work: Work, config: ClippingSection, unigrams: UnigramOptions, evaluating: EvaluationSection, seed: int, *,
    devices: DevicesOf = simulated, judges: Judges | None = None,
) -> None:  # fmt: skip
    """The baseline with the unigrams of devices in place of its own, by λ."""
    judges, whitelist = judges or ByUsers(), read_vocabulary(work.read("whitelist.txt"))
    cohort = replace(unigrams, rounds=ceil(config.devices / unigrams.devices_per_round))
    collected = collect_by_clip(
        devices(work), whitelist, config.thresholds, cohort, seed=seed, folder=work.write("checkpoints"),
        begin=work.begin,
    )  # fmt: skip
    seen = _seen(collected)
    table = _Table(
        read_ngram(work.read("baseline.ngram")), Capitalizer(read_ngram(work.read("A_W.ngram"))),
        config.max_words or max(1, int(CAPACITY * seen["words"])), evaluating.buckets,
    )  # fmt: skip
    models = table.models(_frequencies(work, whitelist), {clip: u.frequency() for clip, u in collected.items()})
    found = judges.measure(work, models, evaluating)
    old, first = found[BASELINE], found[f"{_name(config.thresholds[0])}, replaced"]
    rows = [
        {
            "clip": None if isinf(clip) else clip,
            "change": table.change(found[f"{_name(clip)}, replaced"], old),
            "interpolated": table.change(found[f"{_name(clip)}, interpolated"], old),
            "against_first": table.change(found[f"{_name(clip)}, replaced"], first),
        }
        for clip in collected
    ]
    write_json(work.write("clipping.json"), {
        "split": evaluating.split, "measured": work.measured + 1, "measured_on": judges.whom,
        "max_words": table.max_words, "devices": seen["devices"], "words": seen["words"],
        "baseline": summarize(old, buckets=evaluating.buckets),
        "control": {way: table.change(found[f"{CONTROL}, {way}"], old) for way in WAYS}, "rows": rows,
    })  # fmt: skip


def _seen(collected: Mapping[float, UnigramCounts]) -> dict[str, int]:
    """How many devices reported, and how many distinct words; both are the same for every λ."""
    any_of_them = next(iter(collected.values()))
    return {"devices": any_of_them.clients, "words": len(any_of_them.frequency())}


def _frequencies(work: Work, whitelist: Vocabulary) -> Frequencies:
    """How often each word of the whitelist occurs in the supplement, whatever its capitals."""
    corpus = read_corpus([work.read("supplement.txt")])
    counts = np.bincount(corpus.sentences.values, minlength=len(corpus.vocabulary))
    frequency: dict[str, float] = {}
    for word, count in zip(corpus.vocabulary.words, counts.tolist(), strict=True):
        if count and uncase(word) in whitelist:
            frequency[uncase(word)] = frequency.get(uncase(word), 0.0) + count
    return frequency
