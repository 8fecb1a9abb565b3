"""The examples run, and the readable specification agrees with the toolkit."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from examples import compose as compose_example
from examples import sample_approx
from tests.unit.automata.test_compose import ab_ac_composed, figure_3_counts
from tests.unit.automata.test_goldens import AB_AC

from fedgram.automata.build import ngrams_of, topology_from_ngrams
from fedgram.automata.counting import counts_from_arcs
from fedgram.automata.kl_minimize import minimize_kl
from fedgram.automata.topology import state_histories
from fedgram.automata.transfer import transfer_counts
from fedgram.core.arrays import Ragged
from fedgram.text.vocabulary import Vocabulary

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run_and_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 80
    subprocess.run([sys.executable, str(path)], check=True, capture_output=True)


def test_sample_approx_on_a_page_is_the_toolkits() -> None:
    C, C_phi = sample_approx.count(500, random.Random(1))
    by_hand = sample_approx.minimize(C, C_phi)
    words = Vocabulary.of(["a", "b", "c"])
    bigrams = [[q, x] for q, read in sample_approx.BIGRAMS.items() for x in read]
    rows = Ragged.from_rows([words.encode(n) for n in [*([x] for x in sample_approx.LABELS), *bigrams]])
    t = topology_from_ngrams(rows, len(words), open_vocabulary=False).topology
    ngrams = [words.decode(row.tolist()) for row in ngrams_of(t)]
    keys = [(n[-1], n[0] if len(n) == 2 else "") for n in ngrams]
    arc = np.array([C[key] for key in keys])
    names = ["".join(words.decode(h[:n].tolist())) for h, n in zip(*state_histories(t), strict=True)]
    visits = np.array([C_phi[q] + sum(C[x, q] for x in sample_approx.BIGRAMS.get(q, [])) for q in names])
    visits[0] = sum(C[x, ""] for x in sample_approx.LABELS) - sum(C_phi.values())
    model = minimize_kl(counts_from_arcs(t, arc, visits, 1.0), words)
    assert np.exp(model.log_weight) == pytest.approx([by_hand[key] for key in keys], abs=1e-6)


def test_composition_on_a_page_is_the_toolkits() -> None:
    composed = ab_ac_composed()
    arcs, backoff = compose_example.compose()
    assert len(arcs) == composed.topology.states - 1
    assert sum(map(len, arcs.values())) == composed.topology.arcs - int(composed.topology.first_arc[1])
    assert len(backoff) == 3
    C, C_phi = compose_example.transfer()
    counts = transfer_counts(composed, figure_3_counts())
    ngrams = [AB_AC.decode(row.tolist()) for row in ngrams_of(composed.words)]
    assert counts.arc == pytest.approx([C[n[-1], n[0] if len(n) == 2 else ""] for n in ngrams], abs=1e-9)
    assert counts.backoff[1:] == pytest.approx([C_phi["<s>"], C_phi["ab"]], abs=1e-9)
