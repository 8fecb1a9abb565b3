"""The stage of models to compare with, none federated: of the supplement (a), of pooled text (b), and of both (c).

Each is pruned to the run's budget by the rule that suits it best on dev users, so that no comparison gains from a poor
baseline. The rules differ in how they weigh the histories of n-grams (`automata.prune.relative_entropy_scores`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from fedgram.automata.budget import Budget
from fedgram.automata.merge import merge
from fedgram.automata.model import NGramModel
from fedgram.automata.training import train
from fedgram.core.arrays import Ragged
from fedgram.formats.artefact import write_ngram
from fedgram.pipeline.config import BaselinesSection
from fedgram.pipeline.judges import ByUsers, Judges
from fedgram.pipeline.model_names import BASELINE, MIXED, POOLED
from fedgram.pipeline.text_stages import whitelisted, write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.corpus import Corpus, read_corpus
from fedgram.text.population import Population, open_population
from fedgram.text.vocabulary import Vocabulary, read_vocabulary

RULES: Mapping[str, bool] = {"products of weights": False, "expected frequencies": True}
NOT_PRUNED = "not pruned"
Measured = Callable[[Mapping[str, NGramModel]], Mapping[str, float]]  # top-1 accuracy of models on dev users


class Pruned(NamedTuple):
    """A model within the budget, the rule by which it was pruned, and the top-1 accuracy on dev users by rule."""

    model: NGramModel
    rule: str
    dev_top1: Mapping[str, float]

    @property
    def top1(self) -> float:
        """Of the model itself."""
        return self.dev_top1[self.rule]

    @property
    def told(self) -> dict[str, object]:
        """For people."""
        return {"rule": self.rule, "dev_top1": dict(self.dev_top1)}


def prune_best(model: NGramModel, budget: Budget, measure: Measured) -> Pruned:
    """The model within the budget by the rule with the highest top-1 accuracy on dev users."""
    if model.topology.arcs <= budget.max_ngrams:
        return Pruned(model, NOT_PRUNED, measure({NOT_PRUNED: model}))
    pruned = {rule: budget.within(model, expected_histories=expected) for rule, expected in RULES.items()}
    top1 = measure(pruned)
    best = max(top1, key=lambda rule: top1[rule])
    return Pruned(pruned[best], best, top1)


def baselines(work: Work, config: BaselinesSection, budget: Budget, *, judges: Judges | None = None) -> None:
    """Models by text alone, each within the budget; the interpolation's weight is the best on dev users."""
    whitelist, measure = (
        read_vocabulary(work.read("whitelist.txt")),
        partial((judges or ByUsers()).top1, work, cased=False),
    )

    def trained(corpus: Corpus) -> NGramModel:
        return train(whitelisted(corpus, whitelist, budget.max_words), config)

    work.begin("Training the baseline on the supplement", None)
    a = prune_best(trained(read_corpus([work.read("supplement.txt")])), budget, measure)
    write_ngram(a.model, work.write("baseline.ngram"))
    told = {BASELINE: a.told}
    if config.pooled:
        work.begin("Training on pooled text, to compare with", None)
        b = prune_best(trained(_pooled(open_population(work.read("users.population")))), budget, measure)
        write_ngram(b.model, work.write("pooled.ngram"))
        advance, mixtures = work.begin("Interpolating", len(config.shares)), dict[float, Pruned]()
        for share in config.shares:
            mixtures[share] = prune_best(merge(a.model, b.model, weight=share), budget, measure)
            advance(1)
        best = max(mixtures, key=lambda share: mixtures[share].top1)
        write_ngram(mixtures[best].model, work.write("interpolated.ngram"))
        by_share = {f"{share:g}": mixture.told for share, mixture in mixtures.items()}
        told |= {POOLED: b.told, MIXED: {"rule": mixtures[best].rule, "share": best, "by_share": by_share}}
    write_json(work.write("baselines.json"), told)


def _pooled(people: Population) -> Corpus:
    """What a server would see if the train users' text were collected."""
    sentences = Ragged.concatenate([people.sentences(client) for client in people.clients("train").tolist()])
    vocabulary = Vocabulary.of(people.words)
    ids = np.array(vocabulary.encode(people.words), np.int32)
    return Corpus(Ragged(ids[sentences.values], sentences.offsets), vocabulary)
