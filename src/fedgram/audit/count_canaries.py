"""Canary devices for the counts of a refit: what the released counts show of single devices.

A canary device types one sentence of one word that nobody else has, so often that its counts reach the limit of a
device. The model to refit has the n-grams of all canaries, as that of a server that looks for them would. Each canary
takes part or not, by a fair coin, among ordinary devices. Its score is the released counts along the vector that it
sends, which is the best that an attacker can do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from fedgram.automata.model import NGramModel
from fedgram.core.arrays import BoolArray, FloatArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.core.random import Stream, stream
from fedgram.core.storage import Record
from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.clipped_ngrams import COUNT, ClippedNGrams, Clipping
from fedgram.distill.refit.refit import RefitOptions, refit
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import ClientDataset, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import EOS

_LETTERS, _LENGTH = "abcdefghijklmnopqrstuvwxyz", 4
_SENTENCES = 500  # of ordinary text in the model


@dataclass(frozen=True, slots=True, eq=False)
class CanaryScores:
    """By canary, its score and whether it was included; and ε of the accountant, which is None without noise."""

    score: FloatArray
    included: BoolArray
    epsilon: float | None

    def __post_init__(self) -> None:
        if self.score.shape != self.included.shape:
            raise FedgramError("every canary needs a score")


def coins(canaries: int, seed: int) -> BoolArray:
    """Whether each canary is included."""
    drawn: BoolArray = stream(seed, "canaries").random(canaries) < 0.5
    return drawn


def canary_word(number: int) -> str:
    """A word that nobody types, another one for every number.

    >>> canary_word(0), canary_word(27)
    ('zxqaaaa', 'zxqaabb')
    """
    letters = ""
    for _ in range(_LENGTH):
        number, letter = divmod(number, len(_LETTERS))
        letters = _LETTERS[letter] + letters
    return "zxq" + letters


def audit_counts(
    canaries: int, privacy: PrivacyOptions, *, typists: int = 50, norm: float = 10.0, seed: int = 0,
    begin: Begin = silent,
) -> CanaryScores:  # fmt: skip
    """Run the counting of a refit with canary devices among generated typists, and score the canaries."""
    if not 2 <= canaries <= len(_LETTERS) ** _LENGTH:
        raise FedgramError(f"there must be at least 2 canaries, and not {canaries:,}")
    begin("Preparing canary devices")
    included, source = coins(canaries, seed), SyntheticPopulation("en_us", seed=seed)
    repeats = int(np.ceil(2.0 * norm))
    words = [canary_word(i) for i in range(canaries)]

    def rows() -> Iterator[tuple[str, str, str | None]]:
        yield from ((name, text, "train") for name, text, _ in source.rows(typists))
        for i in np.flatnonzero(included).tolist():
            yield f"z{i:07d}", "\n".join([words[i]] * repeats), "train"

    text = (" ".join(sentence).lower() for sentence in source.clean_sentences(_SENTENCES))
    model = NGramModel.train(chain(text, words), order=3, smoothing="witten-bell")
    people, ledger = population_from_messages(rows()), Ledger()
    options = RefitOptions(grow=0, pairs=False, order=3, norm=norm, dropout=0.0, over_selection=1.0)
    counted = refit(model, people.train, options, privacy=privacy, seed=seed, ledger=ledger, begin=begin).counted
    asked = AskedNGrams.all_of(counted.topology, model.vocabulary)
    task = ClippedNGrams(asked, Clipping(norm))
    released = counted.ngrams * task.clipping.weights_of(asked)
    score = np.array([_along(released, task, model.vocabulary[word], repeats) for word in words])
    epsilon = ledger.spent(privacy.delta).epsilon if ledger.entries else None
    return CanaryScores(score, included, epsilon)


def _along(released: FloatArray, task: ClippedNGrams, word: int, repeats: int) -> float:
    """The released vector along the one that a device with this text sends, without the end of sentences."""
    data = ClientDataset("", Ragged.from_rows([[word]] * repeats))
    sent = task.client_update(Record(), data, Stream(0))
    place, values = sent.index[COUNT], sent.values[COUNT]
    own = place != np.searchsorted(task.ngrams.topology.label[: task.ngrams.topology.first_arc[1]], EOS)
    return float(released[place[own]] @ values[own] / np.linalg.norm(values[own]))
