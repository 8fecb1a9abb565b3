"""Packed models, compared with a plain reader of the specification, the original models, and brute force."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.dict_model import DictModel, NGram
from tests.reference.fgram import Fgram
from tests.reference.random_models import random_model, random_sentences, vocabulary

from fedgram.automata.build import count_ngrams, topology_from_ngrams
from fedgram.automata.model import NGramModel, model_from_weights
from fedgram.automata.prune import prune_to_size
from fedgram.automata.scoring import score
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import LongArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.fgram.bits import (
    ONES,
    ZEROS,
    bitmap_rank,
    pack_bitmap,
    pack_sequence,
    select,
    sequence_get,
    sequence_shape,
)
from fedgram.fgram.pack import pack, unpack_model
from fedgram.fgram.quantize import make_codebook, nearest
from fedgram.fgram.query import score_sentences
from fedgram.fgram.reader import PackedModel, open_model
from fedgram.fgram.sets import Segment, segment_code, segment_get, segment_rank, write_segment
from fedgram.fgram.spelling import letter_key
from fedgram.fgram.unpack import Level, log_backoffs, state_sums, unpack_levels
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import BOS, EOS, Vocabulary


@given(st.sets(st.integers(0, 5000), max_size=600), st.integers(0, 300), st.integers(2, 12))
def test_segments_hold_their_numbers_and_codes(numbers: set[int], spare: int, code_bits: int) -> None:
    u, n = max(numbers, default=0) + 1 + spare, len(numbers)
    rising = np.array(sorted(numbers), np.int64)
    codes = (rising * 7919) % (1 << code_bits)
    bits, segment = np.zeros(2000, np.uint64), Segment(5, n, u, code_bits)
    end = write_segment(bits, segment, rising + 11, codes, 0, 11)
    assert end < 64 * 1990
    for i in range(n):
        assert segment_get(bits, segment, i) == rising[i]
        assert segment_code(bits, segment, i) == codes[i]
    for x in [*rising.tolist(), *range(0, u, 37), u - 1]:
        rank, found, code = segment_rank(bits, segment, x)
        assert rank == np.searchsorted(rising, x)
        assert found == (x in numbers)
        assert not found or code == codes[rank]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300), st.integers(0, 1000))
def test_rising_sequences_and_bitmaps(numbers: list[int], spare: int) -> None:
    rising = np.sort(np.array(numbers, np.int64))
    last = int(rising[-1]) + spare
    bits = np.append(pack_sequence(rising, last), np.uint64(0))
    width, high = sequence_shape(len(rising), last)
    assert [sequence_get(bits, 0, len(rising), width, high, i) for i in range(len(rising))] == rising.tolist()
    ones = np.zeros(2000, np.bool_)
    ones[rising % 2000] = True
    bits = np.append(pack_bitmap(ones), np.uint64(0))
    assert [bitmap_rank(bits, 0, 2000, i) for i in range(2000)] == np.concatenate([[0], np.cumsum(ones)[:-1]]).tolist()
    for kind, places in ((ONES, np.flatnonzero(ones)), (ZEROS, np.flatnonzero(~ones))):
        assert [select(bits, 0, 2000, k, kind) for k in range(len(places))] == places.tolist()


LEVELS: dict[Path, list[Level]] = {}


def packed(model: NGramModel, path: Path, bits: int = 8) -> PackedModel:
    pack(model, path, bits=bits)
    return open_model(path)


@pytest.mark.parametrize("seed", range(12))
def test_the_reader_does_what_the_specification_says(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, order=int(rng.integers(1, 5)))
    ours = packed(model, tmp_path / "m.fgram")
    plain = Fgram(tmp_path / "m.fgram")
    assert list(ours.words) == plain.words
    assert set(ours.words) == set(model.vocabulary.words)
    exact = DictModel(model)
    for _ in range(30):
        names = [model.vocabulary.words[i] for i in rng.integers(3, len(model.vocabulary), rng.integers(1, 6))]
        state, theirs = ours.state(), plain.start()
        history: NGram = (BOS,)
        for name in [*names, "</s>"]:
            log_p, state = ours.step(state, ours.word_id(name))
            their_log_p, theirs = plain.step(theirs, plain.words.index(name))
            assert log_p == pytest.approx(their_log_p, abs=1e-9)
            assert state[1 : 1 + 2 * state[0] : 2].tolist() == list(theirs)
            true = exact.prob(history, model.vocabulary[name])
            assert log_p == pytest.approx(np.log(true) if true else -np.inf, abs=2e-3)  # few values: codes are exact
            history = (*history, model.vocabulary[name])


@pytest.fixture(scope="module")
def trained() -> NGramModel:
    """A model of generated text with many words, one tier, and lists of every length."""
    people = SyntheticPopulation("en_us", seed=3)
    sentences = list(people.clean_sentences(12_000))
    names = Vocabulary.of(word for sentence in sentences for word in sentence)
    text = Ragged.from_rows([names.encode(sentence) for sentence in sentences])
    return smooth(count_ngrams(text, names, order=3), "modified-kneser-ney")


@pytest.fixture(scope="module")
def wide() -> NGramModel:
    """A model of random text over 6,000 words, so that there are three tiers and lists of blocks."""
    rng = np.random.default_rng(1)
    text = random_sentences(rng, words=6000, sentences=9000, length=30)
    text = Ragged(np.where(rng.random(len(text.values)) < 0.3, 3, text.values).astype(np.int32), text.offsets)
    return prune_to_size(smooth(count_ngrams(text, vocabulary(6000), order=3), "kneser-ney"), 90_000)


@pytest.fixture(scope="module", params=["trained", "wide"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[NGramModel, PackedModel]:
    model = request.getfixturevalue(request.param)
    ours = packed(model, tmp_path_factory.mktemp("fgram") / "lm.fgram")
    LEVELS[ours.path] = unpack_levels(ours.file, ours.header)
    return model, ours


def translate(model: NGramModel, ours: PackedModel, sentences: Ragged) -> Ragged:
    new = np.array([ours.index[word] for word in model.vocabulary.words], np.int32)
    return Ragged(new[sentences.values], sentences.offsets)


def test_scores_are_those_of_the_model(both: tuple[NGramModel, PackedModel]) -> None:
    model, ours = both
    text = random_sentences(np.random.default_rng(2), words=min(len(model.vocabulary) - 3, 3000), sentences=2000)
    log_p = ours.log_probs(translate(model, ours, text))
    assert np.isfinite(log_p).all()
    assert float(np.exp(-log_p.mean())) == pytest.approx(score(model, text).perplexity, rel=5e-3)


def test_every_state_sums_to_one(both: tuple[NGramModel, PackedModel]) -> None:
    model, ours = both
    sums = state_sums(unpack_levels(ours.file, ours.header), ours.header, ours.file.tables)
    assert [len(s) for s in sums] == [1, *(level.contexts for level in ours.header.levels[1:])]
    worst = max(float(np.abs(s - 1).max()) for s in sums)
    assert worst == pytest.approx(ours.header.deviation, abs=1e-6)
    assert worst < 1e-3
    state = ours.state(["w0" if "w0" in model.vocabulary else "the"])
    everything = [ours.step(state, word)[0] for word in range(len(ours)) if word != BOS]
    assert float(np.exp(everything).sum()) == pytest.approx(1, abs=1e-3)


def test_unpacked_scores_are_the_same(both: tuple[NGramModel, PackedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    model, ours = both
    text = random_sentences(np.random.default_rng(3), words=min(len(model.vocabulary) - 3, 3000), sentences=500)
    text = translate(model, ours, text)
    expected = score_sentences(ours.arrays, text.values, text.offsets, BOS)
    monkeypatch.setattr("fedgram.fgram.reader.UNPACK_FROM", 0)
    assert np.allclose(ours.log_probs(text), expected, rtol=0, atol=1e-9)


def brute_force(ours: PackedModel, state: LongArray, k: int, prefix: str) -> list[tuple[int, float]]:
    """The best of all words; among equals those of the longer n-gram, then those of lower id."""
    key, levels = "".join(map(letter_key, prefix)), LEVELS[ours.path]
    depth = np.zeros(len(ours), np.int64)
    for i in range(1, int(state[0]) + 1):
        context = int(state[2 * i - 1])
        depth[levels[i].word[levels[i].first[context] : levels[i].first[context + 1]]] = i
    words = [w for w in range(3, len(ours)) if "".join(map(letter_key, ours.words[w])).startswith(key)]
    rows = [(-ours.step(state, w)[0], -int(depth[w]), w) for w in words]
    return [(w, -cost) for cost, _, w in sorted(rows)[:k]]


@pytest.mark.parametrize("prefix", ["", "w", "w2", "th", "I", "zzz"])
def test_predictions_are_the_most_probable_words(prefix: str, both: tuple[NGramModel, PackedModel]) -> None:
    model, ours = both
    rng = np.random.default_rng(4)
    names = model.vocabulary.words
    for length in (0, 1, 2, 2, 3):
        context = [names[i] for i in np.minimum(rng.geometric(0.02, length) + 2, len(names) - 1)]
        state = ours.state(context)
        words, log_p = ours.predict_ids(state, 7, prefix)
        assert list(zip(words.tolist(), log_p.tolist(), strict=True)) == brute_force(ours, state, 7, prefix)


def test_the_top_three_of_ten_thousand_contexts(both: tuple[NGramModel, PackedModel]) -> None:
    """They are the same as those of the whole distribution, computed from the unpacked n-grams."""
    _, ours = both
    rng, levels = np.random.default_rng(5), LEVELS[ours.path]
    backoffs = log_backoffs(levels, ours.header, ours.file.tables)
    log_unigram = np.where(levels[0].code > 0, ours.file.tables[0, levels[0].code], -np.inf)
    depths = set()
    for u, v in np.minimum(rng.geometric(0.01, (10_000, 2)) + 2, len(ours) - 1).tolist():
        state = ours.step(ours.step(ours.state(), u)[1], v)[1]
        whole = log_unigram
        for i in range(1, int(state[0]) + 1):
            context, level = int(state[2 * i - 1]), levels[i]
            members = slice(level.first[context], level.first[context + 1])
            whole = whole + backoffs[i - 1][context]
            whole[level.word[members]] = ours.file.tables[i, level.code[members]]
        depths.add(int(state[0]))
        assert np.allclose(ours.predict_ids(state, 3)[1], -np.sort(np.partition(-whole[3:], 3)[:3]), rtol=0, atol=1e-9)
    assert depths == {1, 2}


def test_words_are_found_by_what_is_typed(tmp_path: Path) -> None:
    names = Vocabulary.of(
        ["don't", "Dont", "dont", "não", "nao", "Nação", "York", "you", "ñ", "ß", "ssa", "e-mail", "a'b"]
    )
    text = Ragged.from_rows([[i] for i in range(3, len(names))])
    ours = packed(smooth(count_ngrams(text, names, order=2), "witten-bell"), tmp_path / "m.fgram")
    assert all(ours.word(ours.word_id(word)) == word for word in names.words)
    assert ours.word_id("unknown") == ours.word_id("☃") == 0

    def completions(prefix: str) -> set[str]:
        return {p.word for p in ours.predict([], 20, prefix)}

    assert completions("dont") == completions("DON'T") == {"don't", "Dont", "dont"}
    assert completions("na") == {"não", "nao", "Nação"}
    assert completions("y") == {"York", "you"}
    assert completions("ss") == {"ß", "ssa"}
    assert completions("EMA") == {"e-mail"}
    assert completions("x") == completions("☃") == set()


def test_codebooks_are_rising_and_close() -> None:
    values = np.random.default_rng(0).gamma(2.0, 2.0, 50_000) * -1
    book = make_codebook(values, 64)
    assert len(book) <= 64
    assert (np.diff(book) > 0).all()
    assert np.abs(book[nearest(book, values)] - values).mean() < np.ptp(values) / 64 / 4
    assert make_codebook(np.array([-2.0, -1.0]), 64).tolist() == [-2.0, -1.0]


@pytest.mark.parametrize("bits", [6, 8, 12])
def test_bits_buy_likelihood(bits: int, trained: NGramModel, tmp_path: Path) -> None:
    ours = packed(trained, tmp_path / "m.fgram", bits)
    text = random_sentences(np.random.default_rng(6), words=300, sentences=300)
    log_p = ours.log_probs(translate(trained, ours, text))
    assert float(np.exp(-log_p.mean())) == pytest.approx(score(trained, text).perplexity, rel=0.05 * 2.0 ** (6 - bits))
    assert ours.header.deviation < 1e-3


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    model = random_model(np.random.default_rng(0), order=2)
    with pytest.raises(FedgramError, match="between 4 and 12 bits"):
        pack(model, tmp_path / "m.fgram", bits=3)
    long = Vocabulary.of(["x" * 256])
    text = count_ngrams(Ragged.from_rows([[3]]), long, order=1)
    with pytest.raises(FedgramError, match="255 characters"):
        pack(smooth(text, "witten-bell"), tmp_path / "m.fgram")
    assert not (tmp_path / "m.fgram").exists()


def test_a_model_whose_sums_would_be_off_needs_more_bits(tmp_path: Path) -> None:
    """Where every word follows every word, no backoff weight makes up for the rounding of probabilities."""
    labels = [EOS, *range(3, 15)]
    rows = [[x] for x in labels] + [[h, x] for h in (BOS, *range(3, 15)) for x in labels]
    topology = topology_from_ngrams(Ragged.from_rows(rows), 15, open_vocabulary=False).topology
    rng = np.random.default_rng(0)
    weight = np.concatenate([rng.dirichlet(np.ones(len(labels))) for _ in range(topology.states)])
    model = model_from_weights(topology, vocabulary(12), weight)
    with pytest.raises(FedgramError, match=r"would sum to 1 ± 0\.0047; pack the model with more bits"):
        pack(model, tmp_path / "m.fgram", bits=4)
    assert not (tmp_path / "m.fgram").exists()
    ours = packed(model, tmp_path / "m.fgram", bits=8)
    for word in ("w0", "w11"):
        sums = sum(math.exp(ours.step(ours.state([word]), x)[0]) for x in range(len(ours)))
        assert sums == pytest.approx(1.0, abs=1e-3)


def test_a_tight_state_keeps_its_sum(tmp_path: Path) -> None:
    """A state that leaves almost nothing to its backoff must not sum to more than 1 after rounding."""
    rng = np.random.default_rng(8)
    text = random_sentences(rng, words=900, sentences=2000, length=20)
    counts = count_ngrams(text, vocabulary(900), order=2)
    t = counts.topology
    weight = rng.gamma(0.5, size=t.arcs) + 1e-4
    for q in range(t.states):
        arcs = slice(t.first_arc[q], t.first_arc[q + 1])
        weight[arcs] /= weight[arcs].sum() * (1.0 if q == 0 else 1.00001)
    ours = packed(model_from_weights(t, counts.vocabulary, weight), tmp_path / "m.fgram")
    sums = state_sums(unpack_levels(ours.file, ours.header), ours.header, ours.file.tables)
    assert max(float(np.abs(s - 1).max()) for s in sums) < 1e-3


@pytest.mark.parametrize("seed", range(6))
def test_a_packed_model_can_be_unpacked(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, order=int(rng.integers(1, 5)))
    ours = packed(model, tmp_path / "m.fgram")
    again = unpack_model(ours)
    text = random_sentences(rng, words=6, sentences=40)
    there, back = score(model, text), score(again, translate(model, ours, text))
    assert back.nats == pytest.approx(there.nats, rel=2e-3)
    assert back.oov_scored == there.oov_scored
