"""From networks to n-gram models by words and by word pieces, and Algorithm 1, with n-gram models as the networks."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from tests.unit.distill.casing.test_capitalization import SENTENCES, trained

from fedgram.automata.approximate import adopt_topology, approximate
from fedgram.automata.build import lowercase_topology, ngrams_of
from fedgram.automata.compose import compose, compose_model, with_unknown_as_unigram
from fedgram.automata.counting import TopologyCounts, counts_from_arcs, cross_entropy
from fedgram.automata.lexicon import spell_words
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults
from fedgram.automata.prune import prune_to_size
from fedgram.automata.scoring import score, sentence_log_probs, step
from fedgram.automata.topology import Topology, state_lengths
from fedgram.automata.training import NGramOptions, train
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.distill.casing.cap_sample_approx import cap_sample_approx, cased_topology
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.inferred_topology import InferenceOptions, infer_model, infer_word_model
from fedgram.distill.nn2wfa import PieceNN2WFA, UncasedWordNN2WFA, WordNN2WFA, count_by_pieces, fit_within
from fedgram.distill.sample_approx import CountingOptions, Fit, PlainCounting, count_samples, fit, sample_approx
from fedgram.distill.source import NGramSource
from fedgram.distill.spelling import read_words, spellable_words
from fedgram.text.corpus import Corpus
from fedgram.text.normalize import uncase
from fedgram.text.vocabulary import BOS, EOS, UNK, Vocabulary
from fedgram.text.wordpieces import WordPieces, piece_vocabulary, train_pieces

pytest.importorskip("sentencepiece")
CASED = [sentence.split() for sentence in SENTENCES]
UNCASED = [[uncase(word) for word in sentence] for sentence in CASED]
WORDS = Counter(word for sentence in UNCASED for word in sentence)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> WordPieces:
    return train_pieces(WORDS, size=30, path=tmp_path_factory.mktemp("pieces") / "pieces.model")


def piece_source(model: NGramModel, pieces: WordPieces) -> NGramSource:
    """A model of words as a source of word pieces."""
    labels = piece_vocabulary(pieces)
    return NGramSource(compose_model(spell_words(model.vocabulary, pieces, labels), model, labels))


# -- word pieces ------------------------------------------------------------------------------------------------------


def count_words_with_pieces(
    source: NGramSource, pieces: WordPieces, topology: Topology, words: Vocabulary, samples: int, seed: int
) -> TopologyCounts:
    """What the paper rejects: at every word, the probability of every word of the vocabulary, piece by piece."""
    code = {
        y: [source.vocabulary[pieces.pieces[i]] for i in pieces.encode(w)] for y, w in enumerate(words.words[3:], 3)
    }
    final = {x for x, piece in enumerate(source.vocabulary.words) if piece.endswith("▁")}
    word_of = {tuple(c): y for y, c in code.items()}
    read = {tuple(n.tolist()): e for e, n in enumerate(ngrams_of(topology))}
    C: dict[int, float] = defaultdict(float)
    visits = np.zeros(topology.states)
    histories = {(): 0, (BOS,): topology.start}
    histories |= {n: int(topology.dest[e]) for n, e in read.items() if n[-1] != EOS and is_state(topology, e, n)}
    log_p: dict[tuple[int, ...], dict[int, float]] = {}
    for sample in source.sample(range(samples), seed=seed):
        before, word = list[int](), list[int]()
        history: tuple[int, ...] = (BOS,)
        for x in [*sample.tolist(), EOS]:
            if not word:
                key = tuple(before)
                if key not in log_p:
                    rows = Ragged.from_rows([[*before, *code[y]] for y in code] + [before])
                    prefix = prefix_log_probs(source.model, rows)
                    end = float(sentence_log_probs(source.model, Ragged.from_rows([before]))[0])
                    log_p[key] = {y: prefix[k] - prefix[-1] for k, y in enumerate(code)} | {EOS: end - prefix[-1]}
                while history not in histories:
                    history = history[1:]
                visits[histories[history]] += 1
                for y, value in log_p[key].items():
                    at = history
                    while (*at, y) not in read:
                        at = at[1:]
                    C[read[(*at, y)]] += float(np.exp(value))
            before.append(x)
            word.append(x)
            if x in final:
                history, word = (*history, word_of.get(tuple(word), UNK)), []
    return counts_from_arcs(topology, np.array([C[e] for e in range(topology.arcs)]), visits, samples)


def is_state(t: Topology, e: int, ngram: tuple[int, ...]) -> bool:
    return int(state_lengths(t)[t.dest[e]]) == len(ngram)


def prefix_log_probs(model: NGramModel, rows: Ragged) -> list[float]:
    """Log p that a sentence begins so."""
    t, result = model.topology, []
    for row in rows:
        q, total = t.start, 0.0
        for x in row.tolist():
            log, q = step(t.first_arc, t.label, t.dest, t.backoff, model.log_weight, model.log_backoff, q, x)
            total += log
        result.append(total)
    return result


def test_counting_on_b_is_counting_words_directly(pieces: WordPieces) -> None:
    """Both are unbiased; B averages over pieces one by one, so that they differ by chance."""
    model = trained(UNCASED, smoothing="witten-bell")
    source = piece_source(model, pieces)
    topology = prune_to_size(model, 40, split_ties=True).topology
    k = 3000
    on_b = count_by_pieces(source, pieces, topology, model.vocabulary, samples=k, seed=3)
    directly = count_words_with_pieces(source, pieces, topology, model.vocabulary, k, 3)
    assert on_b.arc.sum() == pytest.approx(directly.arc.sum(), rel=0.01)
    assert np.abs(on_b.arc - directly.arc).max() < 5 * np.sqrt(directly.arc.max())
    for counts in (on_b, directly):
        fitted = fit(counts, model.vocabulary).model
        best = approximate(model, topology)
        assert cross_entropy(best.source.counts, fitted) - best.cross_entropy < 0.02


def test_unknown_pieces_become_unknown_words(pieces: WordPieces) -> None:
    """A source whose words the topology does not all know."""
    model = trained(UNCASED, smoothing="witten-bell")
    few = Vocabulary.of(sorted(WORDS, key=lambda word: -WORDS[word])[:8])
    text = Ragged.from_rows([few.encode(sentence) for sentence in UNCASED])
    small = train(Corpus(text, few), NGramOptions(order=2, smoothing="witten-bell", open_vocabulary=True))
    topology = with_unknown_as_unigram(small.topology, len(few))
    counts = count_by_pieces(piece_source(model, pieces), pieces, topology, few, samples=4000, seed=1)
    fitted = fit(counts, few).model
    assert model_faults(fitted) == []
    sampled = [word for row in NGramSource(model).sample(range(4000), seed=2) for word in row]
    unknown = np.mean([model.vocabulary.words[x] not in few for x in sampled])
    share = counts.arc[UNK] / (counts.arc.sum() - counts.arc[topology.label == EOS].sum())
    assert share == pytest.approx(unknown, abs=0.02)


def test_word_pieces_and_words_give_the_same_model(pieces: WordPieces) -> None:
    model = trained(UNCASED, smoothing="witten-bell")
    topology = prune_to_size(model, 50, split_ties=True).topology
    by_words = sample_approx(NGramSource(model), topology, samples=20_000, seed=1).model
    counts = count_by_pieces(piece_source(model, pieces), pieces, topology, model.vocabulary, samples=20_000, seed=1)
    by_pieces = fit(counts, model.vocabulary).model
    text = Ragged.from_rows([model.vocabulary.encode(sentence) for sentence in UNCASED])
    assert score(by_pieces, text).perplexity == pytest.approx(score(by_words, text).perplexity, rel=0.02)


FOREIGN = ["a film is new in the house", "old york saw he", "london lives in a film she is", "is she in the film"]


def open_model(sentences: list[list[str]]) -> NGramModel:
    """A model over the words of UNCASED and `<unk>`."""
    words = trained(UNCASED).vocabulary
    text = Ragged.from_rows([words.encode(sentence) for sentence in sentences])
    return train(Corpus(text, words), NGramOptions(order=3, smoothing="witten-bell", open_vocabulary=True))


def foreign_topology() -> Topology:
    """Of other text over the same words."""
    model = open_model([sentence.split() for sentence in FOREIGN])
    return with_unknown_as_unigram(model.topology, len(model.vocabulary))


@pytest.mark.parametrize("samples", [1, 20, 400])
def test_no_word_is_impossible_on_a_foreign_topology(samples: int, pieces: WordPieces) -> None:
    """Words that no sample held were at e⁻³⁵, and the perplexity by pieces was 27 to 3,700 times that by words."""
    model, topology = open_model(UNCASED), foreign_topology()
    source = piece_source(model, pieces)
    counts = count_by_pieces(source, pieces, topology, model.vocabulary, samples=samples, seed=1)
    by_pieces = fit(counts, model.vocabulary)
    by_words = sample_approx(NGramSource(model), topology, samples=samples, seed=1)
    assert by_pieces.model.log_weight.min() > -20
    assert model_faults(by_pieces.model) == []
    text = Ragged.from_rows([model.vocabulary.encode(sentence.split()) for sentence in FOREIGN])
    a, b = score(by_words.model, text).perplexity, score(by_pieces.model, text).perplexity
    assert b < {1: 2.5, 20: 1.2, 400: 1.05}[samples] * a


def test_people_are_warned_of_ngrams_that_were_never_visited(pieces: WordPieces) -> None:
    model, topology = open_model(UNCASED), foreign_topology()
    source = piece_source(model, pieces)

    def fitted(samples: int, topology: Topology) -> Fit:
        counts = count_by_pieces(source, pieces, topology, model.vocabulary, samples=samples, seed=1)
        return fit(counts, model.vocabulary)

    few, many = fitted(2, topology), fitted(5000, topology)
    assert few.unvisited_ngrams > many.unvisited_ngrams
    assert few.warning
    assert few.warning.startswith(f"{few.unvisited_ngrams} of {topology.arcs} n-grams were never visited by a sample")
    assert fitted(5000, with_unknown_as_unigram(model.topology, len(model.vocabulary))).warning is None
    by_words = sample_approx(NGramSource(model), topology, samples=1, seed=1)
    assert by_words.warning


def test_words_that_cannot_be_spelled_are_left_to_unknown(pieces: WordPieces) -> None:
    """They had a weight of e⁻³⁵."""
    model = trained(UNCASED, smoothing="witten-bell")
    extended = Vocabulary.of([*model.vocabulary.words, "ж", "жук"])
    source = piece_source(model, pieces)
    assert spellable_words(source, pieces, extended).words == model.vocabulary.words
    cased = trained([*CASED, ["ж", "Жук", "New"]])
    nn2wfa = PieceNN2WFA(source, Capitalizer(cased), [cased], pieces=pieces, samples=500, seed=1)
    assert nn2wfa.unspelled == 2
    result = nn2wfa(cased)
    assert not {"ж", "Жук"} & set(result.model.vocabulary.words)
    assert result.model.log_weight.min() > -20


def test_capitals_keep_the_visits_of_the_network(pieces: WordPieces) -> None:
    """Capitals are given by other samples; what counts for people is what the network's own samples visited."""
    source, A_W = piece_source(trained(UNCASED, smoothing="witten-bell"), pieces), trained(CASED, order=3)
    few = PieceNN2WFA(source, Capitalizer(A_W), [A_W], pieces=pieces, samples=3, capital_samples=5000, seed=1)
    many = PieceNN2WFA(source, Capitalizer(A_W), [A_W], pieces=pieces, samples=5000, seed=1)
    assert few(A_W).warning
    assert many(A_W).warning is None
    pruned = fit_within(few(A_W), few(A_W).model.topology.arcs - 5)
    assert 0 < pruned.unvisited_ngrams <= few(A_W).unvisited_ngrams


# -- count once, use often --------------------------------------------------------------------------------------------


def test_counting_once_is_counting_for_every_topology() -> None:
    A_W, uncased = trained(CASED), trained(UNCASED)
    small = prune_to_size(A_W, 40, split_ties=True)
    source, capitalizer = NGramSource(uncased), Capitalizer(A_W)
    once = WordNN2WFA(source, capitalizer, [A_W, small], samples=500, seed=2)
    casing = casing_of(capitalizer, source.vocabulary)
    for topology in (A_W, small):
        apart = cap_sample_approx(source, cased_topology(topology, source, casing), casing, samples=500, seed=2)
        together = once(topology)
        assert together.counts.arc == pytest.approx(apart.counts.arc, abs=1e-6)
        assert together.model.log_weight == pytest.approx(apart.model.log_weight, abs=1e-5)
    with pytest.raises(FedgramError, match="not counted"):
        WordNN2WFA(source, capitalizer, [small], samples=10, seed=2)(A_W)


def test_words_by_way_of_an_uncased_model() -> None:
    source, A_W = NGramSource(trained(UNCASED)), trained(CASED)
    small = prune_to_size(A_W, 60)
    once = UncasedWordNN2WFA(source, Capitalizer(A_W), [A_W, small], samples=500, seed=2)
    for topology in (A_W, small):
        lower, words = lowercase_topology(topology.topology, topology.vocabulary)
        adopted = adopt_topology(lower, words, source.vocabulary, open_vocabulary=source.has_unknown)
        counting = PlainCounting(source, adopted, 2)
        apart = counting.finish(count_samples(counting, 500))
        uncased = once.uncased(topology)
        assert uncased.counts.arc == pytest.approx(apart.arc, abs=1e-6)
        assert uncased.model.vocabulary.digest == source.vocabulary.digest
        cased = once(topology).model
        assert model_faults(cased) == []
        assert any(word != uncase(word) for word in cased.vocabulary.words)


# -- the inferred topology --------------------------------------------------------------------------------------------


def test_an_inferred_topology_keeps_to_its_budget() -> None:
    source, casing = NGramSource(trained(UNCASED)), casing_of(Capitalizer(trained(CASED)), trained(UNCASED).vocabulary)
    options = InferenceOptions(samples=3000, order=3, max_ngrams=70)
    cased = infer_model(source, options, seed=4, casing=casing)
    assert cased.topology.arcs <= 70
    assert cased.topology.order == 3
    assert cased.vocabulary.digest == casing.vocabulary.digest
    plain = infer_model(source, options, seed=4)
    assert plain.vocabulary.digest == source.vocabulary.digest
    assert np.array_equal(plain.log_weight, infer_model(source, options, seed=4).log_weight)
    with pytest.raises(FedgramError, match="budget of 5 n-grams"):
        infer_model(source, InferenceOptions(samples=10, order=4, max_ngrams=5), seed=4)


def test_word_pieces_infer_a_topology_of_words(pieces: WordPieces) -> None:
    model = trained(UNCASED, smoothing="witten-bell")
    source = piece_source(model, pieces)
    options = InferenceOptions(samples=3000, order=3, max_ngrams=90)
    inferred = infer_word_model(source, pieces, options, seed=4)
    assert inferred.topology.arcs <= 90
    assert inferred.topology.order == 3
    assert set(inferred.vocabulary.words) <= set(model.vocabulary.words)
    assert len(inferred.vocabulary) > 0.9 * len(model.vocabulary)
    ngrams = [row.tolist() for row in ngrams_of(inferred.topology)]
    assert [UNK] in ngrams
    assert not any(UNK in ngram for ngram in ngrams if len(ngram) > 1)
    cased = infer_word_model(source, pieces, options, seed=4, capitalizer=Capitalizer(trained(CASED)))
    assert any(word != uncase(word) for word in cased.vocabulary.words)
    small = infer_word_model(source, pieces, InferenceOptions(samples=3000, order=4, max_ngrams=20), seed=4)
    assert len(small.vocabulary) == 10 + 3


def test_samples_of_word_pieces_read_as_words(pieces: WordPieces) -> None:
    source = piece_source(trained(UNCASED, smoothing="witten-bell"), pieces)
    labels = source.vocabulary

    def code(word: str) -> list[int]:
        return [labels[pieces.pieces[i]] for i in pieces.encode(word)]

    letters = [labels[x] for x in ("i", "n", "▁")]
    assert letters != code("in")  # another spelling of the same word
    rows = [[*code("in"), *code("york")], [], [*code("in"), *letters, *code("film")[:-1]], code("new")]
    corpus = read_words(source, pieces, Ragged.from_rows(rows), min_count=1, max_words=9)
    assert set(corpus.vocabulary.words[3:]) == {"in", "york", "new"}
    assert [corpus.vocabulary.decode(row.tolist()) for row in corpus.sentences] == [
        ["in", "york"], [], ["in", "<unk>"], ["new"],
    ]  # fmt: skip
    assert read_words(source, pieces, Ragged.from_rows(rows), min_count=2, max_words=9).vocabulary.words[3:] == ("in",)
    assert read_words(source, pieces, Ragged.from_rows(rows), min_count=1, max_words=1).vocabulary.words[3:] == ("in",)


def test_inference_and_counting_draw_different_samples() -> None:
    source = NGramSource(trained(UNCASED))
    asked = list[int]()
    drawn = source.sample
    source.sample = lambda samples, *, seed: asked.append(seed) or drawn(samples, seed=seed)  # type: ignore[method-assign, func-returns-value]
    infer_model(source, InferenceOptions(samples=50, order=4, max_ngrams=80), seed=4)
    assert asked
    assert 4 not in asked


# -- Algorithm 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_earnest_through_300_pieces(earnest: list[str], tmp_path: Path) -> None:
    """Word-piece distillation of an n-gram source gives the word model that word-level distillation gives."""
    lines = [line.split() for line in earnest]
    count = Counter(word for line in lines for word in line)
    words = Vocabulary.of(sorted(count, key=lambda word: -count[word]))
    train_text, test_text = (Ragged.from_rows([words.encode(s) for s in part]) for part in (lines[:850], lines[850:]))
    model = train(Corpus(train_text, words), NGramOptions(order=3, smoothing="witten-bell"))
    topology = prune_to_size(model, 5000).topology
    pieces = train_pieces(count, size=300, path=tmp_path / "pieces.model")
    options = CountingOptions(workers=2)
    by_words = sample_approx(NGramSource(model), topology, samples=1_000_000, seed=7, options=options).model
    source = piece_source(model, pieces)
    counts = count_by_pieces(source, pieces, topology, words, samples=1_000_000, seed=7, options=options)
    by_pieces = fit(counts, words).model
    assert compose(spell_words(words, pieces, source.vocabulary), topology).topology.arcs < 6 * topology.arcs
    a, b = score(by_words, test_text).perplexity, score(by_pieces, test_text).perplexity
    assert b == pytest.approx(a, rel=0.005)


@pytest.mark.slow
def test_earnest_on_a_foreign_topology(earnest: list[str], tmp_path: Path) -> None:
    """By words 307.5; by word pieces it was 357.5, with 2,176 n-grams at e⁻³⁵."""
    lines = [line.split() for line in earnest]
    count = Counter(word for line in lines for word in line)
    words = Vocabulary.of(sorted(count, key=lambda word: -count[word]))
    own, foreign, test_text = (
        Ragged.from_rows([words.encode(s) for s in part]) for part in (lines[:600], lines[600:1200], lines[1200:])
    )
    options = NGramOptions(order=3, smoothing="witten-bell", open_vocabulary=True)
    model = train(Corpus(own, words), options)
    topology = with_unknown_as_unigram(train(Corpus(foreign, words), options).topology, len(words))
    pieces = train_pieces(count, size=300, path=tmp_path / "pieces.model")
    source = piece_source(model, pieces)
    for samples, within in ((20_000, 0.03), (200_000, 0.01)):
        by_words = sample_approx(NGramSource(model), topology, samples=samples, seed=7).model
        counts = count_by_pieces(source, pieces, topology, words, samples=samples, seed=7)
        by_pieces = fit(counts, words).model
        assert by_pieces.log_weight.min() > -20
        a, b = score(by_words, test_text).perplexity, score(by_pieces, test_text).perplexity
        assert b == pytest.approx(a, rel=within)
