"""Taps, trails and personal words: reference implementations, worked examples and generated typists."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.reference import tap_decoding

from fedgram.automata.build import count_ngrams
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import FloatArray, Ragged
from fedgram.core.errors import FedgramError
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import PackedModel, open_model
from fedgram.fgram.spelling import word_key
from fedgram.keyboard.decoder import Keyboard, TapOptions
from fedgram.keyboard.glide import POINTS, Glider, resample, synthesize_trail, warped
from fedgram.keyboard.layout import load_layout, noisy_taps
from fedgram.keyboard.lexicon import make_lexicon
from fedgram.keyboard.personal import PersonalModel, PersonalOptions
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary


def trained(sentences: list[list[str]], path: Path) -> PackedModel:
    names = Vocabulary.of(word for sentence in sentences for word in sentence)
    text = Ragged.from_rows([names.encode(sentence) for sentence in sentences])
    pack(smooth(count_ngrams(text, names, order=3), "witten-bell"), path)
    return open_model(path)


LINES = [
    "the cat sat on the mat", "the then they them", "I don't know what to say", "she lives in New York", "a new york",
    "we went there with their car", "quality of the work", "he is from Rio", "it's a good value",
    "good value for money",
    "a scary vampire", "the scary vampire bit her", "value", "receive the letter", "não sei", "ele não vem",
    "caça e coração",
]  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    return trained([line.split() for line in LINES * 3], tmp_path_factory.mktemp("small") / "lm.fgram")


@pytest.fixture(scope="module")
def board(small: PackedModel) -> Keyboard:
    return Keyboard(small, load_layout("en_us"))


def typed(board: Keyboard, letters: str, context: str = "", k: int = 3) -> list[str]:
    return [c.word for c in board.decode(board.layout.typed(letters), context.split(), k)]


@pytest.mark.parametrize(
    ("letters", "word"),
    [
        ("the", "the"), ("teh", "the"), ("thw", "the"), ("tthe", "the"), ("qulity", "quality"), ("recieve", "receive"),
        ("dont", "don't"), ("yorl", "York"), ("vampre", "vampire"), ("lettre", "letter"), ("wnet", "went"),
        ("nao", "não"), ("coracao", "coração"), ("qualit", "quality"),
    ],
)  # fmt: skip
def test_slips_are_mended(letters: str, word: str, board: Keyboard) -> None:
    context = "she lives in New" if word == "York" else ""
    assert typed(board, letters, context)[0] == word


def test_the_context_decides(board: Keyboard) -> None:
    assert typed(board, "york", "she lives in New")[0] == "York"
    assert typed(board, "york", "a new")[0] == "york"
    between = (board.layout.typed("cat") + board.layout.typed("car")) / 2
    assert board.decode(between, ["the"])[0].word == "cat"
    assert board.decode(between, ["their"])[0].word == "car"


def test_a_context_may_be_text(board: Keyboard) -> None:
    text, words = "The cat sat. She lives in New", ["She", "lives", "in", "New"]
    taps, glider, personal = board.layout.typed("york"), Glider(board), PersonalModel(board.model)
    personal.learn(["New", "Yorkers"])
    for own in (None, personal):
        assert board.decode(taps, text, 3, own) == board.decode(taps, words, 3, own)
        assert glider.decode(taps, text, 3, own) == glider.decode(taps, words, 3, own)
    assert personal.predict(text) == personal.predict(words) != personal.predict("New York.")
    assert personal.log_p(text, "York") == personal.log_p(words, "York")


def test_names_stay_as_they_were_typed(board: Keyboard) -> None:
    (best, *_) = board.decode(board.layout.typed("zqxjk"))
    assert best.word == "zqxjk"
    assert best.is_literal


def test_suggestions_complete_and_follow_backspace(board: Keyboard) -> None:
    word = board.typing(["the", "scary"])
    assert word.candidates() == []
    for x, y in board.layout.typed("va").tolist():
        word.tap(x, y)
    before = word.candidates(3)
    assert {c.word for c in before if not c.is_complete} >= {"vampire", "value"}
    assert next(c for c in before if not c.is_complete).word == "vampire"
    for x, y in board.layout.typed("lu").tolist():
        word.tap(x, y)
    assert word.literal == "valu"
    assert word.candidates(1)[0].word == "value"
    word.backspace()
    word.backspace()
    assert word.candidates(3) == before
    for _ in range(5):
        word.backspace()
    assert word.candidates() == []


def test_the_brazilian_layout_has_its_own_key(small: PackedModel) -> None:
    brazil = Keyboard(small, load_layout("pt_br"))
    places = dict(zip(brazil.layout.keys, brazil.layout.centres, strict=True))
    taps = np.array([places[c] for c in "coraçao"])
    assert brazil.decode(taps)[0].word == "coração"
    assert brazil.layout.nearest(taps) == "coraçao"
    with pytest.raises(FedgramError, match="no layout"):
        load_layout("dvorak")


def test_the_search_finds_what_the_recursion_finds(board: Keyboard) -> None:
    options = replace(TapOptions(), width=1e6, hypotheses=10**6)
    wide = Keyboard(board.model, board.layout, options)
    rng = np.random.default_rng(0)
    letters = board.layout.letters
    for _ in range(25):
        meant = wide.lexicon.keys[int(rng.integers(len(wide.lexicon)))]
        taps = noisy_taps(wide.layout, meant, 0.5, rng)
        taps = np.delete(taps, rng.integers(len(taps)), axis=0) if rng.random() < 0.3 and len(taps) > 1 else taps
        cost = np.maximum(-wide.layout.squared_distances(taps) / (2 * options.sigma**2), options.slip)
        state = wide.model.state(["the"])
        expected = sorted(
            (
                -tap_decoding.alignment(cost, [letters.index(c) for c in key], options)
                - options.weight * wide.model.step(state, int(word))[0],
                wide.model.word(int(word)),
            )
            for key, word in zip(wide.lexicon.keys, wide.lexicon.trie.word_id, strict=True)
        )[:5]
        found = [c for c in wide.decode(taps, ["the"], 5) if not c.is_literal]
        assert [c.worth for c in found] == pytest.approx([-row[0] for row in expected[: len(found)]])


def test_lexicons_are_tries_of_what_can_be_typed() -> None:
    layout = load_layout("en_us")
    keys = ["to", "a", "too", "at", "to", "x2", "", "até", "b" * 40]
    lexicon = make_lexicon(layout, keys, range(len(keys)), [-2.0, -1.0, -3.0, -4.0, -1.5, 0.0, 0.0, 0.0, 0.0])
    assert lexicon.keys == ("a", "at", "to", "to", "too")
    trie = lexicon.trie

    def walk(node: int, path: str) -> dict[str, tuple[set[int], float]]:
        words = set(trie.word_id[trie.first_word[node] : trie.first_word[node + 1]].tolist())
        result, child, last = {path: (words, float(trie.best[node]))}, int(trie.child[node]), math.inf
        while child >= 0:
            assert trie.best[child] <= last
            assert trie.depth[child] == len(path) + 1
            last = trie.best[child]
            result |= walk(child, path + layout.letters[trie.letter[child]])
            child = int(trie.sibling[child])
        return result

    assert walk(0, "") == {
        "": (set(), -1.0), "a": ({1}, -1.0), "at": ({3}, -4.0), "t": (set(), -1.5), "to": ({0, 4}, -1.5),
        "too": ({2}, -3.0),
    }  # fmt: skip


@pytest.fixture(scope="module", params=["en_us", "pt_br"])
def typist(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Keyboard, list[list[str]]]:
    """A keyboard for generated text, and sentences that its model was not trained on."""
    people = SyntheticPopulation(request.param, seed=3)
    sentences = list(people.clean_sentences(8000))
    model = trained(sentences[:7000], tmp_path_factory.mktemp("typist") / "lm.fgram")
    return Keyboard(model, load_layout(request.param)), sentences[7000:7080]


def words_of(board: Keyboard, sentences: list[list[str]]) -> list[tuple[list[str], str]]:
    pairs = [(sentence[:i], word_key(word)) for sentence in sentences for i, word in enumerate(sentence)]
    return [(context, key) for context, key in pairs if key and set(key) <= set(board.layout.letters)]


def test_noisy_taps_are_understood(typist: tuple[Keyboard, list[list[str]]]) -> None:
    board, sentences = typist
    rng = np.random.default_rng(0)
    right = literal = 0
    words = words_of(board, sentences)
    for context, key in words:
        taps = noisy_taps(board.layout, key, 0.3, rng)
        literal += board.layout.nearest(taps) == key
        right += word_key(board.decode(taps, context)[0].word) == key
    assert literal / len(words) < 0.75
    assert right / len(words) > 0.95


def test_trails_are_understood(typist: tuple[Keyboard, list[list[str]]]) -> None:
    board, sentences = typist
    glider, rng = Glider(board), np.random.default_rng(0)
    words = [(context, key) for context, key in words_of(board, sentences[:40]) if len(key) > 1]
    first = third = 0
    for context, key in words:
        found = [word_key(c.word) for c in glider.decode(synthesize_trail(board.layout, key, rng), context)]
        first += found[:1] == [key]
        third += key in found
    assert first / len(words) > 0.9
    assert third / len(words) > 0.97


def test_one_trail_two_words(board: Keyboard) -> None:
    """The paper's example: the same trail is `vampire` after one word and `value` after another."""
    glider = Glider(board)
    lines = [resample(board.layout.typed(word), POINTS) for word in ("vampire", "value")]
    trail: FloatArray = 0.5 * lines[0] + 0.5 * lines[1]
    assert glider.decode(trail, ["the", "scary"])[0].word == "vampire"
    assert glider.decode(trail, ["a", "good"])[0].word == "value"


def test_trails_that_are_none(board: Keyboard) -> None:
    glider = Glider(board)
    assert glider.decode(np.zeros((1, 2))) == []
    assert glider.decode(np.full((9, 2), np.nan)) == []
    assert glider.decode(np.array([[50.0, 50.0], [60.0, 60.0]])) == []
    still = np.repeat(board.layout.typed("a"), 5, axis=0)
    assert glider.decode(still)[0].word == "a"


def test_warping_is_the_plain_recursion() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(size=(2, 12, 2))
        assert warped(a, b, 4, np.empty((2, 13)), np.inf) == pytest.approx(tap_decoding.warped(a, b, 4))
    line = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 1.0]])
    assert resample(line, 5).tolist() == [[0, 0], [1, 0], [2, 0], [3, 0], [3, 1]]


def test_nobody_loses_more_than_the_guard(small: PackedModel) -> None:
    personal = PersonalModel(small, PersonalOptions(most=0.25, patience=5))
    for _ in range(40):
        personal.learn(["Zuleica", "mat", "mat", "the", "mat"])
    assert personal.options.guard == pytest.approx(-math.log(0.75))
    for context in ([], ["the"], ["the", "cat"], ["Zuleica"]):
        state, total = small.state(context), 0.0
        for word in small.words[2:]:
            loss = small.step(state, small.word_id(word))[0] - personal.log_p(context, word)
            assert loss <= personal.options.guard + 1e-9
            total += math.exp(personal.log_p(context, word))
        total += sum(math.exp(personal.log_p(context, word)) for word in personal.unknown_words())
        assert total == pytest.approx(1, abs=2e-3)
    assert personal.log_p(["the"], "mat") > small.step(small.state(["the"]), small.word_id("mat"))[0]


def test_personal_predictions_are_exact(small: PackedModel) -> None:
    personal = PersonalModel(small)
    assert personal.predict(["the"], 3) == small.predict(["the"], 3)
    for _ in range(30):
        personal.learn(["the", "vampire", "Zuleica"])
    assert personal.unknown_words() == ["Zuleica"]
    for context in ([], ["the"], ["vampire"]):
        for prefix in ("", "z", "v", "th"):
            words = [w for w in {*small.words[3:], "Zuleica"} if word_key(w).startswith(prefix)]
            whole = sorted((-personal.log_p(context, word), word) for word in words)[:4]
            assert [p.log_p for p in personal.predict(context, 4, prefix)] == pytest.approx([-row[0] for row in whole])
    assert personal.predict(["vampire"], 1, "z")[0].word == "Zuleica"
    assert "Zuleica" in [p.word for p in personal.predict(["vampire"], 3)]


def test_personal_words_can_be_shown_kept_and_erased(small: PackedModel) -> None:
    personal = PersonalModel(small, PersonalOptions(words=50, pairs=60))
    personal.learn(["hello", "Bob", "<email>", "hello", "Bob"])
    assert [word for word, _ in personal.learned()] == ["Bob", "hello"]
    assert personal.learned()[0][1] == pytest.approx(2, abs=0.01)
    again = PersonalModel(small)
    again.load_json(personal.to_json())
    assert [p.word for p in again.predict(["hello"])] == [p.word for p in personal.predict(["hello"])]
    assert again.log_p(["hello"], "Bob") == pytest.approx(personal.log_p(["hello"], "Bob"))
    assert personal.forget("Bob")
    assert not personal.forget("Bob")
    assert "Bob" not in personal.to_json()
    for i in range(300):
        personal.learn([f"word{i}", f"word{i + 1}"])
    assert len(personal.learned()) <= 50
    personal.erase()
    assert personal.learned() == []
    assert personal.predict([], 3) == small.predict([], 3)
    assert "hello" not in repr(personal)
    for bad in ("", "[]", "{}", '{"fedgram-personal": 2}', '{"fedgram-personal": 1, "words": {"a": -1}, "pairs": {}}'):
        with pytest.raises(FedgramError):
            again.load_json(bad)


def test_words_fade_with_every_word_that_is_learned_after_them(small: PackedModel) -> None:
    """So do pairs: what was typed last counts as one, whatever the user typed before."""
    personal = PersonalModel(small, PersonalOptions(fading=0.5))
    personal.learn(["hello", "Bob"])
    personal.learn(["hello"], after="Ann")
    assert personal.learned() == [("hello", 1.25), ("Bob", 0.5)]
    pairs = json.loads(personal.to_json())["pairs"]
    assert pairs == {"<s>": {"hello": 0.25}, "hello": {"Bob": 0.5}, "Ann": {"hello": 1.0}}
