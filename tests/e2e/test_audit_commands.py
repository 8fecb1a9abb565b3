"""`fedgram audit …` on small generated populations."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgram.cli.main import run

CONFIG = """
seed = 4
[population]
typists = 90
supplement_sentences = 600
[unigrams]
rounds = 2
devices_per_round = 30
[words]
preset = "W_demo"
[words.pretraining]
epochs = 2
learning_rate = 0.01
rows = 16
[words.training]
rounds = 4
devices_per_round = 10
client_rate = 0.1
dev_users = 5
[budget]
max_ngrams = 8000
max_words = 2000
[distillation]
samples = 1000
infer_samples = 1000
order = 3
uncased_first = true
[refit]
order = 3
grow = 1
sketch_bits = 16
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    make = ["data", "synthesize", "--users", "160", "-o", str(folder / "users.parquet")]
    assert run([*make, "--supplement", str(folder / "s.txt"), "--sentences", "500"]) == 0
    assert run(["ngram", "train", str(folder / "s.txt"), "-o", str(folder / "model.arpa")]) == 0
    assert run(["ngram", "train", str(folder / "s.txt"), "--order", "2", "-o", str(folder / "b.ngram")]) == 0
    assert run(["phone", "pack", str(folder / "model.arpa"), "-o", str(folder / "lm.fgram")]) == 0
    return folder


def test_ngrams_by_devices_of_every_format(home: Path, fedgram: Callable[..., Any], tmp_path: Path) -> None:
    users = ("--users", home / "users.parquet")
    arpa = fedgram("audit", "ngrams", home / "model.arpa", *users, "--json")
    packed = fedgram("audit", "ngrams", home / "lm.fgram", *users, "--json")
    assert arpa["orders"] == packed["orders"]
    assert [row["order"] for row in arpa["orders"]] == [1, 2, 3]
    assert sum(sum(row["devices"].values()) for row in arpa["orders"]) == arpa["ngrams"]
    assert arpa["single_device"] > 0
    listed = tmp_path / "single.txt"
    public = fedgram(
        "audit", "ngrams", home / "model.arpa", *users, "--public", home / "s.txt", "--list", listed, "--json"
    )
    assert public["single_device"] == 0  # the model is of the public text alone
    assert listed.read_text() == ""
    assert "n-grams are typed by one device" in fedgram("audit", "ngrams", home / "b.ngram", *users, "--split", "all")


def test_public_text_is_normalised_as_users_text_is(home: Path, fedgram: Callable[..., Any], tmp_path: Path) -> None:
    """With its punctuation, a text has the same n-grams as without."""
    raw = tmp_path / "raw.txt"
    raw.write_text(
        "".join(f"“{line}”, indeed!\n".replace(" ", "  ") for line in (home / "s.txt").read_text().splitlines())
    )
    asked = ("audit", "ngrams", home / "model.arpa", "--users", home / "users.parquet", "--json", "--public")
    clean, given = (fedgram(*asked, path)["orders"] for path in (home / "s.txt", raw))
    assert [row["not_public"] for row in clean[1:]] == [dict.fromkeys(row["not_public"], 0) for row in clean[1:]]
    ends = [sum(row["not_public"].values()) for row in given]  # of sentences, which are others now
    assert ends[0] == 0
    assert all(end < 0.5 * row["ngrams"] for end, row in zip(ends, given, strict=True))


def test_membership(home: Path, fedgram: Callable[..., Any], refused: Callable[..., str]) -> None:
    users = ("--users", home / "users.parquet")
    found = fedgram("audit", "membership", home / "model.arpa", *users, "--reference", home / "b.ngram", "--json")
    low, high = found["auc_ci95"]
    assert low <= found["auc"] <= high
    assert low < 0.5 < high  # nobody's text was used
    assert "false positives" in fedgram("audit", "membership", home / "model.arpa", *users)
    assert "two splits" in refused("audit", "membership", home / "model.arpa", *users, "--others", "train")


def test_epsilon(fedgram: Callable[..., Any], refused: Callable[..., str]) -> None:
    options = ("--canaries", 200, "--typists", 10, "--noise-seed", 1)
    found = fedgram("audit", "epsilon", *options, "--json")["audits"]
    assert [(row["mechanism"], row["noise"]) for row in found] == [
        ("counts", True), ("counts", False), ("rounds", True), ("rounds", False)
    ]  # fmt: skip
    for row in found:
        assert (row["gaussian_bound"] < 3.42 < row["estimate"] + 2) if row["noise"] else row["epsilon_bound"] > 2
    assert "holds" in fedgram("audit", "epsilon", "--mechanism", "counts", *options)
    assert "canaries" in refused("audit", "epsilon", "--canaries", 1)


def test_inversion(fedgram: Callable[..., Any], refused: Callable[..., str]) -> None:
    options = ("--typists", 30, "--cohort", 20, "--targets", 3)
    found = fedgram("audit", "inversion", *options, "--json")["attacks"]
    one = {row["task"]: row for row in found if row["release"] == "one update"}
    assert one["unigrams"]["recovered"] == one["n-grams"]["recovered"] == 1.0
    assert "frequency alone" in fedgram("audit", "inversion", *options)
    assert "too few" in refused("audit", "inversion", "--typists", 5)


def test_canaries_in_all_models(fedgram: Callable[..., Any], refused: Callable[..., str], tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    options = ("--holders", "0,1,12", "--repeats", "10", "--copies", "2", "--references", "500", "--words", "200")
    command = ("audit", "canaries", config, "-w", tmp_path / "ws", *options, "--workers", "1")
    found = fedgram(*command, "--json")
    names = [model["model"] for model in found["models"]]
    chain = ["network", "A_e", "A_i", "A_m", "A_r"]
    refits = [f"refit {p}{end}" for p in ("none", "threshold") for end in ("", ", packed")]
    assert names == [*chain, *refits, *(f"dp {name}" for name in chain), "refit dp", "refit dp, packed"]
    by_name = {model["model"]: {cell["holders"]: cell for cell in model["cells"]} for model in found["models"]}
    assert by_name["refit none"][12]["extracted"] == 2
    assert by_name["refit none"][12]["mean_exposure"] > by_name["refit none"][0]["mean_exposure"] + 3
    assert sum(cell["extracted"] for name in names if "dp" in name for cell in by_name[name].values()) == 0
    assert json.loads((tmp_path / "ws" / "audits" / "canaries.json").read_text()) == found
    assert fedgram(*command, "--json") == found  # nothing is made again
    users = tmp_path / "ws" / "canaries" / "users.population"
    model = tmp_path / "ws" / "canaries" / "refit_none.ngram"
    assert fedgram("audit", "ngrams", model, "--users", users, "--json")["users"] == found["users"]
    assert "another audit" in refused(*command, "--width", "3")
    assert "no such file" in refused("audit", "canaries", "nowhere.toml", "-w", tmp_path / "x")


def test_poisoning_and_the_report(fedgram: Callable[..., Any], refused: Callable[..., str], tmp_path: Path) -> None:
    config, workspace = tmp_path / "config.toml", tmp_path / "ws"
    config.write_text(CONFIG)
    attacks = ("--no-network", "--attacks", "backdoor", "--shares", "0.1", "--triggers", 3, "--test-users", 5)
    assert "has no report/results.json and no audits" in refused("report", tmp_path, "-o", tmp_path / "out")
    found = fedgram("audit", "poisoning", config, "-w", workspace, *attacks, "--json")
    assert [(row["attack"], row["share"]) for row in found["rows"]] == [(None, 0.0), ("backdoor", 0.1)]
    assert found["rows"][1]["liars"] == round(0.1 * found["users"])
    assert json.loads((workspace / "audits" / "poisoning.json").read_text()) == found
    options = ("-w", workspace, "--canaries", 100, "--typists", 5, "--noise-seed", 1, "--mechanism", "counts")
    assert fedgram("audit", "epsilon", config, *options, "--json")["audits"][0]["delta"] == 1e-8  # that of the config
    fedgram("report", workspace, "-o", tmp_path / "out")
    page = (tmp_path / "out" / "report.md").read_text("utf-8")
    assert page.index("## Audits") < page.index("### ε from one run") < page.index("### Poisoning")
    assert "backdoor by 10 %" in page
    (workspace / "audits" / "poisoning.json").write_text('{"rows": 3}')
    assert "does not hold the result of an audit" in refused("report", workspace, "-o", tmp_path / "out")


def test_a_network_has_no_ngrams(refused: Callable[..., str], home: Path, tmp_path: Path) -> None:
    missing = refused("audit", "ngrams", tmp_path / "no.arpa", "--users", home / "users.parquet")
    assert "no.arpa" in missing
    assert "population" in refused("audit", "ngrams", home / "model.arpa", "--users", home / "s.txt")
