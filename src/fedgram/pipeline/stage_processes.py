"""Stages in processes of their own: those that need nothing of each other run side by side.

A GPU waits while n-gram models are fitted and measured on the processor, and most processor cores wait while a network
trains. Side by side, a run takes about as long as its longest chain of stages. Every stage is a function of its files,
so the results are the same.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedgram.core.compute import Compute
from fedgram.core.processes import Processes
from fedgram.core.sources import check_code, code_digest
from fedgram.core.toml_config import read_config
from fedgram.pipeline.config import RunConfig
from fedgram.pipeline.stages import run_stages
from fedgram.pipeline.workspace import Stage, Work, Workspace, peak_bytes

CONFIG = "run.toml"


class StageProcesses:
    """A `Runner` with a process for each stage."""

    def __init__(self, processes: Processes, at_once: int, workspace: Path, compute: Compute) -> None:
        self.at_once = at_once
        self._processes, self._workspace, self._compute = processes, workspace, compute

    def call(self, stage: Stage, work: Work) -> "Future[int]":
        """Start the stage; no progress is shown of it."""
        inputs = {name: str(path) for name, path in work.inputs.items()}
        return self._processes.submit(".pipeline.stage_processes:run_stage", {
            "workspace": str(self._workspace), "name": stage.name, "folder": str(work.folder), "inputs": inputs,
            "measured": work.measured, "compute": asdict(self._compute), "code": code_digest(stage.function),
        })  # fmt: skip


def run_stage(
    workspace: str, name: str, folder: str, inputs: Mapping[str, str], measured: int, compute: Mapping[str, Any],
    code: str | None,
) -> int:  # fmt: skip
    """Call the function of one stage, if its code is still `code`; returns the most memory that it had, in bytes."""
    stages = {stage.name: stage for stage in stages_of(Path(workspace), Compute(**compute))}
    check_code(stages[name].function, code)
    paths = {name: Path(path) for name, path in inputs.items()}
    stages[name].function(Work(None, Path(folder), paths, measured=measured))
    return peak_bytes()


def stages_of(workspace: Path, compute: Compute | None = None, config: RunConfig | None = None) -> list[Stage]:
    """The stages of a workspace; the report tells what the manifest has by then.

    The configuration is read from the workspace, unless `config` is given.
    """

    def timings() -> dict[str, Mapping[str, Any]]:
        noted = Workspace(workspace).artefacts
        return {stage.name: noted[stage.name] for stage in stages if stage.name in noted}

    config = read_config(workspace / CONFIG, RunConfig) if config is None else config
    stages = run_stages(config, compute=compute, timings=timings)
    return stages
