"""`fedgram evaluate` from end to end on generated users, and what it says to a user's mistakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
MEASURES = ("top1", "top3", "oov_rate", "perplexity", "sll", "sll_e", "keystroke_savings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fedgram.cli.main import run

    folder = tmp_path_factory.mktemp("evaluate")
    users, supplement = folder / "users.parquet", folder / "supplement.txt"
    texts = folder / "pooled.txt"
    for command in (
        ["data", "synthesize", "--users", 150, "--seed", 3, "-o", users, "--supplement", supplement,
         "--sentences", 3000],
        ["data", "text", users, "--split", "train", "-o", texts],
        ["ngram", "train", supplement, "-o", folder / "supplement.arpa", "--order", 1],
        ["ngram", "train", texts, "-o", folder / "pooled.ngram", "--smoothing", "modified-kneser-ney"],
    ):  # fmt: skip
        assert run([str(word) for word in command]) == 0
    return folder


def test_models_against_a_baseline(folder: Path, fedgram: Command) -> None:
    users, baseline = folder / "users.parquet", folder / "supplement.arpa"
    result = fedgram(
        "evaluate", folder / "pooled.ngram", "--users", users, "--split", "test", "--baseline", baseline, "--json"
    )
    assert [model["model"] for model in result["models"]] == [str(baseline), str(folder / "pooled.ngram")]
    old, new = result["models"]
    assert (result["split"], result["cased"], result["buckets"]) == ("test", False, 20)
    assert result["users"] > 5
    assert "change" not in old
    for name in MEASURES:
        low, high = new[name]["ci95"]
        assert low <= new[name]["value"] <= high
        change = new["change"][name]
        assert change["value"] == pytest.approx(
            100 * (new[name]["value"] - old[name]["value"]) / abs(old[name]["value"])
        )
        assert change["ci95"][0] <= change["value"] <= change["ci95"][1]
    assert 0 < old["top1"]["value"] < new["top1"]["value"] < new["top3"]["value"] < 100
    assert new["change"]["top1"]["ci95"][0] > 0
    assert new["perplexity"]["value"] < old["perplexity"]["value"]


def test_capitals_matter_only_if_told(folder: Path, fedgram: Command) -> None:
    arguments = ("evaluate", folder / "supplement.arpa", "--users", folder / "users.parquet", "--json")
    uncased, cased = (fedgram(*arguments, case)["models"][0] for case in ("--uncased", "--cased"))
    assert cased["top1"]["value"] < uncased["top1"]["value"]
    assert cased["oov_rate"]["value"] > uncased["oov_rate"]["value"]


def test_a_table_for_people(folder: Path, fedgram: Command) -> None:
    out = fedgram(
        "evaluate", folder / "pooled.ngram", "--users", folder / "users.parquet", "--split", "train",
        "--baseline", folder / "supplement.arpa", "--experiment", "--buckets", 10,
    )  # fmt: skip
    lines = out.splitlines()
    assert "train users" in lines[0]
    assert sum("pooled.ngram" in line for line in lines) == 2
    assert any("change" in line and "+" in line and "±" in line for line in lines)
    assert "A/A intervals cover zero in 9" in " ".join(out.split())


def test_a_narrow_terminal_shows_every_figure(folder: Path, fedgram: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    same_name = folder / "other" / "pooled.ngram"
    same_name.parent.mkdir()
    same_name.write_bytes((folder / "pooled.ngram").read_bytes())
    out = fedgram("evaluate", folder / "pooled.ngram", same_name, "--users", folder / "users.parquet")
    assert "…" not in out
    assert out.count("± ") == 13  # six measures of two models, and the caption


def test_an_experiment_has_arms_and_an_aa_check(folder: Path, fedgram: Command) -> None:
    result = fedgram(
        "evaluate", folder / "pooled.ngram", "--users", folder / "users.parquet", "--split", "train",
        "--baseline", folder / "supplement.arpa", "--experiment", "--seed", 4, "--json",
    )  # fmt: skip
    experiment = result["experiment"]
    assert experiment["users_per_arm"] == result["users"] // 2
    assert experiment["aa_coverage"] == pytest.approx(0.95, abs=0.03)
    assert experiment["change"][str(folder / "pooled.ngram")]["top1"]["ci95"][0] > 0


def test_one_user_has_no_interval_and_nothing_out_of_vocabulary(tmp_path: Path, fedgram: Command) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "a.txt").write_text("the cat sat\n")
    (tmp_path / "text.txt").write_text("the cat sat\nthe cat ran\n")
    people, model, other = (tmp_path / name for name in ("users.parquet", "m.arpa", "n.arpa"))
    fedgram("data", "import", tmp_path / "users", "-o", people)
    for path, order in ((model, 3), (other, 2)):
        fedgram("ngram", "train", tmp_path / "text.txt", "-o", path, "--order", order)
    split = next(s for s in ("train", "dev", "test") if fedgram("data", "info", people, "--json")[f"users_{s}"])
    arguments = ("evaluate", model, "--users", people, "--split", split, "--baseline", other)
    result = fedgram(*arguments, "--json")["models"][1]
    assert result["top3"] == {"value": 100.0, "ci95": None}
    assert result["change"]["oov_rate"] == {"value": None, "ci95": None}
    assert "–" in fedgram(*arguments)


def test_mistakes_are_one_line(folder: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    users, model = folder / "users.parquet", folder / "pooled.ngram"
    assert "is not a model format" in refused("evaluate", tmp_path / "m.bin", "--users", users)
    assert "is not a model format" in refused("evaluate", model, "--users", users, "--baseline", "x.txt")
    assert "no such file" in refused("evaluate", tmp_path / "m.arpa", "--users", users)
    assert "no such file" in refused("evaluate", model, "--users", tmp_path / "u.parquet")
    assert "needs a --baseline" in refused("evaluate", model, "--users", users, "--experiment")
    assert "--buckets" in refused("evaluate", model, "--users", users, "--buckets", 1)
    assert "Missing argument" in refused("evaluate", "--users", users)
    damaged = tmp_path / "damaged.ngram"
    damaged.write_bytes(model.read_bytes()[:-5])
    assert "damaged" in refused("evaluate", damaged, "--users", users)
