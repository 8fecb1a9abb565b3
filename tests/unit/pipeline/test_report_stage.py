"""The report of a run, from what its stages wrote: warnings, Table 2, Figure 4, and what was measured how often."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgram.pipeline import report_stage
from fedgram.pipeline.config import PaperWaySection, PopulationSection, RefitSection, RunConfig
from fedgram.pipeline.report_facts import about, measured, privacy, ways
from fedgram.pipeline.report_stage import report, report_files
from fedgram.pipeline.workspace import Work
from fedgram.report.figures import draw_likelihood

Told = dict[str, dict[str, Any]]


def network(preset: str, *values: float) -> dict[str, Any]:
    dev = [{"round": 10 * (i + 1), "sll_e": value} for i, value in enumerate(values)]
    return {
        "preset": preset, "parameters": 1000, "before": {"round": 0, "sll_e": -60.0}, "dev": dev, "best_round": 10,
        "loss": [1.0], "reports": 50,
    }  # fmt: skip


def levels(top1: float, change: tuple[float, float, float] | None = None) -> dict[str, Any]:
    level = {"top1": {"value": top1, "ci95": [top1 - 1, top1 + 1]}}
    if change is None:
        return level
    low, value, high = change
    return {**level, "change": {"top1": {"value": value, "ci95": [low, high]}}}


@pytest.fixture
def told() -> Told:
    models = {"Baseline": levels(10.0), "Final model": levels(10.5, (-1.0, 5.0, 11.0)), "Pooled text": levels(20.0)}
    found = {"baseline": "Baseline", "final": "Final model", "shared_words": 9, "outside": 2.5, "models": models}
    pruned = {"rule": "expected frequencies", "dev_top1": {}}
    people = {"train_users": 9, "dev_users": 8, "test_users": 7, "sentences": 6, "words": 5}
    return {
        "population": people,
        "unigrams": {"clip": 1000.0, "rounds": 3, "reports": 60, "words": 40, "whitelist": 50},
        "R_W": network("W_30K", -50.0, -40.0), "R_P": network("P_4K-L", -45.0, -48.0),
        "baselines": {
            "Baseline": {**pruned, "rule": "not pruned"}, "Pooled text": pruned,
            "Pooled + supplement": {**pruned, "share": 0.2},
        },
        "final": {
            "chosen": "Refit", "cased": False, "baseline_is_best": False, "dev_top1": {"Refit": 11.0, "Baseline": 9.5}
        },
        "package": {"bytes": 1000, "ngrams": 10, "words": 4},
        "evaluation": {
            "split": "test", "measured": 1, "users": 7, "words": 99, "sizes": [], "examples": [], "uncased": found,
            "cased": found,
        },
        "architecture_P_4K-S": network("P_4K-S", -52.0), "architecture_P_30K": network("P_30K", -49.0),
    }  # fmt: skip


CONFIG = replace(
    RunConfig(), refit=RefitSection(run=False),
    population=PopulationSection(users="here/u.parquet", supplement="s.txt", whitelist="w.txt"),
)  # fmt: skip
STAGES: dict[str, Any] = {
    "population": {
        "seconds": 1.0, "peak_bytes": 5, "inputs": {"users": "aa", "supplement": "bb", "whitelist": "cc"},
        "files": {"users.population": {"sha256": "dd"}},
    },
    "train_words": {
        "seconds": 2.0, "peak_bytes": 5, "inputs": {"network": "ee"}, "files": {"R_W.safetensors": {"sha256": "ff"}}
    },
}  # fmt: skip


def reported(folder: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results, and what was drawn as Figure 4."""
    paths = {f"{name}.json": folder / f"{name}.json" for name in told}
    for name, path in paths.items():
        path.write_text(json.dumps(told[name.removesuffix(".json")]))
    drawn: dict[str, Any] = {}

    def drawing(curves: dict[str, Any], path: Path, *, chosen: list[str], dark: bool) -> Path:
        drawn.update({"curves": curves, "chosen": chosen})
        return draw_likelihood(curves, path, chosen=chosen, dark=dark)

    monkeypatch.setattr(report_stage, "draw_likelihood", drawing)
    report(Work(None, folder, paths), CONFIG, timings=lambda: STAGES)
    for name in report_files(CONFIG, tuple(paths)):
        if "tail-words" not in name and "convergence" not in name:  # no unigrams were collected here
            assert (folder / name).is_file()
    results: dict[str, Any] = json.loads((folder / "report" / "results.json").read_text())
    return results, drawn


def test_figure_4_has_all_networks_that_were_trained(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, drawn = reported(tmp_path, told, monkeypatch)
    assert list(drawn["curves"]) == ["R_W (W_30K)", "R_P (P_4K-L)", "P_4K-S", "P_30K"]
    assert drawn["curves"]["R_P (P_4K-L)"] == [(0, -60.0), (10, -45.0), (20, -48.0)]
    assert drawn["chosen"] == ["R_W (W_30K)", "R_P (P_4K-L)"]
    assert any(
        "solid lines are the networks of this run's models" in figure["caption"] for figure in results["figures"]
    )
    del told["architecture_P_4K-S"], told["architecture_P_30K"]
    (tmp_path / "again").mkdir()
    _, drawn = reported(tmp_path / "again", told, monkeypatch)
    assert list(drawn["curves"]) == ["R_W (W_30K)", "R_P (P_4K-L)"]


def test_files_are_named_by_their_digests(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, _ = reported(tmp_path, told, monkeypatch)
    files = {"u.parquet": "aa", "s.txt": "bb", "w.txt": "cc", "users.population": "dd", "R_W.safetensors": "ff"}
    assert results["files"] == files
    text = (tmp_path / "report" / "report.md").read_text()
    assert "".join(f"{digest}  {name}\n" for name, digest in files.items()) in text


def test_curves_of_other_networks_alone_need_a_figure() -> None:
    given = replace(
        CONFIG, words=replace(CONFIG.words, network="w"), pieces=replace(CONFIG.pieces, network="p", model="m")
    )
    assert "report/likelihood.png" not in report_files(given, ("R_W.json",))
    assert "report/likelihood.png" in report_files(given, ("architecture_P_30K.json",))


def test_table_2_has_the_seven_networks(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, _ = reported(tmp_path, told, monkeypatch)
    sll_e = {row["preset"]: row["sll_e"] for row in results["architectures"]}
    assert list(sll_e) == ["W_30K", "P_4K-S", "P_4K-L", "P_4K-G", "P_16K-S", "P_16K-L", "P_30K"]
    assert sll_e == {
        "W_30K": -40.0, "P_4K-S": -52.0, "P_4K-L": -45.0, "P_4K-G": None, "P_16K-S": None, "P_16K-L": None,
        "P_30K": -49.0,
    }  # fmt: skip
    trained = {row["preset"]: row["trained_parameters"] for row in results["architectures"]}
    assert trained == {preset: None if value is None else 0.001 for preset, value in sll_e.items()}
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| P\\_4K-G | 2 | 1,080 | 280 | 1.12M | 1.12M | 2.73M | 2.71M | – |" in text


def test_a_final_model_that_is_not_better_is_said_at_the_top(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported(tmp_path, told, monkeypatch)
    text = (tmp_path / "report" / "report.md").read_text()
    warning = (
        "not significantly better than the baseline on 7 test users: top-1 changes by +5.00 % (95 % interval -1.00"
    )
    assert text.index(warning) < text.index("## How it was made")


def test_how_often_test_users_were_measured(told: Told) -> None:
    once = "test users were measured once by the stage evaluation, after all choices were made on dev users"
    assert measured(told) == once
    told["clipping"] = {"measured": 1}
    assert "once by the stage evaluation and once by the stage clipping, after all choices" in measured(told)
    told["clipping"]["measured"] = 2
    assert "and 2 times by the stage clipping in this workspace; a choice made after the first time may" in measured(
        told
    )
    told["evaluation"] |= {"split": "dev", "measured": 3}
    assert "dev users were measured 3 times" in measured(told)
    assert "too favourable" in measured(told)


def test_the_report_names_the_pruning_rules(told: Told) -> None:
    facts = about(CONFIG, told)
    assert "Baseline: was within the limit; Pooled text: expected frequencies" in facts["pruning of the baselines"]
    assert "closes 5 % of the gap" in facts["pooled-text upper bound"]
    assert "the baseline has 9.50 %" in facts["final model"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, "at most 20,000 words per pass, scaled to a norm of at most 300; 7 devices"),
     ({"clip": math.inf, "norm": 12.5}, "proposes, scaled to a norm of at most 12.5; 7 devices"),
     ({"clip": 40.0, "norm": math.inf}, "proposes, at most 40 words per pass; 7 devices"),
     ({"clip": math.inf, "norm": math.inf}, "proposes, without limits; 7 devices")],
)  # fmt: skip
def test_the_limits_on_counts_are_named(told: Told, limits: dict[str, float], expected: str) -> None:
    config = replace(CONFIG, refit=RefitSection(**limits))  # type: ignore[arg-type]
    passes = {"refit": {"passes": [{"reports": 7}]}}
    assert expected in privacy(config, {**told, **passes})["refit"]


def test_the_ways_are_described_as_they_were() -> None:
    first = replace(CONFIG, distillation=replace(CONFIG.distillation, uncased_first=True))
    assert "without capitals" in ways(first)["ours"]
    assert "CapSampleApprox" in ways(CONFIG)["ours"]
    assert "as printed" in ways(CONFIG)["paper"]
    assert "paper" not in ways(replace(CONFIG, paper_way=PaperWaySection(run=False)))


def test_a_run_without_users_says_what_devices_measured(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("R_W", "R_P", "final", "evaluation"):
        told[name]["measured_on"] = "devices"
    told["population"] = {"whitelist": 5}
    told["R_P"] |= {"dev": [], "best_round": 1}
    del told["R_P"]["before"], told["baselines"]["Pooled text"], told["baselines"]["Pooled + supplement"]
    del told["architecture_P_4K-S"], told["architecture_P_30K"]
    config = replace(CONFIG, population=PopulationSection(supplement="s.txt", whitelist="w.txt")).without_users()
    monkeypatch.setattr(sys.modules[__name__], "CONFIG", config)
    results, drawn = reported(tmp_path, told, monkeypatch)
    facts = results["about"]
    assert facts["users"].startswith("none at the server")
    assert facts["measured on devices"].startswith("SLL^e of R_W during training, the choice of the final model")
    assert facts["evaluated on"] == "7 devices of the test arm, 99 typed words"
    assert facts["held-out devices"].endswith("after all choices were made on dev devices")
    assert "the weights of the last one; not scored" in facts["network R_P"]
    assert "Table 1" in facts["not measured"]
    assert drawn["chosen"] == ["R_W (W_30K)"]
    assert "never count or train" in results["privacy"]["dev and test arms"]
    assert "on 7 test devices" in results["warnings"][0]
