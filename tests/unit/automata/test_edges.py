"""Edge cases: rounding errors, empty states and extreme weights that once gave wrong results."""

from pathlib import Path

import numpy as np
import pytest
from tests.reference.dict_model import DictModel
from tests.reference.random_models import random_model, random_sentences, vocabulary

from fedgram.automata.approximate import approximate, count_source
from fedgram.automata.build import count_ngrams, lowercase_topology, topology_from_ngrams
from fedgram.automata.counting import expected_visits
from fedgram.automata.merge import merge, replace_unigrams
from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.automata.properties import model_faults, topology_faults
from fedgram.automata.sampling import sample_sentences
from fedgram.automata.scoring import score
from fedgram.automata.smoothing import smooth
from fedgram.automata.topology import Topology
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.formats.arpa import read_arpa, write_arpa
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary


def full_bigrams(seed: int) -> NGramModel:
    """Every history reads every label, so that only rounding errors are left for the unigrams."""
    labels = [EOS, 3, 4]
    rows = [[x] for x in labels] + [[h, x] for h in (BOS, 3, 4) for x in labels]
    t = topology_from_ngrams(Ragged.from_rows(rows), 5, open_vocabulary=False).topology
    rng = np.random.default_rng(seed)
    weight = np.concatenate([rng.dirichlet(np.ones(3)) for _ in range(4)])
    return model_from_weights(t, vocabulary(2), weight)


def test_states_reached_only_by_rounding_errors_are_unvisited() -> None:
    for seed in range(100):
        model = full_bigrams(seed)
        result = approximate(model, model.topology)
        assert abs(result.kl) < 1e-9
        assert model_faults(result.model) == []


def test_the_kl_of_a_sampled_fit_is_from_the_source() -> None:
    source = random_model(np.random.default_rng(2), order=3)
    target = random_model(np.random.default_rng(3), order=2).topology
    exact = approximate(source, target)
    for samples in (1, 30, 3000):
        sampled = approximate(source, target, samples=samples, seed=1)
        assert sampled.kl >= exact.kl - 1e-9
        assert sampled.source.entropy == pytest.approx(exact.source.entropy)
    assert sampled.kl == pytest.approx(exact.kl, rel=0.05)


def test_prior_visits_help_rarely_visited_states() -> None:
    for seed in range(20):
        source = random_model(np.random.default_rng(seed), order=3)
        fits = [approximate(source, source.topology, samples=k, seed=seed).kl for k in (20, 200, 20000)]
        assert fits[2] < fits[0] + 1e-9
        assert fits[2] < 0.02 * max(count_source(source, source.topology).entropy, 1.0)


def test_sentences_that_never_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "endless.arpa"
    path.write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-99 <s>\n-99 </s>\n0 a\n\n\\end\\\n")
    with pytest.raises(FedgramError, match="do not end"):
        expected_visits(read_arpa(path))


def test_probability_one_by_backing_off() -> None:
    """The sum log α + log p may be slightly greater than 0 by rounding."""
    t = topology_from_ngrams(Ragged.from_rows([[EOS], [3], [BOS, 3]]), 4, open_vocabulary=False).topology
    for p in np.linspace(0.01, 0.99, 200):
        model = model_from_weights(t, vocabulary(1), np.array([p, 1.0 - p, 1e-40]))
        assert abs(approximate(model, t).kl) < 1e-9


def test_replaced_unigrams_keep_the_unknown_word() -> None:
    text = random_sentences(np.random.default_rng(0), words=6, sentences=30)
    model = smooth(count_ngrams(text, vocabulary(6), order=2, open_vocabulary=True), "katz")
    replaced = replace_unigrams(model, {"w0": 5.0, "<unk>": 1e9, "</s>": 1e9})
    assert DictModel(replaced).prob((), UNK) == pytest.approx(DictModel(model).prob((), UNK))
    assert model_faults(replaced) == []
    closed = smooth(count_ngrams(text, vocabulary(6), order=2), "katz")
    with pytest.raises(FedgramError, match="share no word"):
        replace_unigrams(closed, {"<unk>": 5.0})


def test_a_weight_of_one_is_the_model_itself() -> None:
    a, b = (random_model(np.random.default_rng(seed), order=2) for seed in (1, 2))
    assert np.array_equal(merge(a, b, weight=1.0).topology.label, a.topology.label)
    assert np.array_equal(merge(a, b, weight=0.0).topology.label, b.topology.label)


def test_unseen_words_together_get_no_more_than_the_rarest_word() -> None:
    text = Ragged.from_rows([[3, 3], [3, 3]])
    model = DictModel(smooth(count_ngrams(text, vocabulary(1000), order=1), "katz"))
    unseen = sum(model.prob((), x) for x in range(4, 1003))
    assert unseen == pytest.approx(2 / 8)  # as much as the rarest word that occurs, the sentence end


def test_builders_refuse_invalid_ngrams() -> None:
    words = vocabulary(3)
    with pytest.raises(InvariantError, match="contains <s> or </s>"):
        count_ngrams(Ragged.from_rows([[3, EOS, 4]]), words, order=2)
    with pytest.raises(InvariantError, match="outside the vocabulary"):
        count_ngrams(Ragged.from_rows([[3, 99]]), words, order=2)
    with pytest.raises(InvariantError, match="the vocabulary is closed"):
        topology_from_ngrams(Ragged.from_rows([[UNK, 3]]), 6, open_vocabulary=False)
    with pytest.raises(InvariantError, match="outside the model's vocabulary"):
        score(random_model(np.random.default_rng(0), order=2), Ragged.from_rows([[99]]))
    shouting = Vocabulary.of(["<UNK>", "A", "a"])
    t = topology_from_ngrams(Ragged.from_rows([[2], [3, 4], [5]]), len(shouting), open_vocabulary=False).topology
    lower, uncased = lowercase_topology(t, shouting)
    assert uncased.words[3:] == ("<UNK>", "a")
    assert topology_faults(lower, words=len(uncased)) == []


def test_predicates_find_unsorted_states_and_a_wrong_start() -> None:
    t = random_model(np.random.default_rng(4), order=3).topology
    assert topology_faults(t, words=9) == []
    deep = int(np.flatnonzero(t.backoff > 0)[0])
    assert topology_faults(Topology(t.first_arc, t.label, t.dest, t.backoff, start=deep), words=9) == ["T6"]
    backoff = t.backoff.copy()
    backoff[-1] = 0
    assert topology_faults(Topology(t.first_arc, t.label, t.dest, backoff, t.start), words=9) in (
        ["T3"],
        ["T4"],
        ["T6"],
    )


def test_samples_where_almost_no_probability_is_left_for_backing_off() -> None:
    """The remaining unigrams have tiny weights, but are sampled in proportion."""
    t = topology_from_ngrams(Ragged.from_rows([[EOS], [3], [4], [5], [BOS, 3]]), 6, open_vocabulary=False).topology
    for tiny in (1e-9, 1e-20):
        weight = np.array([2 * tiny, 1.0 - 4 * tiny, tiny, tiny, 0.2])
        model = model_from_weights(t, vocabulary(3), weight)
        first = [row[0] if len(row) else EOS for row in sample_sentences(model, 20_000, seed=1, max_length=1)]
        shares = np.bincount(first, minlength=6) / 20_000
        assert shares[[EOS, 3, 4, 5]] == pytest.approx([0.4, 0.2, 0.2, 0.2], abs=0.02)


def test_huge_backoff_weights_still_sum_to_one(tmp_path: Path) -> None:
    t = topology_from_ngrams(Ragged.from_rows([[EOS], [3], [4], [5], [3, 3]]), 6, open_vocabulary=False).topology
    for tiny in (1e-6, 1e-12, 1e-20):
        model = model_from_weights(t, vocabulary(3), np.array([tiny, 1.0 - 3 * tiny, tiny, tiny, 0.5]))
        assert model_faults(model) == []
    write_arpa(model, tmp_path / "m.arpa")
    assert read_arpa(tmp_path / "m.arpa").topology.arcs == 5
