"""The stages of a run: the paper from devices to a report, in order, each with what it needs."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from fedgram.core.errors import FedgramError
from fedgram.pipeline.config import ArchitecturesSection, PopulationSection, RunConfig
from fedgram.pipeline.run import plan_pipeline, run_pipeline
from fedgram.pipeline.stages import known_words, run_stages, stage_names
from fedgram.pipeline.workspace import Stage, Work

PAPER = [
    "population", "unigrams", "external", "pretrain_words", "train_words", "pieces", "pretrain_pieces", "train_pieces",
    "distill_words", "distill_pieces", "refit", "baselines", "final", "pack", "paper_words", "paper_pieces",
    "evaluation", "clipping", "report",
]  # fmt: skip


def test_all_stages_in_order() -> None:
    stages = run_stages(RunConfig())
    assert [stage.name for stage in stages] == PAPER
    made: set[str] = set()
    for stage in stages:
        assert set(stage.inputs) <= made, stage.name
        made |= set(stage.outputs)
    assert {"lm.fgram", "lm.arpa", "report/report.html", "paper/A_W_r.ngram", "clipping.json"} <= made
    assert {stage.name for stage in stages if stage.measures == "test"} == {"evaluation", "clipping"}


def test_parts_can_be_left_out() -> None:
    c = RunConfig()
    few = replace(
        c, pieces=replace(c.pieces, use=False), refit=replace(c.refit, run=False),
        clipping=replace(c.clipping, run=False), paper_way=replace(c.paper_way, run=False),
    )  # fmt: skip
    left_out = {"pieces", "pretrain_pieces", "train_pieces", "distill_pieces", "refit", "clipping", "paper_words"}
    assert stage_names(few) == [name for name in PAPER if name not in left_out | {"paper_pieces"}]
    assert stage_names(c, "pieces") == PAPER[:6]
    with pytest.raises(FedgramError, match="there is no stage 'end'"):
        stage_names(c, "end")


def test_the_other_networks_of_figure_4_tell_the_report() -> None:
    c = replace(RunConfig(), architectures=ArchitecturesSection(run=True))
    stages = {stage.name: stage for stage in run_stages(c)}
    for preset in c.architectures.presets:
        assert stages[f"architecture_{preset}"].outputs == (f"architecture_{preset}.json",)
        assert f"architecture_{preset}.json" in stages["report"].inputs
    assert "report/likelihood.png" in stages["report"].outputs


def test_a_network_of_figure_4_that_is_named_twice_is_trained_once() -> None:
    c = replace(RunConfig(), architectures=ArchitecturesSection(run=True, presets=("P_30K", "P_4K-S", "P_30K")))
    stages = run_stages(c)
    names = [stage.name for stage in stages if stage.name.startswith("architecture_")]
    assert names == ["architecture_P_30K", "architecture_P_4K-S"]
    assert [name for name in stages[-1].inputs if "P_30K" in name] == ["architecture_P_30K.json"]


def test_all_networks_are_scored_on_the_words_of_the_network_of_words() -> None:
    c = RunConfig()
    assert known_words(c) == 30_000
    demo = replace(c, words=replace(c.words, preset="W_demo"))
    assert known_words(demo) == 4_000
    starts = {s.name: s.config for s in run_stages(demo) if s.name.startswith("pretrain_")}
    assert [config[1] for config in starts.values()] == [4_000, 4_000]


def test_the_final_model_competes_with_the_baseline() -> None:
    stages = {stage.name: stage for stage in run_stages(RunConfig())}
    assert "baseline.ngram" in stages["final"].inputs
    assert not any(name.startswith("paper/") for name in stages["final"].inputs)


def test_without_users_no_stage_reads_or_writes_their_text(tmp_path: Path) -> None:
    text = PopulationSection(supplement="s.txt", whitelist="w.txt")
    stages = run_stages(replace(RunConfig(), population=text))
    assert [stage.name for stage in stages] == PAPER
    for stage in stages:
        assert not {"users.population", "pooled.ngram"} & {*stage.inputs, *stage.outputs}
    for run in (run_pipeline, plan_pipeline):
        with pytest.raises(FedgramError, match=r"population\.users is missing.*fedgram federation run"):
            run(replace(RunConfig(), population=text), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_an_experiment_has_users_enough_before_anything_takes_long(
    tmp_path: Path, split: Literal["dev", "test"]
) -> None:
    """Four users of the split that is evaluated are enough, three are not, however many the other one has."""
    evaluation = replace(RunConfig().evaluation, split=split, experiment=True)
    for name, users, experiment in (("enough", 4, True), ("too few", 3, True), ("no experiment", 3, False)):
        config = replace(RunConfig(), evaluation=replace(evaluation, experiment=experiment))
        folder, ran = tmp_path / name, list[str]()
        if name == "too few":
            with pytest.raises(FedgramError, match=f"at least 4 users, and the split {split} has 3; add users"):
                run_pipeline(config, folder, change=partial(only_users, {"dev": 99, "test": 99, split: users}, ran))
            assert ran == ["population"]
        else:
            run_pipeline(config, folder, change=partial(only_users, {"dev": 0, "test": 0, split: users}, ran))
            assert ran == ["population", "unigrams"]


def only_users(users: Mapping[str, int], ran: list[str], stages: list[Stage]) -> list[Stage]:
    """A population of so many users by split, and the stage after it; `ran` is told what runs."""

    def population(work: Work) -> None:
        ran.append("population")
        work.write("population.json").write_text(json.dumps({f"{split}_users": n for split, n in users.items()}))

    def unigrams(work: Work) -> None:
        ran.append("unigrams")
        work.write("counts").touch()

    assert [stage.name for stage in stages[:2]] == ["population", "unigrams"]
    return [
        Stage("population", ("population.json",), population),
        Stage("unigrams", ("counts",), unigrams, inputs=("population.json",)),
    ]
