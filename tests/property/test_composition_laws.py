"""Laws of word pieces on random automata and lexicons."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.reference.composition import UNKNOWN, Composition, State, Transfer, random_lexicon
from tests.reference.random_models import random_topology, random_weights, vocabulary

from fedgram.automata.approximate import count_source
from fedgram.automata.build import topology_from_ngrams, union_topology
from fedgram.automata.compose import PieceTopology, compose, compose_model, with_unknown_as_unigram
from fedgram.automata.counting import (
    TopologyCounts,
    counts_from_arcs,
    counts_from_visits,
    expected_visits,
    express_on,
    summed_counts,
    unvisited_ngrams,
)
from fedgram.automata.kl_minimize import minimize_kl
from fedgram.automata.lexicon import Lexicon
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.properties import normalization_error, topology_faults
from fedgram.automata.sampling import sample_sentences
from fedgram.automata.scoring import sentence_log_probs
from fedgram.automata.topology import Topology, arc_sources, state_histories
from fedgram.automata.transfer import transfer_counts
from fedgram.core.arrays import Ragged
from fedgram.core.errors import InvariantError
from fedgram.distill.sample_approx import PlainCounting, count_samples
from fedgram.distill.source import NGramSource
from fedgram.text.vocabulary import EOS, UNK, Vocabulary

WORDS = 5


def random_words(rng: np.random.Generator, *, order: int, ngrams: int) -> Topology:
    return with_unknown_as_unigram(random_topology(rng, words=WORDS, order=order, ngrams=ngrams), WORDS + 3)


def pairs(composed: PieceTopology) -> list[State]:
    return list(zip(composed.node.tolist(), composed.word_state.tolist(), strict=True))


def case(seed: int) -> tuple[Lexicon, Vocabulary, NGramModel, Topology]:
    """A lexicon, its labels, a source model over its words, and a topology to count on."""
    rng = np.random.default_rng(seed)
    lexicon, labels = random_lexicon(rng, WORDS)
    source = random_weights(rng, random_words(rng, order=3, ngrams=14), WORDS)
    return lexicon, labels, renormalize(source), random_words(rng, order=1 + seed % 3, ngrams=8)


# -- B is the paper's composition -------------------------------------------------------------------------------------


def composition_matches(lexicon: Lexicon, words: Topology, composed: PieceTopology) -> None:
    reference, t, state = Composition(lexicon, words), composed.topology, pairs(composed)
    assert topology_faults(t) == []
    arcs = {
        state[s]: {
            int(t.label[e]): state[t.dest[e]] if t.dest[e] >= 0 else None
            for e in range(t.first_arc[s], t.first_arc[s + 1])
        }
        for s in range(t.states)
    }
    assert {q: arcs[q] for q in reference.arcs} == reference.arcs
    assert {q: state[t.backoff[s]] for s, q in enumerate(state) if q in reference.backoff} == reference.backoff
    put_out = {
        (state[s], int(t.label[e])): int(words.label[f])
        for f, e in enumerate(composed.word_arc.tolist())
        if e >= 0
        for s in [int(arc_sources(t)[e])]
    }
    assert {k: v for k, v in put_out.items() if k[0] in reference.arcs} == reference.output
    longest = max(1, int(np.diff(lexicon.path.offsets).max()) + 1)
    assert t.arcs <= lexicon.pieces + (words.arcs + words.states + lexicon.words) * longest


def test_the_composition_is_the_papers() -> None:
    for seed in range(40):
        lexicon, _, source, _ = case(seed)
        composition_matches(lexicon, source.topology, compose(lexicon, source.topology))


def test_composition_law_catches_a_lost_backoff() -> None:
    lexicon, _, source, _ = case(1)
    whole = compose(lexicon, source.topology)
    t = whole.topology
    backoff = t.backoff.copy()
    backoff[-1] = 1
    broken = Topology(t.first_arc, t.label, t.dest, backoff, t.start)
    with pytest.raises(AssertionError):
        composition_matches(
            lexicon, source.topology,
            PieceTopology(broken, whole.words, whole.word_arc, whole.word_state, whole.node),
        )  # fmt: skip


# -- a model read piece by piece is the same model --------------------------------------------------------------------


def spelled(lexicon: Lexicon, sentences: Ragged) -> Ragged:
    code = {y: [*map(int, lexicon.node_piece[lexicon.path[y]]), int(lexicon.word_piece[y])] for y in lexicon.order}
    return Ragged.from_rows([[x for y in sentence for x in code[int(y)]] for sentence in sentences])


def test_a_composed_model_gives_sentences_the_same_probability() -> None:
    for seed in range(25):
        lexicon, labels, source, _ = case(seed)
        composed = compose_model(lexicon, source, labels)
        assert normalization_error(composed) < 1e-9
        drawn = sample_sentences(source, 60, seed=seed, max_length=30)
        known = Ragged.from_rows([row.tolist() for row in drawn if not np.any(row == UNK)])
        by_words, by_pieces = (
            sentence_log_probs(source, known),
            sentence_log_probs(composed, spelled(lexicon, known)),
        )
        assert by_pieces == pytest.approx(by_words, abs=1e-9)


# -- counts on B become the counts of words ---------------------------------------------------------------------------


def piece_counts(lexicon: Lexicon, labels: Vocabulary, source: NGramModel, words: Topology) -> TopologyCounts:
    """The exact expected counts on B = M ∘ words of the source read piece by piece, added up visit by visit."""
    union, _ = union_topology([source.topology, words], len(source.vocabulary))
    refined = express_on(source, union)
    by_pieces, large, small = compose_model(lexicon, refined, labels), compose(lexicon, union), compose(lexicon, words)
    nearest = nearest_states(union, words)
    state = {q: s for s, q in enumerate(pairs(small))}
    image: dict[int, State] = {}
    for s, (v, q) in enumerate(pairs(large)):
        at = (v, nearest[q]) if q >= 0 else UNKNOWN
        while at not in state:  # after this history, the smaller topology reads no word that passes node v
            at = (v, int(words.backoff[at[1]]))
        image[s] = at
    C, C_phi = Composition(lexicon, words).visit_counts(by_pieces, image)
    arc = np.zeros(small.topology.arcs)
    for (x, pair), count in C.items():
        begin, end = small.topology.first_arc[state[pair]], small.topology.first_arc[state[pair] + 1]
        arc[begin + np.searchsorted(small.topology.label[begin:end], x)] = count
    leaving, visits = np.array([C_phi.get(q, 0.0) for q in pairs(small)]), np.zeros(small.topology.states)
    for s, expected in enumerate(expected_visits(by_pieces).tolist()):
        visits[state[image[s]]] += expected
    return TopologyCounts(small.topology, arc, leaving, visits)


def nearest_states(large: Topology, small: Topology) -> list[int]:
    """For each state of a topology, the longest suffix of its history that is a state of a smaller topology."""

    def histories(t: Topology) -> list[tuple[int, ...]]:
        return [tuple(h[:n].tolist()) for h, n in zip(*state_histories(t), strict=True)]

    number = {h: q for q, h in enumerate(histories(small))}
    result = []
    for history in histories(large):
        while history not in number:
            history = history[1:]
        result.append(number[history])
    return result


def transfer_gives_word_counts(lose: float) -> None:
    for seed in range(25):
        lexicon, labels, source, words = case(seed)
        counts = piece_counts(lexicon, labels, source, words)
        if lose:
            counts = TopologyCounts(counts.topology, counts.arc * (1 - lose), counts.backoff, counts.visits)
        moved, direct = transfer_counts(compose(lexicon, words), counts), count_source(source, words).counts
        assert moved.arc == pytest.approx(direct.arc, abs=1e-12, rel=1e-11)
        assert moved.backoff == pytest.approx(direct.backoff, abs=1e-12, rel=1e-11)
        assert moved.visits == pytest.approx(direct.visits, abs=1e-11)


def test_transferred_counts_are_those_of_words() -> None:
    transfer_gives_word_counts(lose=0.0)


def test_transfer_law_catches_lost_counts() -> None:
    with pytest.raises(AssertionError):
        transfer_gives_word_counts(lose=1e-9)


def test_transferred_flow_is_conserved() -> None:
    for seed in range(25):
        lexicon, labels, source, _ = case(seed)
        composed = compose(lexicon, source.topology)
        model = compose_model(lexicon, source, labels)
        counts = transfer_counts(composed, counts_from_visits(model, expected_visits(model), 1.0))
        is_conserved(counts)
        assert counts.arc[source.topology.label == EOS].sum() == pytest.approx(1.0)


def is_conserved(counts: TopologyCounts) -> None:
    A = counts.topology
    inflow = counts.visits + np.bincount(A.backoff[1:], counts.backoff[1:], minlength=A.states)
    outflow = counts.backoff + np.bincount(arc_sources(A), counts.arc, minlength=A.states)
    assert inflow == pytest.approx(outflow, abs=1e-11, rel=1e-12)


# -- counts of few samples --------------------------------------------------------------------------------------------


def sampled(seed: int, samples: int) -> tuple[Lexicon, PieceTopology, TopologyCounts, NGramModel]:
    """Sampled counts on B; the source and the topology have different n-grams."""
    lexicon, labels, source, words = case(seed)
    composed = compose(lexicon, words)
    counting = PlainCounting(NGramSource(compose_model(lexicon, source, labels)), composed.topology, seed)
    return lexicon, composed, counting.finish(count_samples(counting, samples)), source


def transfer_matches(prior_visits: float, prior_in_the_reference: float) -> None:
    for seed in range(25):
        lexicon, composed, counts, _ = sampled(seed, 3)
        t, pair = composed.topology, pairs(composed)
        C = {(int(t.label[e]), pair[s]): float(counts.arc[e]) for e, s in enumerate(arc_sources(t).tolist())}
        C_phi = dict(zip(pair, counts.backoff.tolist(), strict=True))
        visits = dict(zip(pair, counts.visits.tolist(), strict=True))
        reference = Transfer(Composition(lexicon, composed.words), C, C_phi, visits, prior_in_the_reference)
        C_A, phi = reference.counts()
        moved, A = transfer_counts(composed, counts, prior_visits=prior_visits), composed.words
        keys = zip(A.label.tolist(), arc_sources(A).tolist(), strict=True)
        assert moved.arc == pytest.approx([C_A.get(key, 0.0) for key in keys], abs=1e-8)
        assert moved.backoff[1:] == pytest.approx([phi.get(q, 0.0) for q in range(1, A.states)], abs=1e-8)


@pytest.mark.parametrize("prior_visits", [0.0, 0.25, 1.0])
def test_transfer_is_its_reference(prior_visits: float) -> None:
    transfer_matches(prior_visits, prior_visits)


def test_the_comparison_with_the_reference_catches_another_prior() -> None:
    with pytest.raises(AssertionError):
        transfer_matches(1.0, 1.01)


def last_piece_counts(composed: PieceTopology, counts: TopologyCounts) -> TopologyCounts:
    """The paper's formula C_A(y, q) = C_B(x_y, (q_y, q)) on sampled counts; it averages only the last piece."""
    arc = np.where(composed.word_arc >= 0, counts.arc[composed.word_arc], 0.0)
    arc[UNK] = counts.backoff[composed.word_state == 0].sum()
    visits = np.zeros(composed.words.states)
    np.add.at(visits, composed.word_state[composed.node == 0], counts.visits[composed.node == 0])
    return counts_from_arcs(composed.words, arc, visits, counts.sentences)


def every_word_is_counted(transfer: Callable[[PieceTopology, TopologyCounts], TopologyCounts]) -> None:
    for seed in range(25):
        for samples in (1, 4):
            lexicon, composed, counts, _ = sampled(seed, samples)
            moved = transfer(composed, counts)
            S, T = summed_counts(moved)
            spelled = lexicon.word_node[composed.words.label] >= 0
            assert (S[spelled & (T[arc_sources(composed.words)] > 0)] > 0).all()
            assert S[: composed.words.first_arc[1]].sum() == pytest.approx(T[0])
            is_conserved(moved)
            model = minimize_kl(moved, vocabulary(WORDS), prior_visits=1.0)  # without the floor of `fit`
            assert model.log_weight.min() > -20
            assert normalization_error(model) < 1e-9


def test_every_word_is_counted_even_with_few_samples() -> None:
    every_word_is_counted(lambda composed, counts: transfer_counts(composed, counts, prior_visits=1.0))


def test_the_law_catches_counts_of_last_pieces_only() -> None:
    with pytest.raises(AssertionError):
        every_word_is_counted(last_piece_counts)


def test_averaging_all_pieces_is_unbiased_and_closer_than_the_last_piece() -> None:
    """Both are right on average over many runs of few samples, but averaging all pieces has a smaller error per run."""
    lexicon, composed, _, source = sampled(7, 1)
    exact, labels = count_source(source, composed.words).counts.arc, case(7)[1]
    pieces = NGramSource(compose_model(lexicon, source, labels))
    whole, last = [], []
    for seed in range(40):
        counting = PlainCounting(pieces, composed.topology, seed)
        counts = counting.finish(count_samples(counting, 50))
        whole.append(transfer_counts(composed, counts).arc / 50)
        last.append(last_piece_counts(composed, counts).arc / 50)
    spelled = composed.word_arc >= 0
    error = [np.sqrt(np.mean((np.array(runs) - exact)[:, spelled] ** 2)) for runs in (whole, last)]
    assert error[0] < error[1]
    assert np.mean(whole, axis=0)[spelled] == pytest.approx(exact[spelled], abs=4 * error[0] / np.sqrt(40))


def test_ngrams_that_no_sample_reached_are_reported() -> None:
    lexicon, composed, counts, _ = sampled(11, 2)
    _, T = summed_counts(counts)
    number = {pair: s for s, pair in enumerate(pairs(composed))}
    A = composed.words
    never = [
        y >= 3 and T[number[int(lexicon.word_node[y]), q]] == 0
        for y, q in zip(A.label.tolist(), arc_sources(A).tolist(), strict=True)
    ]
    ends = [q for y, q in zip(A.label.tolist(), arc_sources(A).tolist(), strict=True) if y == EOS]
    assert all(T[number[0, q]] > 0 for q in ends)
    reported = unvisited_ngrams(transfer_counts(composed, counts, prior_visits=1.0))
    assert reported.tolist() == never
    assert 0 < sum(never) < len(never)


def test_unknown_words_inside_ngrams_are_refused_and_can_be_removed() -> None:
    lexicon, _ = random_lexicon(np.random.default_rng(0), WORDS)
    rows = Ragged.from_rows([[3, UNK], [UNK, 3], [3, 4]])
    t = topology_from_ngrams(rows, WORDS + 3).topology
    with pytest.raises(InvariantError, match="<unk>"):
        compose(lexicon, t)
    without = with_unknown_as_unigram(t, WORDS + 3)
    assert without.arcs_by_order() == [WORDS + 2, 2]
    assert topology_faults(compose(lexicon, without).topology) == []
    assert len(vocabulary(WORDS)) == lexicon.words
