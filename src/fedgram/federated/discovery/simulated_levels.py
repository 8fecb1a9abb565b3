"""The levels of a collection on a simulated population, for all of its users at once.

The sum over all devices does not depend on cohorts, so a simulation without masking need not form any. It lets every
user choose words once, and then computes the sum of a level from the chosen words. The result is the same integers as
one by one with `PrefixLevel.client_update`.
"""

import numpy as np

from fedgram.core.arrays import IntArray, LongArray
from fedgram.core.jit import kernel
from fedgram.federated.discovery.alphabet import encode_words
from fedgram.federated.discovery.chosen_words import HashArray, choose, device_key, word_hashes
from fedgram.federated.discovery.prefix_level import Collection, PrefixLevel
from fedgram.text.population import Users


class SimulatedLevels:
    """The chosen words of users: user i contributes the words `_word[_first[i]:_first[i + 1]]`."""

    def __init__(self, users: Users, collection: Collection) -> None:
        people = users.population
        rows = encode_words(people.words, collection.alphabet, frozenset(collection.known.index), collection.longest)
        keys = np.array([device_key(collection.choice, device) for device in users.clients.tolist()], np.uint64)
        begin = people.first_token[people.first_sentence[users.clients]]
        end = people.first_token[people.first_sentence[users.clients + 1]]
        hashes = word_hashes(rows.values, rows.offsets)
        self._users = users
        self._word, self._first = _choose_all(people.token, begin, end, hashes, keys, collection.words_per_device)
        self._codes = [row.tolist() for row in rows]
        self._alive = np.unique(self._word)

    def sum(self, task: PrefixLevel, devices: LongArray | None = None) -> LongArray:
        """The sum of these devices' updates at a level, in fixed point; of all devices by default."""
        found = task.candidates([self._codes[word] for word in self._alive.tolist()])
        candidate = np.full(len(self._codes), -1, np.int64)
        candidate[self._alive] = found
        members = np.arange(len(self._first) - 1) if devices is None else np.searchsorted(self._users.clients, devices)
        (candidates,) = task.size.values()
        return _sum_vectors(candidate[self._word], self._first, members, np.zeros(candidates, np.int64), 2.0**task.bits)


@kernel
def _choose_all(
    token: IntArray, begin: LongArray, end: LongArray, hashes: HashArray, keys: HashArray, most: int
) -> tuple[LongArray, LongArray]:
    first = np.zeros(len(begin) + 1, np.int64)
    word = np.empty(len(begin) * most, np.int64)
    n = 0
    for i in range(len(begin)):
        own = token[begin[i] : end[i]]
        for place in choose(hashes[own], keys[i], most):
            word[n] = own[place]
            n += 1
        first[i + 1] = n
    return word[:n].copy(), first


@kernel
def _sum_vectors(
    candidate: LongArray, first: LongArray, members: LongArray, total: LongArray, scale: float
) -> LongArray:
    """Add `device_vector` of each member's candidates to the total; −1 is no candidate."""
    for i in members:
        own = np.sort(candidate[first[i] : first[i + 1]])
        own = own[np.searchsorted(own, 0) :]
        squares, j = 0.0, 0
        while j < len(own):
            k = np.searchsorted(own, own[j], side="right")
            squares += float((k - j) * (k - j))
            j = k
        norm, j = np.sqrt(squares), 0
        while j < len(own):
            k = np.searchsorted(own, own[j], side="right")
            total[own[j]] += np.int64(np.floor((k - j) / norm * scale))
            j = k
    return total
