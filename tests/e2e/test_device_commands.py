"""From a model to the words that a keyboard suggests, through the commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LINES = [
    "she lives in New York",
    "he lives in New York with us",
    "they live in New Orleans",
    "I don't live in New York",
    "we moved to York",
    "you said you know",
]


@pytest.fixture
def model(fedgram: Callable[..., Any], tmp_path: Path) -> Path:
    text, arpa, packed = tmp_path / "text.txt", tmp_path / "m.arpa", tmp_path / "lm.fgram"
    text.write_text("\n".join(LINES * 3) + "\n")
    fedgram("ngram", "train", text, "-o", arpa, "--smoothing", "witten-bell")
    result = fedgram("phone", "pack", arpa, "-o", packed, "--json")
    assert result["bytes"] == packed.stat().st_size
    assert result["deviation_from_one"] < 1e-3
    assert result["words"] == len({word for line in LINES for word in line.split()})
    return packed


def test_predict(model: Path, fedgram: Callable[..., Any]) -> None:
    result = fedgram("phone", "predict", model, "Well. She lives in New", "--json")
    assert result["context"] == ["She", "lives", "in", "New"]
    assert [row["word"] for row in result["predictions"]][:2] == ["York", "Orleans"]
    assert result["predictions"][0]["probability"] > 0.5
    assert fedgram("phone", "predict", model, "she lives in", "--prefix", "y", "-k", 1).split()[0] == "York"
    assert fedgram("phone", "predict", model, "she lives in New York.", "-k", 20, "--json")["context"] == []
    assert fedgram("phone", "predict", model, "--prefix", "dont", "-k", 1).startswith("don't\t")


def test_bad_files_and_options(model: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    assert "is not an lm.fgram file" in refused("phone", "predict", tmp_path / "m.arpa", "she")
    model.write_bytes(model.read_bytes()[:-8])
    assert "lm.fgram: " in refused("phone", "predict", model, "she")
    assert "no such file" in refused("phone", "predict", tmp_path / "none.fgram")
    assert "from 4 to 12" in refused("phone", "pack", tmp_path / "m.arpa", "-o", tmp_path / "x.fgram", "--bits", 2)
    assert "is not a model format" in refused("phone", "pack", tmp_path / "text.txt", "-o", tmp_path / "x.fgram")


def test_bench_device(model: Path, fedgram: Callable[..., Any]) -> None:
    result = fedgram("phone", "bench", model, "--json")
    assert result["bytes"] == model.stat().st_size
    assert 0 < result["top3_p50_us"] <= result["top3_p99_us"]
    assert result["queries_per_second"] > 0
    if "times_kenlm_probing" in result:
        rates = result["batch_queries_per_second"], result["kenlm_probing_queries_per_second"]
        assert result["times_kenlm_probing"] == pytest.approx(rates[0] / rates[1])
