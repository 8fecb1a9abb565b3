"""What updates show: words and pairs recovered from one plain update, from a masked sum, and from a noised sum.

A masked sum is the exact sum of a cohort (masks cancel), so it is computed as such. The attacker wants the words or
pairs of one device of the cohort, and makes the same guess from every kind of release:

    unigrams, n-grams   what has a positive count; with noise, what is `VISIBLE` standard deviations above 0
    pairs               what all its cells of the sketch allow, among the words that are marked
    training            the words whose embedding changed most, as many as the device has

`recovered` is the share of the device's words that are guessed, `right` the share of the guesses that are the device's.
From a sum, words of other devices are guessed too, so that little of what is guessed is the device's: `right` falls.
For comparison, `frequency alone` guesses the most frequent words without any update.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedgram.automata.build import topology_from_ngrams
from fedgram.automata.topology import ngram_matrix
from fedgram.core.arrays import FloatArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.core.random import stream
from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.clipped_ngrams import COUNT, ClippedNGrams, Clipping
from fedgram.distill.refit.count_release import NoisyCounts
from fedgram.distill.refit.pair_sketch import PairCollection, SketchSize
from fedgram.federated.task import FederatedTask, Total, device_stream
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.neural.network import Network
from fedgram.privacy.noise import gaussian_noise
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.population import Users
from fedgram.text.vocabulary import BOS, EOS, SPECIAL, UNK, Vocabulary
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.options import FedAvgOptions
from fedgram.training.plan import TrainingPlan

VISIBLE = 3.0  # standard deviations of noise from which on the attacker believes in a count
_NORM = 10.0  # limit on a device's counts where there is noise
_SKETCH = SketchSize(3, 20)
_MOST_PAIRS = 1_000_000

Guess = Set[Any]
Attack = Callable[[Total, int], Guess]  # from a sum, and the number of things to guess


@dataclass(frozen=True, slots=True)
class Shown:
    """What a kind of release shows of one device on average: shares from 0 to 1, and the number of guesses."""

    task: str
    release: str
    what: str
    recovered: float
    right: float
    guesses: float


class _Target(NamedTuple):
    """A task to attack: how, and the noise that a release adds to a sum, if there is a form with noise."""

    name: str
    what: str
    task: FederatedTask[Any]
    attack: Attack
    noisy_task: FederatedTask[Any] | None = None
    noised: Callable[[Total], Total] | None = None
    noisy_attack: Attack | None = None


def audit_inversion(
    users: Users, network: Network, privacy: PrivacyOptions, *, targets: int = 20, cohort: int = 100, seed: int = 0,
    begin: Begin = silent,
) -> list[Shown]:  # fmt: skip
    """What updates of these users' devices show, by task and release; averages over some target devices."""
    if not 1 <= targets <= cohort <= len(users):
        raise FedgramError(f"{len(users)} users are too few for {targets} targets in a cohort of {cohort}")
    vocabulary = network.coding.vocabulary
    members = stream(seed, "inversion").choice(users.clients, cohort, replace=False).tolist()
    found, several = [], members[:targets]
    for target in _targets(users, network, vocabulary, privacy):
        advance = begin(f"Attacking {target.name}", targets)
        sums = _sums(target, users, members)
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for client in several:
            truth = _truth(users, client, vocabulary, target.what)
            one = {"one update": (target.attack, _sum(target.task, users, [client]))}
            for release, (attack, total) in {**one, **sums}.items():
                rows.setdefault(release, []).append(_compare(attack(total, len(truth)), truth))
            advance(1)
        found += [
            Shown(target.name, release, target.what, *np.mean(row, axis=0).tolist()) for release, row in rows.items()
        ]
    words = [_truth(users, client, vocabulary, "words") for client in several]
    alone = [_compare(set(range(len(SPECIAL), len(SPECIAL) + len(w))), w) for w in words]
    return [*found, Shown("none", "frequency alone", "words", *np.mean(alone, axis=0).tolist())]


def _sums(target: _Target, users: Users, cohort: Sequence[int]) -> dict[str, tuple[Attack, Total]]:
    """The sum of a cohort, and if there is a form with noise, its sum with noise; and how each is attacked."""
    name, plain = f"sum of {len(cohort)}", _sum(target.task, users, cohort)
    found = {name: (target.attack, plain)}
    if target.noised is not None:
        total = _sum(target.noisy_task, users, cohort) if target.noisy_task else plain
        found[f"{name} with noise"] = target.noisy_attack or target.attack, target.noised(total)
    return found


def _compare(guess: Guess, truth: Guess) -> tuple[float, float, float]:
    hits = len(guess & truth)
    return hits / max(len(truth), 1), hits / max(len(guess), 1), float(len(guess))


def _truth(users: Users, client: int, vocabulary: Vocabulary, what: str) -> Guess:
    """The words of a device, or its pairs of words within sentences, marks and unknown words left out."""
    sentences = users.population.load(client, users.population.word_ids(vocabulary)).sentences
    if what == "words":
        return set(sentences.values[sentences.values > EOS].tolist())
    pairs = {pair for s in sentences for pair in zip(s[:-1].tolist(), s[1:].tolist(), strict=True)}
    return {(a, b) for a, b in pairs if UNK not in (a, b)}


def _sum(task: FederatedTask[Any], users: Users, clients: Sequence[int]) -> Total:
    """The sum of the updates of these users in the first round."""
    total, broadcast = Total.zero(task.size, task.bits), task.broadcast(task.init())
    codes = task.encode(users.population.words)
    for client in clients:
        update = task.client_update(broadcast, users.population.load(client, codes), device_stream(0, 1, client))
        total.add(update, task.bounds)
    return total


def _targets(users: Users, network: Network, vocabulary: Vocabulary, privacy: PrivacyOptions) -> list[_Target]:
    multiplier = privacy.event.multiplier
    unigrams = UnigramTask(vocabulary, clip=np.inf)
    clipped = UnigramTask(vocabulary, clip=np.inf, norm=_NORM)
    asked = _pairs_asked(users, vocabulary)
    pairs = PairCollection(vocabulary, _SKETCH, labels=np.inf)
    noise = NoisyCounts(Clipping(_NORM), multiplier, privacy.randomness)
    plan = TrainingPlan.of(FedAvgOptions(weighting="uniform"))
    training = FederatedAveraging(network.shape, network.weights, plan, network.coding)
    most = plan.update_norm

    def noised(names: Sequence[str], deviation: float) -> Callable[[Total], Total]:
        def add(total: Total) -> Total:
            drawn = {
                name: total.arrays[name] + gaussian_noise(
                    len(total.arrays[name]), deviation * 2.0**total.bits, privacy.randomness, "inversion", name
                ) for name in names
            }  # fmt: skip
            return Total(total.bits, {**total.arrays, **drawn}, total.weight, total.devices)

        return add

    def visible(total: Total, _: int) -> Guess:
        released = noise.release(0, asked, total.arrays)
        return _pairs_of(asked, released.ngrams > VISIBLE * released.deviation)

    return [
        _Target("unigrams", "words", unigrams, lambda total, _: _above(total.array(COUNT), 0.0), clipped,
                noised([COUNT], multiplier * _NORM),
                lambda total, _: _above(total.array(COUNT), VISIBLE * multiplier * _NORM)),
        _Target("pairs", "pairs", pairs, lambda total, _: _sketched(pairs, total.arrays)),
        _Target("n-grams", "pairs", ClippedNGrams(asked, Clipping(np.inf), marks=True),
                lambda total, _: _pairs_of(asked, total.arrays[COUNT] > 0), ClippedNGrams(asked, noise.clipping),
                lambda total: total, visible),
        _Target("training", "words", training, lambda total, count: _changed(total, network, count), None,
                noised(list(network.shape.sizes()), multiplier * most)),
    ]  # fmt: skip


def _above(counts: FloatArray, least: float) -> Guess:
    found = np.flatnonzero(counts > least)
    return set(found[found > EOS].tolist())


def _sketched(task: PairCollection, sums: Mapping[str, Any]) -> Guess:
    rows = task.found(sums, least=1, most=_MOST_PAIRS)
    pairs = rows.values.reshape(-1, 2).tolist()
    return {(a, b) for a, b in pairs if a != BOS and b != EOS and UNK not in (a, b)}


def _changed(total: Total, network: Network, count: int) -> Guess:
    """The words whose rows of the embedding changed most."""
    rows = total.array("embedding").reshape(network.shape.sizes()["embedding"])
    moved = np.linalg.norm(rows, axis=1)
    moved[: len(SPECIAL)] = -1.0
    return set(np.argsort(-moved, kind="stable")[:count].tolist())


def _pairs_asked(users: Users, vocabulary: Vocabulary) -> AskedNGrams:
    """All words, and the pairs that some user has: what a server that guesses well would ask for."""
    codes = users.population.word_ids(vocabulary)
    pairs = {
        pair for client in users.clients.tolist()
        for s in users.population.load(client, codes).sentences
        for pair in zip(s[:-1].tolist(), s[1:].tolist(), strict=True)
    }  # fmt: skip
    words = [[x] for x in range(len(vocabulary)) if x not in (BOS,)]
    built = topology_from_ngrams(Ragged.from_rows([*words, *map(list, sorted(pairs))]), len(vocabulary))
    return AskedNGrams.all_of(built.topology, vocabulary)


def _pairs_of(asked: AskedNGrams, chosen: Any) -> Guess:
    matrix, length = ngram_matrix(asked.topology)
    rows = matrix[np.flatnonzero(chosen & (length == 2))][:, :2].tolist()
    return {(a, b) for a, b in rows if a > EOS and b > EOS}
