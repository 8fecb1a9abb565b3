"""What `NoisySums` releases of one sum, and what it records: without rounds, devices or training."""

from collections.abc import Sequence

import numpy as np
import pytest

from fedgram.core.arrays import LongArray
from fedgram.core.errors import InvariantError
from fedgram.federated.mechanism import Account, NoisySums
from fedgram.federated.task import Total
from fedgram.privacy.accounting import Gaussian
from fedgram.privacy.ledger import BudgetError, Ledger
from fedgram.privacy.mechanisms import GaussianSums
from fedgram.privacy.noise import Randomness, SeededRandomness, SystemRandomness

BITS = 10


class Rank:
    """One of two processes; what it gives to the sum is kept."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.given: list[list[LongArray]] = []

    def sum(self, arrays: Sequence[LongArray]) -> list[LongArray]:
        self.given.append(list(arrays))
        return list(arrays)


def noisy(
    ledger: Ledger | None = None, *, randomness: Randomness | None = None, size: int = 5, name: str = "a",
    sampling: float | None = None, rank: Rank | None = None,
) -> NoisySums:  # fmt: skip
    randomness = randomness or SeededRandomness(1)
    account = Account(ledger or Ledger(), "training", Gaussian(1.0, 3), 3, randomness.name)
    noise = GaussianSums({name: size}, {name: 2.0}, randomness)
    mechanism = NoisySums(noise, randomness, account, expected=7.0, sampling_probability=sampling, ranks=rank)
    mechanism.begin()
    return mechanism


def total() -> Total:
    return Total(BITS, {"a": np.arange(5) << BITS, "b": np.arange(3) << BITS}, 3 << BITS, 3)


def test_the_weight_and_the_number_of_reports_are_those_of_the_plan() -> None:
    released = noisy().release(1, total())
    assert (released.weight, released.devices, released.bits) == (7 << BITS, 7, BITS)


def test_vectors_without_noise_are_withheld_and_the_others_have_it() -> None:
    released = noisy().release(1, total())
    assert not released.arrays["b"].any()
    noise = released.arrays["a"] - total().arrays["a"]
    assert (noise != 0).all()
    assert np.array_equal(noise, GaussianSums({"a": 5}, {"a": 2.0}, SeededRandomness(1)).draw(1, BITS)["a"])


def test_noise_for_a_vector_that_the_sum_does_not_have_is_refused() -> None:
    with pytest.raises(InvariantError, match="noise for a vector that the sum does not have"):
        noisy(name="c").release(1, total())


def test_a_run_is_planned_and_every_round_recorded_before_it_begins() -> None:
    ledger = Ledger()
    mechanism = noisy(ledger)
    assert [(entry.name, entry.rounds, entry.spent) for entry in ledger.entries] == [("training", 3, 0)]
    for number in (1, 2, 3):
        mechanism.check(number)
        assert ledger.entries[0].spent == number
    with pytest.raises(BudgetError):
        mechanism.check(4)


def test_noise_that_cannot_be_drawn_again_is_committed_with_every_round() -> None:
    assert noisy(randomness=SystemRandomness()).commits_every_round
    assert not noisy().commits_every_round


def test_the_name_of_a_run_does_not_give_its_cohorts_away() -> None:
    ledger = Ledger()
    cohorts = noisy(ledger, sampling=0.1).cohorts
    assert cohorts is not None
    assert ledger.entries[0].run not in f"{cohorts.seed:064x}"


def test_of_several_processes_the_first_adds_the_noise_and_keeps_the_account() -> None:
    ledger, ranks = Ledger(), [Rank(0), Rank(1)]
    first, second = (noisy(ledger if rank.rank == 0 else Ledger(), rank=rank) for rank in ranks)
    assert len(ledger.entries) == 1
    released = [mechanism.release(1, total()).arrays["a"] for mechanism in (first, second)]
    assert (released[0] != total().arrays["a"]).all()
    assert np.array_equal(released[1], total().arrays["a"])
    assert all(not array.any() for given in ranks[1].given for array in given)


def test_a_resumed_run_continues_its_noise_and_its_entry() -> None:
    ledger = Ledger()
    whole = noisy(ledger)
    whole.check(1)
    whole.release(1, total())
    saved = whole.save()
    resumed = noisy(ledger, randomness=SeededRandomness(1))
    resumed.load(saved)
    resumed.check(2)
    assert [entry.spent for entry in ledger.entries if entry.spent] == [2]
    assert np.array_equal(whole.release(2, total()).arrays["a"], resumed.release(2, total()).arrays["a"])
