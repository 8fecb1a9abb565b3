"""Worked examples that can be followed by hand."""

import numpy as np
import pytest
from tests.reference.dict_model import DictModel, expected_visits
from tests.reference.random_models import random_model

from fedgram.automata.approximate import count_source
from fedgram.automata.build import ngrams_of, topology_from_ngrams
from fedgram.automata.counting import TopologyCounts, counts_from_arcs
from fedgram.automata.kl_minimize import minimize_kl, summed_model
from fedgram.automata.topology import Topology
from fedgram.core.arrays import Ragged
from fedgram.text.vocabulary import Vocabulary

AB_AC = Vocabulary.of(["ab", "ac"])


def ab_ac_topology() -> Topology:
    """Paper, Figure 3 (a): u reads ab, ac and </s>; ab reads ac."""
    rows = [AB_AC.encode(ngram) for ngram in (["ab"], ["ac"], ["</s>"], ["ab", "ac"])]
    return topology_from_ngrams(Ragged.from_rows(rows), len(AB_AC), open_vocabulary=False).topology


def ab_ac_counts() -> TopologyCounts:
    t = ab_ac_topology()
    C = {("ab",): 1.384615384, ("ac",): 0.784615385, ("</s>",): 1.0, ("ab", "ac"): 0.830769231}
    arc = np.array([C[tuple(AB_AC.decode(row.tolist()))] for row in ngrams_of(t)])
    visits = np.array([1.615384616, 1.0, 1.384615384])  # u, <s>, ab
    return counts_from_arcs(t, arc, visits, 1.0)


def test_kl_minimum_of_the_papers_example() -> None:
    counts = ab_ac_counts()
    assert counts.backoff == pytest.approx([0.0, 1.0, 0.553846153])
    model = minimize_kl(counts, AB_AC)
    p = {tuple(AB_AC.decode(n)): w for n, w in DictModel(model).p.items()}
    assert p[("ab",)] == pytest.approx(0.406452, abs=1e-6)
    assert p[("ac",)] == pytest.approx(0.3, abs=1e-6)
    assert p[("</s>",)] == pytest.approx(0.293548, abs=1e-6)
    assert p[("ab", "ac")] == pytest.approx(0.6, abs=1e-6)
    assert np.exp(model.log_backoff[2]) == pytest.approx(0.571429, abs=1e-6)


def test_summed_counts_of_the_papers_example() -> None:
    p = {tuple(AB_AC.decode(n)): w for n, w in DictModel(summed_model(ab_ac_counts(), AB_AC)).p.items()}
    assert [p[("ab",)], p[("ac",)], p[("</s>",)]] == pytest.approx([0.3462, 0.4038, 0.25], abs=1e-4)


def test_the_count_of_new_york() -> None:
    """Paper §4: C(York, New) is the sum of p(York | prefix) over the prefixes that end in New."""
    source = random_model(np.random.default_rng(4), order=3)
    new, york = 3, 4
    rows = Ragged.from_rows([[new, york], *([[x] for x in range(2, 9)])])
    target = topology_from_ngrams(rows, len(source.vocabulary), open_vocabulary=source.has_unknown).topology
    counts = count_source(source, target).counts
    arc = [row.tolist() for row in ngrams_of(target)].index([new, york])
    reference, visits = DictModel(source), expected_visits(source)
    by_hand = sum(v * reference.prob(h, york) for h, v in visits.items() if h[-1:] == (new,))
    # A history that ends in New without being a state counts as the empty history.
    assert any(h[-1:] == (new,) for h in visits)
    assert counts.arc[arc] == pytest.approx(by_hand, rel=1e-9)


def test_unvisited_states_follow_their_backoff() -> None:
    t = ab_ac_topology()
    arc = np.array([1.0, 0.0, 1.0, 0.0])  # </s>, ab, ac, ab ac: ab is never read
    counts = counts_from_arcs(t, arc, np.array([1.0, 1.0, 0.0]), 1.0)
    model = DictModel(minimize_kl(counts, AB_AC))
    ab, ac = AB_AC.encode(["ab", "ac"])
    assert model.prob((ab,), ac) == pytest.approx(model.prob((), ac))
    assert model.prob((ab,), 2) == pytest.approx(model.prob((), 2))
