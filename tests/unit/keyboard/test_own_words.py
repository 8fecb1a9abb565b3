"""Personal words while typing and gliding: they are found, scored as by the plain recursion, and harm no others."""

from pathlib import Path

import numpy as np
import pytest
from tests.reference import tap_decoding

from fedgram.automata.build import count_ngrams
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model
from fedgram.fgram.spelling import word_key
from fedgram.keyboard.decoder import Keyboard
from fedgram.keyboard.glide import Glider
from fedgram.keyboard.layout import load_layout, noisy_taps
from fedgram.keyboard.own_words import align, own_words
from fedgram.keyboard.personal import PersonalModel, PersonalOptions
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Keyboard:
    sentences = list(SyntheticPopulation("en_us", seed=4).clean_sentences(2000))
    names = Vocabulary.of(word for sentence in sentences for word in sentence)
    text = Ragged.from_rows([names.encode(sentence) for sentence in sentences])
    path = tmp_path_factory.mktemp("own") / "lm.fgram"
    pack(smooth(count_ngrams(text, names, order=3), "modified-kneser-ney"), path)
    return Keyboard(open_model(path), load_layout("en_us"))


@pytest.fixture(scope="module")
def personal(board: Keyboard) -> PersonalModel:
    personal = PersonalModel(board.model, PersonalOptions(patience=20))
    for _ in range(10):
        personal.learn(["the", "house", "of", "Zuleica", "is", "Qyxwort's"])
    return personal


def test_words_that_nobody_else_knows_are_understood(board: Keyboard, personal: PersonalModel) -> None:
    rng = np.random.default_rng(0)
    for word in ("Zuleica", "Qyxwort's"):
        key = word_key(word)
        for _ in range(20):
            found = board.decode(noisy_taps(board.layout, key, 0.3, rng), ["of"], 1, personal)
            assert found[0].word == word
        assert Glider(board).decode(board.layout.typed(key), ["of"], 3, personal)[0].word == word
        assert word not in [c.word for c in board.decode(board.layout.typed(key), ["of"], 3)]
        begun = board.typing(["of"], personal)
        for x, y in board.layout.typed(key[:3]).tolist():
            begun.tap(x, y)
        assert word in [c.word for c in begun.candidates(3) if not c.is_complete]
    personal_less = PersonalModel(board.model)
    taps = noisy_taps(board.layout, "house", 0.3, rng)
    assert board.decode(taps, ["the"], 3, personal_less) == board.decode(taps, ["the"], 3)


def test_no_candidate_loses_more_than_the_guard(board: Keyboard, personal: PersonalModel) -> None:
    rng, glider = np.random.default_rng(1), Glider(board)
    for _ in range(60):
        key = board.lexicon.keys[int(rng.integers(len(board.lexicon)))]
        taps, trail = noisy_taps(board.layout, key, 0.3, rng), board.layout.typed(key)
        for weight, base, ours in (
            (board.options.weight, board.decode(taps, ["the"], 3), board.decode(taps, ["the"], 12, personal)),
            (1.0, glider.decode(trail, ["the"], 3), glider.decode(trail, ["the"], 12, personal)),
        ):
            worth = {c.word: c.worth for c in ours}
            for c in base:
                assert worth[c.word] >= c.worth - weight * personal.options.guard - 1e-9
            learned = {word for word, _ in personal.learned()}
            order = [c.word for c in ours if c.word not in learned and c.word in {b.word for b in base}]
            assert order == [c.word for c in base if c.word not in learned]


def test_words_are_aligned_as_the_plain_recursion_does(board: Keyboard, personal: PersonalModel) -> None:
    own = own_words(personal, board.layout, ["of"])
    assert own is not None
    assert own.log_p.tolist() == pytest.approx([personal.log_p(["of"], word) for word in own.words])
    rng, options = np.random.default_rng(2), board.options
    for _ in range(10):
        taps = noisy_taps(board.layout, "zulieca"[: int(rng.integers(1, 8))], 0.4, rng)
        cost = np.maximum(-board.layout.squared_distances(taps) / (2 * options.sigma**2), options.slip)
        whole, _ = align(cost, own.spelled, options.costs())
        letter, offsets = own.spelled
        letters = [letter[offsets[w] : offsets[w + 1]].tolist() for w in range(len(own.words))]
        assert whole.tolist() == pytest.approx([tap_decoding.alignment(cost, word, options) for word in letters])


def test_what_is_forgotten_is_not_understood(board: Keyboard, tmp_path: Path) -> None:
    personal = PersonalModel(board.model)
    personal.learn(["of", "Zuleica"])
    assert board.decode(board.layout.typed("zuleica"), ["of"], 1, personal)[0].word == "Zuleica"
    kept = tmp_path / "personal.json"
    kept.write_text(personal.to_json())
    personal.forget("Zuleica")
    assert board.decode(board.layout.typed("zuleica"), ["of"], 1, personal)[0].word != "Zuleica"
    personal.load_json(kept.read_text())
    assert board.decode(board.layout.typed("zuleica"), ["of"], 1, personal)[0].word == "Zuleica"
    assert own_words(PersonalModel(board.model), board.layout, []) is None
