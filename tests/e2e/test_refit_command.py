"""`fedgram refit` from end to end, on a generated population."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgram.automata.properties import model_faults
from fedgram.cli.main import run
from fedgram.formats.models import read_model

Command = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, fedgram: Command) -> Path:
    """Users, and a model of text that is none of theirs."""
    pytest.importorskip("pyarrow")
    for name, seed, users in (("others", 1, 40), ("users", 2, 60)):
        fedgram("data", "synthesize", "--users", users, "--seed", seed, "-o", tmp_path / f"{name}.parquet")
    text = tmp_path / "others.txt"
    fedgram("data", "text", tmp_path / "others.parquet", "--split", "train", "--uncased", "-o", text)
    fedgram("ngram", "train", text, "--order", 2, "-o", tmp_path / "A.ngram")
    return tmp_path


def test_refit(folder: Path, fedgram: Command) -> None:
    model, users = folder / "A.ngram", folder / "users.parquet"
    base = ["federated", "refit", model, "--users", users, "--public", model, "--devices-per-round", 20, "--json"]
    result = fedgram(*base, "--counts", folder / "c.counts", "-o", folder / "R.ngram", "--max-ngrams", 8000)
    assert result["ngrams"] <= 8000
    assert result["order"] > 2
    assert len(result["reports"]) == 4  # of pairs, n-grams, and longer ones as long as there are any
    assert len(set(result["reports"])) == 1
    assert min(result["bytes_per_report"]) > 0
    assert model_faults(read_model(folder / "R.ngram")) == []
    levels = fedgram(
        "evaluate", folder / "R.ngram", "--baseline", folder / "A.ngram", "--users", folder / "users.parquet", "--json"
    )["models"]
    assert levels[1]["perplexity"]["value"] < levels[0]["perplexity"]["value"]
    once = (folder / "R.ngram").read_bytes()
    fedgram(*base, "--counts", folder / "c.counts", "-o", folder / "R.ngram", "--max-ngrams", 8000)
    assert (folder / "R.ngram").read_bytes() == once
    plain = fedgram(*base, "--no-pairs", "--grow", 0, "--clip", 50, "--norm", 20, "-o", folder / "P.arpa")
    assert plain["ngrams"] <= read_model(folder / "A.ngram").topology.arcs
    assert plain["words_counted"] <= 50 * plain["reports"][0]
    counted = {}
    for norm in ("inf", 1000, 2):
        made = fedgram(*base, "--no-pairs", "--grow", 0, "--norm", norm, "--outliers", 0, "-o", folder / "P.arpa")
        counted[norm] = made["words_counted"]
    assert counted["inf"] == counted[1000] > 2 * counted[2] > 0


def test_options_of_noise_need_noise(folder: Path, refused: Callable[..., str]) -> None:
    base = ["federated", "refit", folder / "A.ngram", "--users", folder / "users.parquet", "-o", folder / "R.ngram"]
    needs = "--protection dp; without it no noise is added"
    assert refused(*base, "--epsilon", 3.42, "--delta", 1e-6) == f"--epsilon and --delta need {needs}"
    assert refused(*base, "--noise-seed", 1, "--protection", "none") == f"--noise-seed needs {needs}"
    assert refused(*base, "--ledger", folder / "l.json") == f"--ledger needs {needs}"
    budget = "--budget-epsilon", 4, "--budget-delta", 1e-6
    assert refused(*base, *budget, "--simulated", 9) == (
        f"--simulated, --budget-epsilon and --budget-delta need {needs}"
    )
    assert "--min-devices needs --protection threshold" in refused(*base, "--protection", "dp", "--min-devices", 9)
    assert not (folder / "l.json").exists()
    users = folder / "users.parquet"
    train = ["federated", "train", "--users", users, "--unigrams", "U.unigrams", "-o", folder / "R.safetensors"]
    multiplier = refused(*train, "--noise-multiplier", 1)
    assert multiplier == "--noise-multiplier needs --noise poisson or blt; without it no noise is added"
    apart = refused(*train, "--noise", "poisson", "--min-separation", 3)
    assert apart.startswith("--min-separation needs --noise blt")
    assert "--ledger needs --noise poisson or blt" in refused(*train, "--ledger", folder / "l.json")
    words = ["federated", "unigrams", "collect", "--users", users, "--whitelist", "w.txt", "-o", folder / "U.unigrams"]
    assert refused(*words, "--epsilon", 1) == f"--epsilon needs {needs}"
    assert refused(*words, "--norm", 9) == f"--norm needs {needs}"
    public = refused(*base, "--protection", "dp", "--public", folder / "A.ngram")
    assert public == "--public needs --protection threshold; without it no n-gram has to be public"
    measure = ["federated", "evaluate", folder / "A.ngram", "--users", users]
    assert refused(*measure, "--delta", 1e-6) == "--delta needs --epsilon; without it no noise is added"
    trial = [
        "federation",
        "experiment",
        folder / "fed",
        "--control",
        folder / "a.fgram",
        "--treatment",
        folder / "b.fgram",
    ]
    assert refused(*trial, "--delta", 1e-6) == "--delta needs --epsilon; without it no noise is added"


def test_noise_is_named_and_what_it_hides(folder: Path, fedgram: Command, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    base = ["federated", "refit", folder / "A.ngram", "--users", folder / "users.parquet", "--protection", "dp"]
    base += ["--noise-seed", 1, "--delta", 1e-6, "--grow", 0, "-o", folder / "R.ngram"]
    assert run([str(word) for word in [*base, "--epsilon", 0.5]]) == 0
    out, err = capsys.readouterr()
    assert "words counted, with noise" in out
    assert "warning: the noise hides what devices counted (its standard deviation is" in err
    many = [*base, "--epsilon", 8, "--simulated", 100_000_000, "--ledger", folder / "privacy.json", "--json"]
    assert run([str(word) for word in many]) == 0
    out, err = capsys.readouterr()
    assert "hides" not in err
    assert json.loads(out)["words_counted"] > 0
    assert fedgram("privacy", "ledger", folder / "privacy.json", "--json")["delta"] == 1e-6


def test_refusals(folder: Path, fedgram: Command, refused: Callable[..., str]) -> None:
    base = ["federated", "refit", folder / "A.ngram", "--users", folder / "users.parquet", "-o", folder / "R.ngram"]
    assert "must be a number at least 1" in refused(*base, "--clip", 0)
    assert "at least 1" in refused(*base, "--clip", 0.5)
    assert "must be a number above 0" in refused(*base, "--norm", 0)
    assert "norm must be finite with protection dp" in refused(*base, "--norm", "inf", "--protection", "dp")
    fedgram(*base, "--counts", folder / "c.counts", "--grow", 0, "--no-pairs")
    fedgram("ngram", "prune", folder / "A.ngram", "--max-ngrams", 3000, "-o", folder / "B.ngram")
    line = refused("federated", "refit", folder / "B.ngram", *base[3:], "--counts", folder / "c.counts")
    assert "other settings: grow, model, pairs" in line
    assert "other settings: grow, pairs, seed" in refused(*base, "--counts", folder / "c.counts", "--seed", 8)
    others = [*base[:4], folder / "others.parquet", *base[5:]]
    assert "other settings: users" in refused(*others, "--counts", folder / "c.counts", "--grow", 0, "--no-pairs")
    (folder / "c.counts").write_bytes(b"nothing")
    assert "damaged" in refused(*base, "--counts", folder / "c.counts")
    (folder / "cased.txt").write_text("The end\n")
    fedgram("ngram", "train", folder / "cased.txt", "-o", folder / "cased.arpa")
    fedgram("federated", "refit", folder / "cased.arpa", *base[3:])
    assert "The" in read_model(folder / "R.ngram").vocabulary
