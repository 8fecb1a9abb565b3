"""Vocabulary discovery from end to end: on simulated devices all at once, in rounds, masked, and on real devices."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.transports import LocalTransport, fleet_of, make_devices

from fedgram.core.checkpoint import OtherWorkError
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import CohortOptions, RoundPlan
from fedgram.federated.devices import SimulatedDevices
from fedgram.federated.discovery.alphabet import Alphabet
from fedgram.federated.discovery.discover import DiscoveredWords, discover
from fedgram.federated.discovery.passes import AtOnce, InRounds, LevelSum
from fedgram.federated.discovery.prefix_level import COUNT, Collection, PrefixLevel
from fedgram.federated.fleet import Fleet
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import Total, device_stream
from fedgram.privacy.ledger import Budget, BudgetError, Ledger
from fedgram.privacy.noise import SeededRandomness
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import Vocabulary

WHITELIST = ["the", "and", "of"]
LOW_NOISE: dict[str, Any] = {"epsilon": 60, "delta": 1e-2, "min_holders": 4, "levels": 6, "max_candidates": 60_000}
MASKING = SecureSettings(min_devices=3)


def people(users: int = 40, seed: int = 0) -> Population:
    """Users with words that few or many others have; every fifth has only known words, and one has no words."""
    rng = np.random.default_rng(seed)
    words = [*["zoomer"] * 6, *["yeet"] * 4, "Yeet", "blorp", "sk8er-boi", "ö", "verylongword", "the"]
    rows = [(f"user{i:03d}", " ".join(["of the", *rng.choice(words, 6)] if i % 5 else ["and"])) for i in range(users)]
    return population_from_messages([(user, text, "train") for user, text in [*rows, ("nobody", "!")]])


PEOPLE = people()


def found(users: Any = None, **settings: Any) -> DiscoveredWords:
    chosen = {**LOW_NOISE, "devices_per_round": 9, **settings}
    return discover(users or PEOPLE.train, WHITELIST, randomness=SeededRandomness(1), seed=2, **chosen)


def same(one: DiscoveredWords, other: DiscoveredWords) -> bool:
    return (one.words, one.holders, one.levels, one.guarantee) == (
        other.words, other.holders, other.levels, other.guarantee,
    )  # fmt: skip


@pytest.mark.parametrize("words_per_device", [1, 3])
def test_rounds_give_the_same_as_all_users_at_once(words_per_device: int) -> None:
    at_once = found(words_per_device=words_per_device)
    assert {"zoomer", "yeet"} <= set(at_once.words)
    assert same(at_once, found(SimulatedDevices(PEOPLE.train), words_per_device=words_per_device))
    assert same(at_once, found(SimulatedDevices(PEOPLE.train, as_bytes=True), words_per_device=words_per_device))


@pytest.mark.parametrize("words_per_device", [1, 3])
def test_masked_rounds_give_the_same(words_per_device: int) -> None:
    """If the last cohort is not too small to be masked."""
    settings: dict[str, Any] = {"devices_per_round": len(PEOPLE), "dropout": 0.0, "words_per_device": words_per_device}
    assert same(found(**settings), found(**settings, secure_aggregation=True))


def test_a_sum_is_that_of_the_devices_one_by_one() -> None:
    """At every level, also for some of the devices."""
    known = Vocabulary.of(WHITELIST)
    c = Collection(known, Alphabet.of(known.words), levels=5, first=2, words_per_device=4, choice=3)
    passes = AtOnce(PEOPLE.train, c, lambda _: lambda *_: None)
    for level, prefixes in enumerate([[""], ["zo", "ye", "sk"], ["zoo", "sk8", "yee"], ["yeet", "zoom"]]):
        task = PrefixLevel(c, level, prefixes)
        codes = task.encode(PEOPLE.words)
        for batch in (None, 11):
            total, reports = passes.run(task, seed=5, batch=batch)
            members = PEOPLE.clients().tolist()
            if batch:
                members = operation_order(5)[:batch]
            expected = Total.zero(task.size, task.bits)
            for device in members:
                update = task.client_update(Record(), PEOPLE.load(device, codes), device_stream(9, 1, device))
                expected.add(update, task.bounds)
            assert np.array_equal(total, expected.arrays[COUNT])
            assert reports == len(members)
        assert total.any()


def operation_order(seed: int) -> list[int]:
    from fedgram.federated.cohort import draw_order

    order: list[int] = draw_order(PEOPLE.clients(), seed=seed, round_number=1).tolist()
    return order


def test_TrieHH_in_one_round_gives_the_same_as_at_once() -> None:
    crowd = population_from_messages([(f"u{i:04d}", "yeet" if i % 3 else "zoom", "train") for i in range(3000)])
    settings: dict[str, Any] = {"method": "triehh", "epsilon": 8, "delta": 1e-3, "devices_per_round": 3000}
    at_once = found(crowd.train, **settings)
    assert at_once.words == ("yeet", "zoom")
    alone = SimulatedDevices(crowd.train)
    assert same(at_once, found(alone, **settings, dropout=0.0, over_selection=1.0))
    in_cohorts = found(alone, **{**settings, "devices_per_round": 50})
    assert set(in_cohorts.words) == {"yeet", "zoom"}
    assert 0 <= at_once.levels[0].reports - in_cohorts.levels[0].reports < 10
    assert at_once.guarantee.epsilon <= 8


class RealDevices:
    """Devices with their own stores, behind a transport in this process."""

    count = None

    def __init__(self, folder: Path, population: Population, masking: SecureSettings | None) -> None:
        words = population.words
        texts = {c: [" ".join(words[w] for w in s) for s in population.sentences(c)] for c in range(len(population))}
        self.transport = LocalTransport(make_devices(folder, texts, masking))
        self._masking = masking

    def participations(self, limit: int | None) -> int | None:
        return limit

    def run_options(self, cohort: CohortOptions, rounds: int | None) -> RunOptions:
        return RunOptions(rounds, RoundPlan(cohort.devices_per_round, 1.0, attempts=3), self._masking)

    @contextmanager
    def working_on(self, job: Job[Any], cohort: CohortOptions, rounds: int | None) -> Iterator[Fleet]:  # noqa: ARG002
        yield fleet_of(self.transport, job, Timeouts(wait_for=len(self.transport.devices)))


TYPISTS = people(17, seed=3)  # with nobody who has no words, whose device would decline
TYPISTS = population_from_messages(
    (TYPISTS.client_ids[c], " ".join(TYPISTS.words[w] for w in TYPISTS.sentences(c).values), "train")
    for c in range(len(TYPISTS))
    if len(TYPISTS.sentences(c).values)
)


@pytest.mark.parametrize("masking", [None, MASKING])
def test_real_devices_give_the_same_as_the_simulation(tmp_path: Path, masking: SecureSettings | None) -> None:
    settings: dict[str, Any] = {"devices_per_round": len(TYPISTS), "min_holders": 3, "dropout": 0.0, "levels": 4}
    devices = RealDevices(tmp_path, TYPISTS, masking)
    there = found(devices, **settings)
    assert same(there, found(TYPISTS.train, **settings))
    assert there.words
    assert there.devices is None


def test_a_device_answers_a_level_once_whatever_the_server_asks(tmp_path: Path) -> None:
    devices = RealDevices(tmp_path, TYPISTS, None)
    passes = InRounds(devices, CohortOptions(devices_per_round=5), None, lambda _: lambda *_: None)
    known = Vocabulary.of(WHITELIST)
    c = Collection(known, Alphabet.of(known.words), levels=6, first=2, words_per_device=1, choice=3)
    total, reports = passes.run(PrefixLevel(c, 1, ["zo"]), seed=1, batch=None)
    assert 0 < total.sum() < reports == len(TYPISTS)
    other = Collection(known, c.alphabet, levels=6, first=2, words_per_device=1, choice=4)
    for again in (PrefixLevel(c, 1, ["ye"]), PrefixLevel(other, 1, ["zo"])):
        with pytest.raises(FedgramError, match="0 devices can be invited"):
            passes.run(again, seed=2, batch=None)
    assert passes.run(PrefixLevel(c, 2, ["zoo"]), seed=1, batch=None).reports == len(TYPISTS)


def test_words_with_enough_holders_are_found_and_others_are_not() -> None:
    """The number of holders that a word needs is the one that is announced."""
    options: dict[str, Any] = {"epsilon": 4, "delta": 1e-8, "levels": 5}
    announced = discover(PEOPLE.train, WHITELIST, **options)
    needed, surely = announced.holders_needed, int(announced.requirement.split("found, ")[1].split()[0])
    names = ["".join(chr(97 + (i * k) % 26) for k in (1, 3, 5, 7)) for i in range(1, 27)]
    holders = {name: surely if i % 2 else needed // 2 for i, name in enumerate(dict.fromkeys(names))}
    texts = [name for name, n in holders.items() for _ in range(n)]
    crowd = population_from_messages((f"u{i:05d}", text, "train") for i, text in enumerate(texts))
    tally: Counter[bool] = Counter()
    for seed in range(8):
        words = discover(crowd.train, WHITELIST, randomness=SeededRandomness(seed), **options).words
        assert set(words) <= holders.keys()
        tally.update(holders[word] == surely for word in words)
    many = sum(n == surely for n in holders.values())
    assert tally[True] >= 0.95 * 8 * many
    assert tally[False] <= 0.05 * 8 * (len(holders) - many)


def test_a_small_population_is_told_why() -> None:
    few = discover(PEOPLE.train, WHITELIST, epsilon=1, delta=1e-10)
    assert not few.words
    assert not few.levels
    assert few.reason is not None
    assert f"a word needs about {few.holders_needed} holders, and there are 41 devices" in few.reason
    assert "no device was asked" in few.reason
    rare = population_from_messages((f"u{i:03d}", f"w{i:03d}", "train") for i in range(300))
    none = discover(rare.train, WHITELIST, epsilon=4, delta=1e-10, randomness=SeededRandomness(0))
    assert not none.words
    assert none.reason == (
        f"no word outside the whitelist has enough holders among 300 devices; about {none.holders_needed} are needed"
    )
    voted = discover(PEOPLE.train, WHITELIST, method="triehh", epsilon=1, delta=1e-10)
    assert voted.reason is not None
    assert "no device was asked" in voted.reason
    assert found().reason is None


def test_noise_is_new_unless_seeded() -> None:
    one, other = (discover(PEOPLE.train, WHITELIST, **LOW_NOISE, words_per_device=2) for _ in range(2))
    assert one.holders != other.holders
    assert "cryptographic" in one.guarantee.origin["randomness"]
    assert same(found(), found())
    assert "not private" in found().guarantee.origin["randomness"]


@pytest.mark.parametrize("killed_at", [0, 2])
def test_an_interrupted_collection_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int) -> None:
    """With the prefixes that were released before, even if the noise is not repeatable."""

    class Stopped(BaseException):
        pass

    ledger = Ledger()
    settings: dict[str, Any] = {**LOW_NOISE, "devices_per_round": 9, "folder": tmp_path, "ledger": ledger}
    plain, asked = InRounds.run, list[PrefixLevel]()

    def interrupted(self: InRounds, task: PrefixLevel, **more: Any) -> LevelSum:
        asked.append(task)
        if len(asked) == killed_at + 1:
            raise Stopped
        return plain(self, task, **more)

    monkeypatch.setattr(InRounds, "run", interrupted)
    with pytest.raises(Stopped):
        discover(SimulatedDevices(PEOPLE.train), WHITELIST, **settings)
    result = discover(SimulatedDevices(PEOPLE.train), WHITELIST, **settings)
    assert asked[killed_at + 1].settings().fields == asked[killed_at].settings().fields
    assert asked[killed_at + 1].prefixes == asked[killed_at].prefixes
    count = len(asked)
    again = discover(SimulatedDevices(PEOPLE.train), WHITELIST, **settings)
    assert same(result, again)
    assert len(asked) == count
    assert not list(tmp_path.glob("level-*"))  # the sums without noise
    assert [(entry.name, entry.spent) for entry in ledger.entries] == [("discovery", 1)]
    assert ledger.spent(LOW_NOISE["delta"]).epsilon == pytest.approx(LOW_NOISE["epsilon"], rel=1e-6)
    with pytest.raises(OtherWorkError, match="epsilon"):
        discover(SimulatedDevices(PEOPLE.train), WHITELIST, **{**settings, "epsilon": 61})


def test_a_discovery_beyond_the_budget_asks_nobody() -> None:
    asked: list[str] = []

    def begin(description: str, total: int | None = None, *, unit: str = "") -> Any:  # noqa: ARG001
        asked.append(description)
        return lambda *_: None

    with pytest.raises(BudgetError, match="discovery would exceed"):
        discover(PEOPLE.train, WHITELIST, **LOW_NOISE, ledger=Ledger(budget=Budget(59.0, 1e-2)), begin=begin)
    assert not asked


def test_TrieHH_must_know_the_number_of_devices(tmp_path: Path) -> None:
    with pytest.raises(FedgramError, match="number of devices"):
        found(RealDevices(tmp_path, TYPISTS, None), method="triehh")
