"""What a fit to samples makes of n-grams that were not seen, and what people are told of them."""

from dataclasses import replace

import numpy as np
import pytest
from tests.reference.random_models import random_topology, random_weights, vocabulary

from fedgram.automata.counting import TopologyCounts
from fedgram.distill.sample_approx import Fit, fit


def test_there_is_a_warning_if_more_than_a_tenth_of_the_ngrams_was_never_visited() -> None:
    rng = np.random.default_rng(3)
    topology = random_topology(rng, words=5, order=3, ngrams=20)
    model, few = random_weights(rng, topology, 5), topology.arcs // 10
    nothing = TopologyCounts(topology, np.zeros(topology.arcs), np.zeros(topology.states), np.zeros(topology.states))
    for never in (0, few, few + 1, topology.arcs):
        asked = np.where(np.arange(topology.arcs) < never, 0.0, 0.5)
        warning = Fit(model, replace(nothing, asked=asked), before=1.0, after=1.0, unvisited=0).warning
        if never <= few:
            assert warning is None
        else:
            assert warning is not None
            assert warning.startswith(f"{never} of {topology.arcs} n-grams were never visited by a sample")


def test_what_no_sample_made_likely_has_a_weight_all_the_same() -> None:
    """It is e⁻¹⁸ times that of everything else, in a state whose other words were seen 2,000 times each."""
    topology = random_topology(np.random.default_rng(3), words=3, order=1, ngrams=9)
    seen = np.full(topology.arcs, 2000.0)
    seen[-1] = 0.0
    counts = TopologyCounts(topology, seen, np.zeros(topology.states), np.array([seen.sum(), 0.0]))
    weights = fit(counts, vocabulary(3)).model.log_weight
    assert weights[-1] == pytest.approx(-18.0, abs=1e-6)
    assert weights[:-1] == pytest.approx(-np.log(topology.arcs - 1), abs=1e-6)
