"""All measures of a model over the users of a split."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray, sum_by
from fedgram.core.errors import FedgramError
from fedgram.evaluate.accuracy import accuracy
from fedgram.evaluate.keystrokes import keystroke_savings
from fedgram.evaluate.likelihood import perplexity, sentence_log_likelihood
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.oov import oov_rate
from fedgram.evaluate.predictor import Judgement, Predictor
from fedgram.evaluate.typed_text import TypedText, TypedTextReader
from fedgram.text.population import Population

MEASURES: Mapping[str, Callable[[TypedText, Judgement], Measure]] = {
    "top1": lambda text, judgement: accuracy(text, judgement, k=1),
    "top3": lambda text, judgement: accuracy(text, judgement, k=3),
    "oov_rate": lambda text, _: oov_rate(text),
    "perplexity": perplexity,
    "sll": lambda text, judgement: sentence_log_likelihood(text, judgement, with_oov=True),
    "sll_e": lambda text, judgement: sentence_log_likelihood(text, judgement, with_oov=False),
    "keystroke_savings": keystroke_savings,
}


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The measures of one model by name, over the same users in the same order.

    `outside` is the number of typed words outside 𝒱, on which likelihoods are not measured.
    """

    client_ids: tuple[str, ...]
    measures: Mapping[str, Measure]
    outside: int = 0

    @property
    def words(self) -> int:
        """Typed words, placeholders not counted."""
        return int(self.measures["top1"].count.sum())

    def __repr__(self) -> str:
        return f"Evaluation({len(self.client_ids)} users, {self.words} words)"


def evaluate_model(
    predictor: Predictor,
    population: Population,
    clients: LongArray,
    *,
    shared: Set[str] | None = None,
    on_users: Callable[[int], object] = lambda _: None,
) -> Evaluation:
    """Evaluate a model on these users, who must have typed some words.

    Args:
        predictor: The model.
        population: Where the users are.
        clients: Their numbers.
        shared: 𝒱, the forms over which likelihoods are measured, all known to the model; without it, all its forms.
            Give the same to all models whose perplexity or SLL^e is compared (`forms.shared_forms`).
        on_users: Progress callback.
    """
    reader = TypedTextReader(population, predictor.forms, shared)
    parts, outside = [], 0
    for text in reader.chunks(clients):
        measures, others = measure_text(predictor, text)
        parts.append(measures)
        outside += int(others.sum())
        on_users(text.users)
    if not any(np.any(part["top1"].count) for part in parts):
        raise FedgramError("these users typed no words; choose another split or population")
    ids = tuple(population.client_ids[c] for c in clients.tolist())
    return Evaluation(ids, {name: Measure.join([part[name] for part in parts]) for name in MEASURES}, outside)


def measure_text(predictor: Predictor, text: TypedText) -> tuple[Mapping[str, Measure], FloatArray]:
    """Every measure by name, and the number of typed words outside 𝒱, per user."""
    judgement = predictor.judge(text)
    outside = sum_by(text.user, (text.is_word & ~text.in_shared).astype(float), text.users)
    return {name: measure(text, judgement) for name, measure in MEASURES.items()}, outside
