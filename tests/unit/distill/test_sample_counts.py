"""The sums over samples: how a visit is added, what may be added to what, and how far."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.reference.random_models import random_topology

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.distill.sample_counts import SampleCounts

LABELS = 7  # `<s>`, `</s>`, `<unk>` and four words
ROW = np.zeros(1, np.int64)


def nothing() -> SampleCounts:
    return SampleCounts.zero(random_topology(np.random.default_rng(1), words=4, order=2, ngrams=6))


def visited(times: int) -> SampleCounts:
    counts = nothing()
    counts.visits[1] = times
    return counts


def test_counts_grow_no_further_than_their_integers() -> None:
    """A visit adds at most 2^34 to a sum of 63 bits, of which 2^28 visits leave one bit free."""
    half = 1 << 27
    assert (visited(half) + visited(half)).positions == 268_435_456
    with pytest.raises(FedgramError, match="more than 268,435,456 visits cannot be counted"):
        visited(half) + visited(half + 1)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("part", "up"), [(0.25, 0), (0.75, 1)])
def test_a_probability_is_rounded_to_the_nearest_number(kind: type, part: float, up: int) -> None:
    """Were it cut off, sums over many visits would be too low."""
    p: NDArray[np.floating[Any]] = ((np.arange(LABELS) + part) / 2.0**34).astype(kind)
    counts = nothing()
    counts.add(p[None], ROW, np.zeros(1, np.int32))
    words = counts.topology.first_arc[1]
    assert counts.summed[:words].tolist() == [label + up for label in counts.topology.label[:words].tolist()]


def test_the_entropy_of_some_visits_is_not_that_of_all() -> None:
    """If the entropy is not known at one visit, that of the source is not known, whatever is added afterwards."""
    p, states, known = np.full((1, LABELS), 1 / LABELS), np.zeros(1, np.int32), np.array([0.75])
    whole, partly = nothing(), nothing()
    whole.samples = partly.samples = 2
    for _ in range(2):
        whole.add(p, ROW, states, known)
    assert whole.source_entropy == 0.75
    cases: tuple[tuple[NDArray[Any] | None, float | None], ...] = ((known, 0.375), (None, None), (known, None))
    for entropy, shown in cases:
        partly.add(p, ROW, states, entropy)
        assert partly.source_entropy == shown
    assert (whole + whole).source_entropy is not None
    assert (whole + partly).source_entropy is None
    assert (partly + whole).source_entropy is None


@pytest.mark.parametrize("name", ["summed", "visits"])
def test_counts_of_other_topologies_are_not_added(name: str) -> None:
    """One that differs in its n-grams alone, or in its histories alone, is another one."""
    counts = visited(3)
    larger: dict[str, Any] = {name: np.append(getattr(counts, name), 0)}
    other = replace(counts, **larger)
    for a, b in ((counts, other), (other, counts)):
        with pytest.raises(InvariantError, match="different topologies"):
            a + b
