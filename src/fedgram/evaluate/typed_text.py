"""The text of held-out users, in the ids of a model.

The model reads every token, and most tokens are targets to predict. A typed word that is not in the model is *read* as
its most likely variant with other capitals, because a keyboard understands "york" after "new" too; without such a
variant it is read as `<unk>`. As a *target* it is known only if the model has its form. Placeholders such as `<number>`
are read and scored like words, but they are not typed words: accuracy and the OOV rate ignore them.

𝒱 is the list of forms over which likelihoods are summed: those that all models of a comparison have, or if there is one
model, its own. So every model is scored on the same tokens.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import BoolArray, IntArray, LongArray, Ragged
from fedgram.core.errors import InvariantError
from fedgram.evaluate.forms import WordForms, form_of, is_candidate
from fedgram.text.normalize import uncase
from fedgram.text.population import Population
from fedgram.text.vocabulary import SPECIAL, UNK

UNKNOWN = -1  # the target of a word whose form the model does not have
_CHUNK_WORDS = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class TypedText:
    """The sentences of some users: one row per sentence, one value per token. Users are numbered from 0.

    `in_shared` tells the tokens whose form is in 𝒱.
    """

    users: int
    read: Ragged
    target: IntArray
    in_shared: BoolArray
    is_word: BoolArray
    letters: IntArray
    sentence_user: IntArray

    def __post_init__(self) -> None:
        lengths = {len(a) for a in (self.target, self.in_shared, self.is_word, self.letters, self.read.values)}
        assert len(lengths) == 1

    @property
    def user(self) -> IntArray:
        """The user of each token."""
        return np.repeat(self.sentence_user, np.diff(self.read.offsets))

    def __repr__(self) -> str:
        return f"TypedText({self.users} users, {len(self.read)} sentences, {len(self.target)} tokens)"


class TypedTextReader:
    """Converts the text of a population's users to the ids of one model; 𝒱 is `shared`, or all forms of the model."""

    def __init__(self, population: Population, forms: WordForms, shared: Set[str] | None = None) -> None:
        if shared is not None and not shared <= forms.index.keys():
            raise InvariantError("the shared vocabulary has words that the model does not have")
        words = population.words
        self._population = population
        self._read = np.array([read_as(word, forms) for word in words], np.int32)
        self._target = np.array([_target(word, forms) for word in words], np.int32)
        in_shared = [form_of(word, cased=forms.cased) in shared for word in words] if shared is not None else True
        self._in_shared = (self._target != UNKNOWN) & np.array(in_shared, bool)
        self._is_word = np.array([is_candidate(word) for word in words], bool)
        self._letters = np.array([len(uncase(word)) for word in words], np.int32)

    def text(self, clients: LongArray) -> TypedText:
        """The text of these users."""
        parts = [self._population.sentences(c) for c in clients.tolist()]
        rows = Ragged.concatenate(parts)
        owners = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
        return TypedText(
            len(parts), Ragged(self._read[rows.values], rows.offsets), self._target[rows.values],
            self._in_shared[rows.values], self._is_word[rows.values], self._letters[rows.values], owners,
        )  # fmt: skip

    def chunks(self, clients: LongArray) -> Iterator[TypedText]:
        """The text of these users in parts of whole users, so that it fits into memory."""
        for some in chunks(self._population, clients):
            yield self.text(some)


def chunks(population: Population, clients: LongArray) -> Iterator[LongArray]:
    """These users in parts, whose text fits into memory."""
    p = population
    tokens = p.first_token[p.first_sentence[clients + 1]] - p.first_token[p.first_sentence[clients]]
    part = np.cumsum(tokens) // _CHUNK_WORDS
    for number in np.unique(part):
        yield clients[part == number]


def read_as(word: str, forms: WordForms) -> int:
    """The id as which a model reads a typed word."""
    if word in SPECIAL:
        return UNK
    return forms.vocabulary.index.get(word, forms.likeliest.get(uncase(word), UNK))


def _target(word: str, forms: WordForms) -> int:
    return UNKNOWN if word in SPECIAL else forms.index.get(form_of(word, cased=forms.cased), UNKNOWN)
