"""A packed model as a library user sees it: text or words in, words and scores out."""

from pathlib import Path

import pytest

from fedgram.automata.model import NGramModel
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import PackedModel, Prediction, open_model

SENTENCES = ["she lives in new york", "he lives in new delhi", "she lives in a new house", "new york is old"]


@pytest.fixture(scope="module")
def model() -> NGramModel:
    return NGramModel.train(SENTENCES, order=3, smoothing="witten-bell")


@pytest.fixture(scope="module")
def packed(model: NGramModel, tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    path = tmp_path_factory.mktemp("packed") / "lm.fgram"
    pack(model, path)
    return open_model(path)


def test_a_context_may_be_text_or_words(packed: PackedModel) -> None:
    words = packed.predict(["she", "lives", "in", "new"], 3)
    assert words[0].word == "york"
    assert isinstance(words[0], Prediction)
    for text in ("she lives in new", "  She lives\tin NEW ", "Old news. he is old! She lives in new"):
        assert packed.predict(text) == words
    assert packed.predict("she lives in", k=1, prefix="h") == packed.predict(["she", "lives", "in"], 1, "h")
    assert (packed.state("she lives") == packed.state(("she", "lives"))).all()


@pytest.mark.parametrize("text", ["", " ", "she lives in new york.", "she lives in new york\n", "old!"])
def test_a_finished_sentence_is_no_context(packed: PackedModel, text: str) -> None:
    assert packed.predict(text) == packed.predict([]) == packed.predict()


def test_a_sentence_has_the_score_of_the_model(model: NGramModel, packed: PackedModel) -> None:
    for sentence in (*SENTENCES, "", "york", "old new she", "she lives in a new castle"):
        assert packed.score(sentence) == pytest.approx(model.score(sentence), abs=2e-3)
        assert packed.score(sentence.split()) == packed.score(sentence)


def test_unknown_words_are_scored_as_unk(tmp_path: Path) -> None:
    model = NGramModel.train(["a <unk> b", "b a", "<unk> a"], order=2, smoothing="witten-bell")
    pack(model, tmp_path / "lm.fgram")
    packed = open_model(tmp_path / "lm.fgram")
    assert packed.score("a castle b") == packed.score("a <unk> b")
    assert packed.score("a castle b") == pytest.approx(model.score("a castle b"), abs=2e-3)


def test_a_model_shows_its_size(packed: PackedModel) -> None:
    size = packed.path.stat().st_size
    assert repr(packed) == f"PackedModel(order 3, {packed.header.ngrams:,} n-grams, 11 words, {size:,} bytes)"
    assert packed.header.ngrams > 11
