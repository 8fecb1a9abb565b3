"""Table 1 on people made up so that λ decides whose words get in."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedgram.automata.model import NGramModel
from fedgram.federated.collect_unigrams import UnigramOptions
from fedgram.formats.artefact import write_ngram
from fedgram.pipeline.clipping_stage import clipping
from fedgram.pipeline.config import ClippingSection, EvaluationSection
from fedgram.pipeline.workspace import Work
from fedgram.text.population import population_from_messages, write_population

SUPPLEMENT = ["the cat sat on the mat", "the dog sat on the cat", "the dog ran", "a zebra ran"]
WHITELIST = ["the", "cat", "sat", "on", "mat", "dog", "ran", "a", "zebra", "yes", "hello", "okay"]


def people() -> list[tuple[str, str, str]]:
    """One person says okay 60 times; six others say yes or hello, and little else."""
    rows = [("heavy", "okay okay okay", "train")] * 20
    rows += [(f"light{i}", f"the {word}", "train") for i, word in enumerate(["yes", "yes", "hello"] * 2)]
    rows += [(f"dev{i}", "the cat", "dev") for i in range(2)]
    rows += [("t0", "the yes yes hello", "test"), ("t1", "okay the yes", "test"), ("t2", "hello yes", "test")]
    return rows


@pytest.fixture
def work(tmp_path: Path) -> Work:
    (tmp_path / "supplement.txt").write_text("\n".join(SUPPLEMENT) + "\n")
    (tmp_path / "whitelist.txt").write_text("\n".join(WHITELIST) + "\n")
    model = NGramModel.train(SUPPLEMENT, vocab=WHITELIST, order=2, smoothing="modified-kneser-ney")
    for name in ("baseline.ngram", "A_W.ngram"):
        write_ngram(model, tmp_path / name)
    write_population(tmp_path / "users.population", population_from_messages(people()))
    names = ("users.population", "supplement.txt", "whitelist.txt", "A_W.ngram", "baseline.ngram")
    return Work(None, tmp_path, {name: tmp_path / name for name in names}, measured=4)


def run(work: Work, **settings: Any) -> dict[str, Any]:
    config = ClippingSection(thresholds=(1.0, float("inf")), devices=7, **settings)
    options = UnigramOptions(devices_per_round=3, over_selection=1, dropout=0)
    clipping(work, config, options, EvaluationSection(split="test", buckets=3), 1)
    found: dict[str, Any] = json.loads(work.write("clipping.json").read_text())
    return found


def oov(row: dict[str, Any], part: str = "change") -> float:
    value: float = row[part]["oov_rate"]["value"]
    return value


def test_whose_words_get_in(work: Work) -> None:
    """There is room for three words.

    λ = 1: the (6 · 1/2), yes (4 · 1/2), and hello (2 · 1/2) before okay (60 · 1/60) by the alphabet. λ = ∞: okay (60),
    the (6) and yes (4). Of the nine words of test users, the supplement's the, cat and dog cover two.
    """
    found = run(work, max_words=3)
    assert found["devices"] == 7
    assert found["words"] == 4
    assert found["max_words"] == 3
    assert found["measured"] == 5
    assert found["baseline"]["oov_rate"]["value"] == pytest.approx(100 * 7 / 9)
    one, infinite = found["rows"]
    assert (one["clip"], infinite["clip"]) == (1.0, None)
    assert oov(infinite) == pytest.approx(100 * (2 / 7 - 1))  # hello twice
    assert oov(one) == pytest.approx(100 * (1 / 7 - 1))  # okay once
    assert oov(infinite, "against_first") == pytest.approx(100.0)
    assert oov(one, "against_first") == 0.0
    assert found["control"]["replaced"]["oov_rate"]["value"] == 0.0


def test_the_capacity_is_a_share_of_the_words_seen(work: Work) -> None:
    assert run(work)["max_words"] == 1


def test_with_room_for_all_the_threshold_does_not_matter(work: Work) -> None:
    one, infinite = run(work, max_words=20)["rows"]
    assert oov(one) == oov(infinite)
    assert one["interpolated"]["oov_rate"] == one["change"]["oov_rate"]
