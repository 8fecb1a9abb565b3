"""All measures of a model over the users of a split."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray, sum_by
from fedgram.core.errors import FedgramError
from fedgram.evaluate.accuracy import accuracy
from fedgram.evaluate.keystrokes import keystroke_savings
from fedgram.evaluate.likelihood import perplexity, sentence_log_likelihood
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.oov import oov_rate
from fedgram.evaluate.piece_scorer import PieceScorer
from fedgram.evaluate.predictor import Judgement, Predictor
from fedgram.evaluate.typed_text import TypedText, TypedTextReader, chunks
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
        return int(self.measures["oov_rate"].count.sum())

    def __repr__(self) -> str:
        return f"Evaluation({len(self.client_ids)} users, {self.words} words)"


def evaluate_model(
    model: Predictor | PieceScorer,
    population: Population,
    clients: LongArray,
    *,
    shared: Set[str] | None = None,
    on_users: Callable[[int], object] = lambda _: None,
) -> Evaluation:
    """Evaluate a model on these users, who must have typed some words.

    Args:
        model: The model.
        population: Where the users are.
        clients: Their numbers.
        shared: 𝒱, the forms over which likelihoods are measured, all known to the model; without it, all its forms.
            Give the same to all models whose perplexity or SLL^e is compared (`forms.shared_forms`).
        on_users: Progress callback.
    """
    measure, parts, outside = measurer(model, population, shared), [], 0
    for some in chunks(population, clients):
        measures, others = measure(some)
        parts.append(measures)
        outside += int(others.sum())
        on_users(len(some))
    if not any(np.any(part["oov_rate"].count) for part in parts):
        raise FedgramError("these users typed no words; choose another split or population")
    ids = tuple(population.client_ids[c] for c in clients.tolist())
    return Evaluation(ids, {name: Measure.join([part[name] for part in parts]) for name in MEASURES}, outside)


def measurer(
    model: Predictor | PieceScorer, population: Population, shared: Set[str] | None
) -> Callable[[LongArray], tuple[Mapping[str, Measure], FloatArray]]:
    """What measures users of a population: every measure by name, and the number of typed words outside 𝒱, per user."""
    if isinstance(model, PieceScorer):
        measured = model.measurer(population, shared)
    else:
        measured = partial(_judged, model, TypedTextReader(population, model.forms, shared))

    def of_users(clients: LongArray) -> tuple[Mapping[str, Measure], FloatArray]:
        text, measures = measured(clients)
        return measures, sum_by(text.user, (text.is_word & ~text.in_shared).astype(float), text.users)

    return of_users


def _judged(
    predictor: Predictor, reader: TypedTextReader, clients: LongArray
) -> tuple[TypedText, Mapping[str, Measure]]:
    text = reader.text(clients)
    judgement = predictor.judge(text)
    return text, {name: measure(text, judgement) for name, measure in MEASURES.items()}
