"""How much of a planted secret a model shows: exposure, and extraction by beam search (Carlini et al. 2019).

The exposure of a secret is log₂(N + 1) − log₂(rank), where its rank is among N random sequences of the same length by
their probability in the model. A secret that a model knows nothing of has an exposure of about 1.4 bits on average, one
that is more probable than all N sequences has log₂(N + 1). For extraction the first words are given, and the search
looks for the most probable rest; a secret is extracted if the best sequence that was found is the secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgram.audit.planting import Canary, as_population
from fedgram.automata.model import MIN_LOG
from fedgram.core.arrays import FloatArray, IntArray, sum_by
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Advance
from fedgram.evaluate.predictor import Predictor
from fedgram.evaluate.typed_text import TypedTextReader
from fedgram.text.normalize import uncase


@dataclass(frozen=True, slots=True)
class Exposed:
    """What a model shows of one canary."""

    canary: Canary
    exposure: float
    extracted: bool


def sequence_log_probs(predictor: Predictor, rows: IntArray, pool: Sequence[str]) -> FloatArray:
    """Log p of every sequence at the start of a sentence, without its end; capitals do not matter."""
    population = as_population(rows, pool)
    text = TypedTextReader(population, predictor.forms).text(population.clients())
    log_prob = np.maximum(predictor.judge(text).log_prob, MIN_LOG)
    return sum_by(np.repeat(np.arange(len(rows)), rows.shape[1]), log_prob, len(rows))


def exposures(secrets: FloatArray, references: FloatArray) -> FloatArray:
    """The exposure of secrets by their log-probabilities and those of the references; ties count against it.

    >>> exposures(np.array([5.0, 0.5]), np.array([1.0, 2.0, 3.0])).tolist()
    [2.0, 0.0]
    """
    ordered = np.sort(references)
    rank = 1 + len(ordered) - np.searchsorted(ordered, secrets, side="left")
    found: FloatArray = np.log2(len(ordered) + 1) - np.log2(rank)
    return found


def extracted(predictor: Predictor, known: Sequence[str], length: int, width: int) -> tuple[str, ...]:
    """The most probable sequence of this length that begins with the known words, by beam search, in lower case."""
    if not 0 <= len(known) < length or width < 1:
        raise FedgramError("the search needs fewer known words than the secret has, and a width of at least 1")
    beams: list[tuple[float, list[str]]] = [(0.0, list(known))]
    for _ in range(length - len(known)):
        longer = [
            (score + float(np.log(max(p, np.exp(MIN_LOG)))), [*words, word])
            for score, words in beams
            for word, p in predictor.suggest(words, width)
        ]
        beams = sorted(longer, key=lambda beam: -beam[0])[:width]
    return tuple(uncase(word) for word in beams[0][1]) if beams else ()


def expose(
    predictor: Predictor, canaries: Sequence[Canary], references: IntArray, pool: Sequence[str], *, known: int,
    width: int, advance: Advance = lambda *_: None,
) -> list[Exposed]:  # fmt: skip
    """What a model shows of every canary."""
    index = {word: i for i, word in enumerate(pool)}
    rows = np.array([[index[word] for word in canary.words] for canary in canaries], np.int32)
    scores = sequence_log_probs(predictor, np.concatenate([rows, references]), pool)
    found = exposures(scores[: len(rows)], scores[len(rows) :])
    result = []
    for canary, exposure in zip(canaries, found.tolist(), strict=True):
        best = extracted(predictor, canary.words[:known], len(canary.words), width)
        result.append(Exposed(canary, exposure, best == canary.words))
        advance(1)
    return result


def by_cell(found: Sequence[Exposed]) -> list[dict[str, Any]]:
    """By holders and repeats: the number of canaries, their exposure, and how many were extracted."""
    cells: dict[tuple[int, int], list[Exposed]] = {}
    for one in found:
        cells.setdefault((one.canary.holders, one.canary.repeats), []).append(one)
    return [
        {"holders": holders, "repeats": repeats, "canaries": len(of_cell),
         "mean_exposure": float(np.mean([one.exposure for one in of_cell])),
         "max_exposure": max(one.exposure for one in of_cell), "extracted": sum(one.extracted for one in of_cell)}
        for (holders, repeats), of_cell in sorted(cells.items())
    ]  # fmt: skip
