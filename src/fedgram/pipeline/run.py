"""One run in a workspace: the stages that its configuration asks for, of which only those run that must."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.processes import Processes
from fedgram.core.progress import Begin, silent
from fedgram.core.storage import atomic_write
from fedgram.core.toml_config import from_table, to_toml
from fedgram.evaluate.experiment import LEAST_USERS
from fedgram.neural.torch_devices import choose_torch_device
from fedgram.pipeline.config import EvaluationSection, RunConfig, read_run_config
from fedgram.pipeline.stage_processes import CONFIG, StageProcesses, stages_of
from fedgram.pipeline.stages import run_stages, stage_names
from fedgram.pipeline.workspace import Planned, Stage, Work, Workspace, open_workspace

Change = Callable[[list[Stage]], list[Stage]]


def run_pipeline(
    config: RunConfig,
    folder: str | Path,
    *,
    compute: Compute | None = None,
    until: str | None = None,
    change: Change | None = None,
    stages_at_once: int = 1,
    on_stage: Callable[[Stage, str | None], object] = lambda *_: None,
    on_done: Callable[[Stage, float], object] = lambda *_: None,
    begin: Begin = silent,
) -> Workspace:
    """Run the stages of a configuration that are not done yet.

    Results from elsewhere can be used: `unigrams.counts`, `words.network` and `pieces.network` of the configuration
    name files, and the stages after them start from there.

    Args:
        config: The configuration.
        folder: The workspace. An interrupted run resumes; after a change, only the affected stages run again.
        compute: Where networks run, and how many cores are used.
        until: The name of the last stage to run.
        change: Puts other functions into stages, such as those that ask real devices.
        stages_at_once: With more than 1, each stage has a process of its own, and so many may run at the same time.
        on_stage: Called for every stage, with the reason why it runs, None if it is done.
        on_done: Called when a stage has run, with its seconds.
        begin: Progress callback.
    """
    _check_users(config, change)
    if change is not None and stages_at_once > 1:
        raise FedgramError("stages that ask devices run one after the other; leave out stages_at_once")
    if stages_at_once > 1:
        _check_file_of(config)
    compute = compute or Compute()
    on_gpu = choose_torch_device(compute.torch_device).type == "cuda"
    compute = Compute("cuda" if on_gpu else "cpu", compute.cores)
    with open_workspace(folder) as space:
        with atomic_write(space.folder / CONFIG) as file:
            file.write(to_toml(config).encode())

        def told(stage: Stage, reason: str | None) -> None:
            if stage.name == "unigrams" and experiments:  # right after the population, before anything takes long
                _check_arms(space.folder / "population.json", config.evaluation)
            on_stage(stage, reason)

        experiments = (
            not config.population.is_on_devices
            and config.evaluation.experiment
            and "evaluation" in stage_names(config, until)
        )
        stages = stages_of(space.folder, compute, config)
        stages = change(stages) if change else stages
        telling: dict[str, Any] = {"until": until, "on_stage": told, "on_done": on_done, "begin": begin}
        if stages_at_once == 1:
            space.run(stages, **telling)
        else:
            with Processes(stages_at_once) as processes:
                runner = StageProcesses(processes, stages_at_once, space.folder, compute)
                space.run(stages, runner=runner, **telling)
        return space


def _check_users(config: RunConfig, change: Change | None) -> None:
    """Refuse a run without users that is not on a federation."""
    if config.population.is_on_devices and change is None:
        remedy = "name them, run on devices (fedgram federation run), or use public text alone (fedgram phone build)"
        raise FedgramError(f"population.users is missing, so there are no devices to simulate; {remedy}")


def _check_file_of(config: RunConfig) -> None:
    """Refuse a configuration that is not the same in its file, from which stages at the same time take it."""
    kept = from_table(tomllib.loads(to_toml(config)), RunConfig)
    if lost := [field.name for field in fields(config) if getattr(kept, field.name) != getattr(config, field.name)]:
        raise FedgramError(
            f"{CONFIG} cannot hold the values of {lost[0]}, because TOML has no None; leave out stages_at_once"
        )


def _check_arms(population: Path, config: EvaluationSection) -> None:
    """Refuse an experiment that has too few users."""
    users = json.loads(population.read_text("utf-8"))[f"{config.split}_users"]
    if users < LEAST_USERS:
        raise FedgramError(
            f"an experiment needs at least {LEAST_USERS} users, and the split {config.split} has {users}; "
            "add users, or set evaluation.experiment = false"
        )


def report_workspace(folder: Path) -> None:
    """Write the report of a run whose other stages are done, perhaps on a machine without matplotlib.

    It needs `run.toml`, `manifest.json` and what the stages told (their JSON files), and no text or model.
    """
    stages = stages_of(folder)
    inputs = {name: folder / name for name in stages[-1].inputs}
    for path in inputs.values():
        if not path.is_file():
            raise InputError(path, "is missing, so there is no report", remedy="finish the run: fedgram run")
    stages[-1].function(Work(None, folder, inputs))


def plan_pipeline(
    config: RunConfig, folder: str | Path, *, until: str | None = None,
    change: Change | None = None,
) -> list[Planned]:  # fmt: skip
    """What a run would do; nothing is written."""
    _check_users(config, change)
    stages = run_stages(config)
    return Workspace(Path(folder)).plan(change(stages) if change else stages, until=until)


def run(config: RunConfig | str | Path, workspace: str | Path, *, until: str | None = None) -> dict[str, Any]:
    """Make a keyboard model from users' text: all stages of a run.

    Args:
        config: A configuration, its file, or the name of a preset: `demo`, `en_us`, `pt_br`.
        workspace: The folder of the run's files, such as `lm.fgram` and `report/report.html`.
        until: The name of the last stage to run.

    Returns:
        The evaluation of all models, if the run got that far.
    """
    chosen = config if isinstance(config, RunConfig) else read_run_config(config)
    space = run_pipeline(chosen, workspace, until=until)
    found = space.folder / "evaluation.json"
    result: dict[str, Any] = json.loads(found.read_text("utf-8")) if found.exists() else {}
    return result
