"""The `fedgram pieces` commands from end to end, and what they say to a user's mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fedgram.cli.pieces import group
from fedgram.core.errors import FedgramError

pytest.importorskip("sentencepiece")
WORDS = "the 900\nThe 100\nthat 500\nthen 300\nhat 120\nhats 80\neaten 60\ncafé 40.5\ndon't 30\nwell-being 0\n<unk> 7\n"


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments], input=text)


def succeeded(*arguments: object, text: str | None = None) -> Any:
    result = run(*arguments, text=text)
    assert result.exit_code == 0, result.exception
    assert result.stderr == ""
    return json.loads(result.stdout) if "--json" in arguments else result.stdout


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, FedgramError)
    assert result.output == ""
    message = str(result.exception)
    assert "\n" not in message
    return message


@pytest.fixture
def unigrams(tmp_path: Path) -> Path:
    path = tmp_path / "unigrams.tsv"
    path.write_text(WORDS.replace(" ", "\t"))
    return path


@pytest.fixture
def model(unigrams: Path) -> Path:
    path = unigrams.parent / "pieces.model"
    succeeded("train", "--unigrams", unigrams, "--size", 24, "-o", path)
    return path


def test_train_and_info(unigrams: Path) -> None:
    path = unigrams.parent / "pieces.model"
    trained = succeeded("train", "--unigrams", unigrams, "--size", 24, "-o", path, "--json")
    assert {"model", "size", "words", "characters", "pieces_per_token", "seconds"} == trained.keys()
    assert (trained["size"], trained["words"], trained["characters"]) == (24, 9, 18)
    assert 1.0 < trained["pieces_per_token"] < 3.0
    info = succeeded("info", path, "--json")
    assert (info["size"], info["characters"]) == (24, 18)
    assert info["bytes"] == path.stat().st_size
    assert 1 <= info["final_pieces"] < 24
    assert "longest piece" in succeeded("info", path)


def test_encode_shows_pieces(model: Path, tmp_path: Path) -> None:
    lines = succeeded("encode", model, text="The  hats\n\nCAFÉ don't 日\n").split("\n")
    assert lines[0].replace(" ", "").split("▁") == ["the", "hats", ""]
    assert lines[1] == ""
    assert lines[2].replace(" ", "").split("▁") == ["café", "don't", "<unk>", ""]
    text = tmp_path / "text.txt"
    text.write_text("the hats")
    assert succeeded("encode", model, text) == lines[0] + "\n"


def test_mistakes_are_one_line(unigrams: Path, model: Path) -> None:
    folder, out = unigrams.parent, unigrams.parent / "out.model"
    assert "choose a size from 20 to" in refused("train", "--unigrams", unigrams, "--size", 5, "-o", out)
    assert "choose a size from 20 to" in refused("train", "--unigrams", unigrams, "-o", out)
    assert "its folder does not exist" in refused("train", "--unigrams", unigrams, "-o", folder / "no" / "p.model")
    (folder / "bad.tsv").write_text("one\n")
    assert "bad.tsv:1: not a word and a count" in refused("train", "--unigrams", folder / "bad.tsv", "-o", out)
    (folder / "blocks.tsv").write_text("▁▂▃\t5\nthe\t5\n")
    assert "1 of 2 words" in refused("train", "--unigrams", folder / "blocks.tsv", "-o", out)
    assert "unigrams.tsv: is damaged or not a SentencePiece model" in refused("info", unigrams)
    (folder / "marked.txt").write_text("fine\nthe▁\n")
    marked = run("encode", model, folder / "marked.txt")
    assert str(marked.exception).endswith("marked.txt:2: holds the mark ▁, which ends words in pieces")
    assert isinstance(run("info", folder / "none.model").exception, FileNotFoundError)
    assert not out.exists()
