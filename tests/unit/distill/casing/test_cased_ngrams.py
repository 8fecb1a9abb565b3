"""Capitalising and lower-casing models n-gram by n-gram: properties of random models, and comparison with samples."""

import numpy as np
import pytest
from tests.reference.random_models import random_model
from tests.unit.distill.casing.test_capitalization import SENTENCES, cased_model, rng, trained

from fedgram.automata.approximate import count_source
from fedgram.automata.build import lowercase_topology, ngrams_of
from fedgram.automata.counting import cross_entropy, image_states
from fedgram.automata.lowercase import lowercase_model
from fedgram.automata.merge import renumber
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.properties import model_faults
from fedgram.automata.prune import prune_to_size
from fedgram.automata.sampling import sample_sentences
from fedgram.automata.scoring import score, step
from fedgram.automata.topology import arc_sources
from fedgram.core.arrays import Ragged
from fedgram.distill.casing.cap_sample_approx import cap_sample_approx
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_ngrams import capitalize_model, cased_ngrams
from fedgram.distill.casing.cased_words import Casing, casing_of
from fedgram.distill.source import NGramSource
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import UNK, Vocabulary

UNCASED = Vocabulary.of(["d", "ab", "e", "c"])  # e is no word of A_W
TEXT = [sentence.split() for sentence in SENTENCES]
LOWER = [[uncase(word) for word in sentence] for sentence in TEXT]


def log_prob(model: NGramModel, state: int, word: int) -> float:
    t = model.topology
    return float(step(t.first_arc, t.label, t.dest, t.backoff, model.log_weight, model.log_backoff, state, word)[0])


def random_pair(seed: int) -> tuple[NGramModel, Casing]:
    model = random_model(rng(100 + seed), order=1 + seed % 4, words=4)
    model = renormalize(NGramModel(model.topology, UNCASED, model.log_weight, model.log_backoff))
    return model, casing_of(Capitalizer(renormalize(cased_model(seed))), UNCASED)


@pytest.mark.parametrize("seed", range(12))
def test_capitals_divide_what_the_uncased_model_says(seed: int) -> None:
    """With every casing, arcs have p·r, and at every state the casings of a word sum to its probability."""
    model, casing = random_pair(seed)
    cased = capitalize_model(model, casing, least=0.0)
    t, A_W = cased.topology, casing.capitalizer
    assert model_faults(cased) == []
    assert cased.vocabulary is casing.vocabulary
    lower, words = lowercase_topology(t, cased.vocabulary)
    assert {tuple(words.decode(n.tolist())) for n in ngrams_of(lower)} == {
        tuple(UNCASED.decode(n.tolist())) for n in ngrams_of(model.topology)
    }
    q, a = image_states(t, model, casing.uncased_id), image_states(t, A_W.model, casing.own_id)
    for e, state in enumerate(arc_sources(t).tolist()):
        y = int(t.label[e])
        r = 1.0 if casing.own_id[y] == UNK else A_W.case_ratios(int(a[state]))[casing.own_id[y]]
        wanted = np.exp(log_prob(model, int(q[state]), int(casing.uncased_id[y]))) * r
        assert np.exp(cased.log_weight[e]) == pytest.approx(wanted, abs=1e-12)
    for state in range(t.states):
        said = np.zeros(len(UNCASED))
        for y in set(t.label[: t.first_arc[1]].tolist()):
            said[casing.uncased_id[y]] += np.exp(log_prob(cased, state, y))
        for x in set(model.topology.label[: model.topology.first_arc[1]].tolist()):
            assert said[x] == pytest.approx(np.exp(log_prob(model, int(q[state]), x)), abs=1e-9)


def test_unlikely_casings_are_left_out() -> None:
    uncased = trained(LOWER)
    casing = casing_of(Capitalizer(trained(TEXT)), uncased.vocabulary)
    sizes = [cased_ngrams(uncased, casing, least=least).arcs for least in (0.0, 0.01, 0.2, 0.6)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4
    assert cased_ngrams(uncased, casing, least=2.0).order == 1


def test_no_samples_are_better_than_samples() -> None:
    """On the same n-grams, the capitalised model fits capitalised text as well as that of CapSampleApprox."""
    uncased = trained(LOWER, smoothing="witten-bell")
    casing = casing_of(Capitalizer(trained(TEXT)), uncased.vocabulary)
    cased = capitalize_model(uncased, casing)
    sampled = cap_sample_approx(NGramSource(uncased), cased.topology, casing, samples=2000, seed=1).model
    text = casing.capitalize(sample_sentences(uncased, 20_000, seed=9))
    assert score(cased, text).perplexity < 1.01 * score(sampled, text).perplexity


# -- and in lower case again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_a_lower_case_model_stays_as_it_is(seed: int) -> None:
    model = random_model(rng(seed), order=1 + seed % 4, words=6)
    model = renormalize(NGramModel(model.topology, Vocabulary.of("uvwxyz"), model.log_weight, model.log_backoff))
    lower = lowercase_model(model)
    own = count_source(model, model.topology)
    assert lower.topology.arcs == model.topology.arcs
    assert cross_entropy(own.counts, lower) == pytest.approx(own.entropy, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_there_and_back(seed: int) -> None:
    """With every casing, the capitalised model in lower case is the uncased model."""
    model, casing = random_pair(seed)
    back = lowercase_model(capitalize_model(model, casing, least=0.0))
    assert set(back.vocabulary.words) == set(UNCASED.words)
    own = count_source(model, model.topology)
    assert cross_entropy(own.counts, renumber(back, UNCASED)) == pytest.approx(own.entropy, abs=1e-6)


def test_a_model_of_text_in_lower_case() -> None:
    """Casings that the text lacks are read by backoff, and not lost."""
    cased, uncased = (trained(text, smoothing="witten-bell") for text in (TEXT, LOWER))
    lower = lowercase_model(cased)
    assert model_faults(lower) == []
    assert set(lower.vocabulary.words) == set(uncased.vocabulary.words)
    rows = Ragged.from_rows([uncased.vocabulary.encode(sentence) for sentence in LOWER])
    ours = score(renumber(lower, uncased.vocabulary), rows).perplexity
    assert score(uncased, rows).perplexity < ours < 1.2 * score(uncased, rows).perplexity


# -- pruning ----------------------------------------------------------------------------------------------------------


def test_expected_histories_prune_better() -> None:
    """First words have a capital in every sentence, but rarely elsewhere; pruning must keep what follows them."""
    model = trained(TEXT)
    kl = []
    for expected in (False, True):
        pruned = prune_to_size(model, 70, split_ties=True, expected_histories=expected)
        assert pruned.topology.arcs <= 70
        assert model_faults(pruned) == []
        kl.append(cross_entropy(count_source(model, pruned.topology).counts, pruned))
    assert kl[1] < kl[0]
