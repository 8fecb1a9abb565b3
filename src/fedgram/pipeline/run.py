"""One run in a workspace: the stages that its configuration asks for, of which only those run that must."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.evaluate.experiment import LEAST_USERS
from fedgram.neural.torch_devices import choose_device
from fedgram.pipeline.config import EvaluationConfig, RunConfig
from fedgram.pipeline.stages import run_stages, stage_names
from fedgram.pipeline.strict_toml import to_toml
from fedgram.pipeline.workspace import Advance, Planned, Stage, Workspace, open_workspace

CONFIG = "run.toml"


def run_pipeline(
    config: RunConfig,
    folder: str | Path,
    *,
    device: str = "auto",
    workers: int = 1,
    until: str | None = None,
    change: Callable[[list[Stage]], list[Stage]] = lambda stages: stages,
    on_stage: Callable[[Stage, str | None], object] = lambda *_: None,
    begin: Callable[[str, int | None], Advance] = lambda *_: lambda _: None,
) -> Workspace:
    """Run what is not there yet, up to the stage `until`; `on_stage` and `begin` are told of progress.

    What the paper's devices send may come from elsewhere: `unigrams.counts`, `words.network` and `pieces.network` of
    the configuration name files, and the stages after them go on from there. `change` may put other functions into
    stages, such as those that ask real devices.
    """
    place = str(choose_device(device))
    with open_workspace(folder) as space:
        with atomic_write(space.folder / CONFIG) as file:
            file.write(to_toml(config).encode())

        def timings() -> dict[str, Mapping[str, Any]]:
            return {stage.name: noted for stage in stages if (noted := space.artefacts.get(stage.name))}

        def told(stage: Stage, reason: str | None) -> None:
            if stage.name == "unigrams" and experiments:  # right after the population, before anything takes long
                _check_arms(space.folder / "population.json", config.evaluation)
            on_stage(stage, reason)

        experiments = config.evaluation.experiment and "evaluation" in stage_names(config, until)
        stages = change(run_stages(config, device=place, workers=workers, timings=timings))
        space.run(stages, until=until, on_stage=told, begin=begin)
        return space


def _check_arms(population: Path, config: EvaluationConfig) -> None:
    """Refuse an experiment that has too few users."""
    users = json.loads(population.read_text("utf-8"))[f"{config.split}_users"]
    if users < LEAST_USERS:
        raise FedgramError(
            f"an experiment needs at least {LEAST_USERS} users, and the split {config.split} has {users}; "
            "add users, or set evaluation.experiment = false"
        )


def plan_pipeline(
    config: RunConfig, folder: str | Path, *, until: str | None = None,
    change: Callable[[list[Stage]], list[Stage]] = lambda stages: stages,
) -> list[Planned]:  # fmt: skip
    """What a run would do; nothing is written."""
    return Workspace(Path(folder)).plan(change(run_stages(config)), until=until)
