"""`fedgram privacy`: published conversions, plans of each mechanism, what is refused, and the ledger of trainings."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedgram.cli.main import run
from fedgram.privacy.accounting import compose, event_from_json
from fedgram.privacy.ledger import Ledger

pytest.importorskip("dp_accounting")
POISSON = "privacy plan --population 100000 --cohort 500 --rounds 50 --noise 1.2 --delta 1e-8"


def told(words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run([*words.split(), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("zcdp", "epsilon"), [(0.1506840301548885, 3.4240074), (0.014342572340349278, 0.9935501)])
def test_published_zcdp_is_converted(zcdp: float, epsilon: float, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(f"privacy plan --zcdp {zcdp} --delta 1e-10", capsys)
    assert found["epsilon"] == pytest.approx(epsilon, abs=1e-6)
    again = told(f"privacy plan --mechanism gaussian --noise {found['noise']!r} --delta 1e-10", capsys)
    assert (again["epsilon"], again["zcdp"]) == pytest.approx((epsilon, zcdp), abs=1e-6)


@pytest.mark.parametrize(
    ("apart", "most", "sens", "loss"), [(400, 5, 4.599, 9.48), (1000, 2, 2.714, 5.23), (2000, 1, 1.863, 3.50)]
)
def test_the_table_of_correlated_noise(
    apart: int, most: int, sens: float, loss: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its matrices have other sensitivities; what counts is their product with the error."""
    words = f"privacy plan --mechanism blt --rounds 2000 --min-separation {apart} --noise 8 --delta 1e-10"
    found = told(words, capsys)
    assert found["participations"] == most
    assert found["max_loss"] == pytest.approx(found["sensitivity"] * found["error"])
    assert found["max_loss"] <= loss + 0.005
    assert found["sensitivity"] == pytest.approx(sens, rel=0.05)
    assert found["zcdp"] == pytest.approx(0.5 * (found["sensitivity"] / 8) ** 2)
    server, shares = found["trust_models"]
    assert server["last_sum"] == pytest.approx(8 * found["error"])
    assert shares["last_sum"] > 5 * server["last_sum"]


def test_population_and_cohort_mean_poisson_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(POISSON, capsys)
    assert (found["mechanism"], found["sampling_probability"], found["zcdp"]) == ("poisson", 0.005, None)
    named = told(
        "privacy plan --mechanism poisson --population 100000 --cohort 500 --rounds 50 --noise 1.2 --delta 1e-8", capsys
    )
    assert named == found
    back = told(
        f"privacy plan --population 100000 --cohort 500 --rounds 50 --epsilon {found['epsilon']!r} --delta 1e-8", capsys
    )
    assert back["noise"] == pytest.approx(1.2, rel=1e-3)
    assert run(POISSON.split()) == 0
    text = capsys.readouterr().out
    assert "honest server" in text
    assert "device shares" in text
    assert "not known for Poisson sampling" in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--delta 1e-8", "give one of --noise, --epsilon and --zcdp"),
        ("--noise 1 --epsilon 1 --delta 1e-8", "give one of"),
        ("--mechanism poisson --noise 1 --delta 1e-8", "needs the sizes of the population"),
        ("--mechanism blt --zcdp 1 --delta 1e-8", "Gaussian events only"),
        ("--population 5 --cohort 6 --noise 1 --delta 1e-8", "does not fit"),
        ("--noise 0 --delta 1e-8", "--noise"),
        ("--noise 1 --delta 1", "--delta"),
        ("--noise 1", "--delta"),
    ],
)
def test_plans_that_cannot_be_are_refused_in_one_line(
    words: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["privacy", "plan", *words.split()]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("private")
    for line in (
        "data synthesize --users 80 -o users.parquet --supplement supplement.txt --sentences 300 --whitelist words.txt",
        "federated unigrams collect --users users.parquet --whitelist words.txt --devices-per-round 20 -o U.unigrams",
    ):
        command = [sys.executable, "-m", "fedgram", *line.split()]
        subprocess.run(command, cwd=home, check=True, capture_output=True)
    return home


def test_trainings_share_a_ledger_and_its_budget(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    words = (
        "federated train --users users.parquet --unigrams U.unigrams --preset W_demo --rounds 3 --dev-users 0 "
        f"--devices-per-round 8 --weighting uniform --workers 1 --ledger {tmp_path}/privacy.json "
        "--budget-epsilon 4 --budget-delta 1e-6"
    )
    first = told(f"{words} --noise blt --noise-multiplier 4 --simulated 100000 -o {tmp_path}/a.safetensors", capsys)
    assert first["simulated"]
    assert first["real_epsilon"] > 1000
    assert "loss" not in first
    second = told(f"{words} --noise poisson --noise-multiplier 3 -o {tmp_path}/b.safetensors", capsys)
    assert first["epsilon"] < second["epsilon"] <= 4
    ledger = told(f"privacy ledger {tmp_path}/privacy.json", capsys)
    assert ledger["epsilon"] == pytest.approx(second["epsilon"])
    assert [row["spent"] for row in ledger["operations"]] == [3, 3]
    assert all("cryptographic" in row["generator"] for row in ledger["operations"])
    entries = [entry["event"] for entry in json.loads((tmp_path / "privacy.json").read_text())["entries"]]
    assert compose(map(event_from_json, entries), 1e-6).epsilon == pytest.approx(second["epsilon"])
    assert run(f"{words} --noise poisson --noise-multiplier 0.4 -o {tmp_path}/c.safetensors".split()) == 2
    assert "training would exceed the privacy budget" in capsys.readouterr().err
    assert not (tmp_path / "c.safetensors").exists()
    assert len(Ledger.open(tmp_path / "privacy.json").entries) == 2
    assert run(["privacy", "ledger", f"{tmp_path}/privacy.json"]) == 0
    assert "training (2)" in capsys.readouterr().out
    for wrong in (f"{tmp_path}/none.json", str(home / "words.txt")):
        assert run(["privacy", "ledger", wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
