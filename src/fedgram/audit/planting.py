"""Planted secrets: random sequences of words that some users type some times (Carlini et al. 2019, Secret Sharer).

A grid says how many users hold a secret, and how often each of them types it. The words of secrets are drawn uniformly
from words that all models know, so that a secret is as likely as any other sequence before training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedgram.core.arrays import IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.random import stream
from fedgram.text.messages import SPLITS
from fedgram.text.population import Population


@dataclass(frozen=True, slots=True)
class Canary:
    """A secret, the number of users who hold it, and how often each of them types it."""

    words: tuple[str, ...]
    holders: int
    repeats: int

    def __post_init__(self) -> None:
        if not self.words or self.holders < 0 or self.repeats < 1:
            raise FedgramError("a canary needs words, holders and repeats")

    def __repr__(self) -> str:
        return f"Canary({len(self.words)} words, {self.holders} holders, {self.repeats} repeats)"


def draw_canaries(
    pool: Sequence[str], *, length: int, holders: Sequence[int], repeats: Sequence[int], copies: int, seed: int
) -> list[Canary]:
    """So many different secrets for every cell of the grid, and one more column of secrets that nobody holds."""
    cells = [(h, r) for h in holders if h for r in repeats]
    cells += [(0, 1)] if 0 in holders else []
    count = len(cells) * copies
    rows = np.unique(draw_sequences(pool, length, 2 * count, stream(seed, "secrets")), axis=0)
    if len(rows) < count:
        raise FedgramError(f"{len(pool)} words are too few for {count} different secrets of {length} words")
    chosen = stream(seed, "secrets of cells").permutation(len(rows))[:count]
    secrets = [tuple(pool[x] for x in rows[i].tolist()) for i in chosen.tolist()]
    return [Canary(secret, *cells[i // copies]) for i, secret in enumerate(secrets)]


def draw_sequences(pool: Sequence[str], length: int, count: int, rng: np.random.Generator) -> IntArray:
    """Random sequences, one per row, as numbers of the pool's words."""
    return rng.integers(0, len(pool), (count, length), np.int32)


def plant(population: Population, canaries: Sequence[Canary], *, seed: int) -> Population:
    """The population in which train users hold the secrets; their own sentences stay before these."""
    train = population.clients("train")
    most = max((canary.holders for canary in canaries), default=0)
    if most > len(train):
        raise FedgramError(f"there are {len(train)} train users; {most} cannot hold a secret")
    index = {word: i for i, word in enumerate(population.words)}
    owners, sentences = [], []
    for number, canary in enumerate(canaries):
        ids = [index.setdefault(word, len(index)) for word in canary.words]
        for client in stream(seed, "holders", number).choice(train, canary.holders, replace=False).tolist():
            owners += [client] * canary.repeats
            sentences += [ids] * canary.repeats
    return _appended(population, np.array(owners, np.int64), sentences, tuple(index))


def replaced(population: Population, texts: Mapping[int, Sequence[tuple[str, ...]]]) -> Population:
    """The population in which some clients type these sentences and nothing else."""
    p, index = population, {word: i for i, word in enumerate(population.words)}
    owners, sentences = [], []
    for client, typed in texts.items():
        owners += [client] * len(typed)
        sentences += [[index.setdefault(word, len(index)) for word in sentence] for sentence in typed]
    owner = np.repeat(np.arange(len(p)), np.diff(p.first_sentence))
    keep = np.flatnonzero(~np.isin(owner, np.array(list(texts), np.int64)))
    kept = Ragged(p.token, p.first_token).take(keep)
    first_sentence = np.searchsorted(owner[keep], np.arange(len(p) + 1)).astype(np.int64)
    others = Population(p.client_ids, p.split, first_sentence, kept.offsets, kept.values, p.words)
    return _appended(others, np.array(owners, np.int64), sentences, tuple(index))


def _appended(
    population: Population, owners: LongArray, sentences: list[list[int]], words: tuple[str, ...]
) -> Population:
    """The population with more sentences of some clients."""
    p = population
    lengths = np.concatenate([np.diff(p.first_token), np.array([len(s) for s in sentences], np.int64)])
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    token = np.concatenate([p.token, np.array([x for s in sentences for x in s], np.int32)])
    owner = np.concatenate([np.repeat(np.arange(len(p)), np.diff(p.first_sentence)), owners])
    order = np.argsort(owner, kind="stable")
    first_token = np.concatenate([[0], np.cumsum(lengths[order])]).astype(np.int64)
    inside = np.arange(first_token[-1]) - np.repeat(first_token[:-1], lengths[order])
    moved = token[np.repeat(starts[order], lengths[order]) + inside].astype(np.int32)
    first_sentence = np.searchsorted(owner[order], np.arange(len(p) + 1)).astype(np.int64)
    return Population(p.client_ids, p.split, first_sentence, first_token, moved, words)


def as_population(rows: IntArray, pool: Sequence[str]) -> Population:
    """Sequences of words as the sentences of one user, so that models can score them."""
    count, length = rows.shape
    first_token = np.arange(count + 1, dtype=np.int64) * length
    split = np.array([SPLITS.index("test")], np.uint8)
    return Population(("x",), split, np.array([0, count], np.int64), first_token, rows.ravel(), tuple(pool))
