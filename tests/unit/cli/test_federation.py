"""What `fedgram federation run --dry-run` says of stages that wait for devices."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedgram.cli.main import cli, run
from fedgram.deployment.folder import FederationConfig, make_folder

ASKING = ["unigrams", "train_words", "train_pieces", "refit"]


def dry_run(folder: Path, *options: str) -> str:
    federation = folder / "fed"
    if not federation.exists():
        make_folder(federation, FederationConfig(tls=False, masked_with=0))
    given = ["run", str(federation), "demo", "-w", str(folder / "run"), "--dry-run", *options]
    result = CliRunner().invoke(cli, ["federation", *given], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_stages_that_wait_for_devices_have_no_estimate(tmp_path: Path) -> None:
    *rows, total, waiting = dry_run(tmp_path).splitlines()
    times = {row.split()[0]: row[16:35].strip() for row in rows}
    assert all(times[name] == "–" for name in ASKING)
    assert times["pretrain_words"].startswith("about")
    assert waiting == f"without an estimate, because they wait for devices: {', '.join(ASKING)}"
    stages: list[dict[str, Any]] = json.loads(dry_run(tmp_path, "--json"))["stages"]
    assert {stage["stage"]: stage["estimate"] for stage in stages}["train_words"] is None
    summed = sum(stage["estimate"] or 0 for stage in stages)
    assert total.split()[:5] == ["in", "all", "about", f"{summed:.0f}", "s"]
    assert not (tmp_path / "run").exists()


def test_stages_that_are_not_to_run_wait_for_nobody(tmp_path: Path) -> None:
    assert dry_run(tmp_path, "--until", "unigrams").endswith(" wait for devices: unigrams\n")
    assert "wait for devices" not in dry_run(tmp_path, "--until", "population")


def test_a_stage_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "fed", FederationConfig(tls=False, masked_with=0))
    given = ["federation", "run", str(tmp_path / "fed"), "demo", "-w", str(tmp_path / "run"), "--dry-run"]
    assert run([*given, "--until", "last"]) != 0
    assert "there is no stage 'last'" in capsys.readouterr().err
