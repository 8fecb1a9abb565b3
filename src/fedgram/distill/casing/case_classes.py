"""Case classes: the words of a cased vocabulary Δ that have the same lower-case form.

For a word y of Δ, u(y) is its lower-case form. The words with one u(y), such as york and York, are the case variants of
a class. `<unk>`, `<s>` and `</s>` are classes of their own. Paper: §5.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedgram.core.arrays import IntArray, LongArray, Ragged, frozen
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import Vocabulary


class ClassArrays(NamedTuple):
    """Case classes as one argument for kernels: the variants of class u are `variant[first[u]:first[u + 1]]`."""

    uncased_id: IntArray
    first: LongArray
    variant: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class CaseClasses:
    """The case classes of a vocabulary.

    Attributes:
        cased: The vocabulary Δ.
        uncased: The vocabulary of all u(y); the id of u(y) is the number of its class.
        uncased_id: The class of each word of Δ.
        variants: The words of each class, by rising id.

    >>> classes = CaseClasses.of(Vocabulary.of(["new", "York", "New"]))
    >>> classes.uncased.words[3:], classes.variants[classes.uncased["new"]].tolist()
    (('new', 'york'), [3, 5])
    """

    cased: Vocabulary
    uncased: Vocabulary
    uncased_id: IntArray
    variants: Ragged

    @classmethod
    def of(cls, cased: Vocabulary) -> "CaseClasses":
        """The classes of a vocabulary, in the order of their first words."""
        lower = [uncase(word) for word in cased.words]
        uncased = Vocabulary.of(lower)
        uncased_id = np.array([uncased.index[word] for word in lower], np.int32)
        sizes = np.bincount(uncased_id, minlength=len(uncased))
        members = np.argsort(uncased_id, kind="stable").astype(np.int32)
        variants = Ragged(frozen(members), frozen(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)))
        return cls(cased, uncased, frozen(uncased_id), variants)

    @property
    def arrays(self) -> ClassArrays:
        """The classes as one argument for kernels."""
        return ClassArrays(self.uncased_id, self.variants.offsets, self.variants.values)

    @property
    def ambiguous(self) -> int:
        """The number of classes with more than one word."""
        return int(np.sum(np.diff(self.variants.offsets) > 1))

    def __repr__(self) -> str:
        return f"CaseClasses({len(self.cased)} words in {len(self.uncased)} classes, {self.ambiguous} ambiguous)"


def capitalized_form(word: str) -> str:
    """A lower-case word with a capital; a word that has a capital, or cannot get one, is unchanged.

    >>> capitalized_form("zürich"), capitalized_form("iPhone"), capitalized_form("2nd")
    ('Zürich', 'iPhone', '2nd')
    """
    capitalized = word.capitalize()
    return capitalized if word == word.lower() == capitalized.lower() else word
