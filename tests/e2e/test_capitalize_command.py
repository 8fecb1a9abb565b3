"""`fedgram capitalize` from end to end, and what it says to a user's mistakes."""

import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
CASED = "She lives in New York\nThe new house in York is old\nIn New York she bought a new house\nHe is new in London\n"
TYPED = "she lives in new york\n\nTHE HOUSE in  london\tis big\n"
CAPITALIZED = ["She lives in New York", "", "The house in London is big"]


@pytest.fixture(params=[".ngram", ".arpa"])
def model(request: pytest.FixtureRequest, tmp_path: Path, fedgram: Command) -> Path:
    corpus, path = tmp_path / "cased.txt", tmp_path / f"cased{request.param}"
    corpus.write_text(CASED)
    fedgram("ngram", "train", corpus, "-o", path, "--smoothing", "modified-kneser-ney")
    return path


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    path = tmp_path / "typed.txt"
    path.write_text(TYPED)
    return path


def test_capitalize_writes_a_sentence_a_line(model: Path, typed: Path, fedgram: Command) -> None:
    assert fedgram("ngram", "capitalize", model, typed) == "\n".join(CAPITALIZED) + "\n"


def test_an_unknown_first_word_gets_a_capital(model: Path, tmp_path: Path, fedgram: Command) -> None:
    typed = tmp_path / "unknown.txt"
    typed.write_text("zürich is old\n")
    assert fedgram("ngram", "capitalize", model, typed) == "Zürich is old\n"


def test_capitalize_as_json(model: Path, typed: Path, fedgram: Command) -> None:
    result = fedgram("ngram", "capitalize", model, typed, "--json")
    assert result == {"sentences": CAPITALIZED, "words": 11, "changed": 6}


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input_is_the_default(
    model: Path, fedgram: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TYPED.encode())))
    assert fedgram("ngram", "capitalize", model, *arguments).splitlines() == CAPITALIZED


def test_packed_text_and_no_text(model: Path, tmp_path: Path, fedgram: Command) -> None:
    packed, empty = tmp_path / "typed.txt.gz", tmp_path / "empty.txt"
    packed.write_bytes(gzip.compress(TYPED.rstrip().encode()))
    empty.write_text("")
    assert fedgram("ngram", "capitalize", model, packed).splitlines() == CAPITALIZED
    assert fedgram("ngram", "capitalize", model, empty) == ""
    assert fedgram("ngram", "capitalize", model, empty, "--json") == {"sentences": [], "words": 0, "changed": 0}


def test_mistakes_are_one_line(model: Path, tmp_path: Path, refused: Command) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("são paulo\n".encode("latin-1"))
    assert "suffix" in refused("ngram", "capitalize", tmp_path / "model.txt", latin)
    assert "no such file" in refused("ngram", "capitalize", tmp_path / "none.arpa", latin)
    assert "no such file" in refused("ngram", "capitalize", model, tmp_path / "none.txt")
    assert "UTF-8" in refused("ngram", "capitalize", model, latin)
