"""The counting of a run, where the run and the GPU are on different machines.

    python -m benchmarks.real_models send CONFIG.toml WORKSPACE FOLDER     after: fedgram run … --until train_pieces
    python -m benchmarks.real_models count FOLDER                          beside the GPU
    python -m benchmarks.real_models receive CONFIG.toml WORKSPACE FOLDER  then: fedgram run …, as if counted here

The folder takes the two networks and A_W to the GPU, and brings back what the distilling stages keep in their working
folders: the inferred topology and the counts. The GPU's machine needs torch, triton, numpy, numba, safetensors and
sentencepiece alone.
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from fedgram.core.progress import Advance
from fedgram.core.toml_config import read_config
from fedgram.pipeline.config import RunConfig, read_run_config

INPUTS = ("A_W.ngram", "R_W.safetensors", "R_P.safetensors", "pieces.model")


def send(config: Path, workspace: Path, folder: Path) -> None:
    """What counting reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in INPUTS:
        shutil.copy(workspace / name, folder / name)
    shutil.copy(config, folder / "run.toml")


def count(folder: Path) -> None:
    """Infer the topology, and count both networks."""
    from fedgram.core.compute import Compute
    from fedgram.distill.distillation import Running, prepare_nn2wfa
    from fedgram.distill.sources import as_source, pieces_of
    from fedgram.formats.artefact import read_ngram

    c, compute, began = read_config(folder / "run.toml", RunConfig), Compute(), perf_counter()

    def begin(description: str, total: int | None = None, *, unit: str = "") -> Advance:
        print(f"{perf_counter() - began:.1f} s: {description}", flush=True)
        done = 0

        def advance(more: int, _: str | None = None, /) -> None:
            nonlocal done
            done += more
            if done == total:
                print(f"{perf_counter() - began:.1f} s: {done:,} {unit}", flush=True)

        return advance

    inferred = None
    for by, name in (("words", "R_W.safetensors"), ("pieces", "R_P.safetensors")):
        (folder / by).mkdir(exist_ok=True)
        source = as_source(folder / name, compute)
        nn2wfa, inferred = prepare_nn2wfa(
            source, read_ngram(folder / "A_W.ngram"), c.distillation, inferred=inferred, budget=c.budget,
            pieces=pieces_of(source, None), seed=c.seed, running=Running(compute, folder=folder / by, begin=begin),
        )  # fmt: skip
        _ = nn2wfa.counts
    print(f"{perf_counter() - began:.1f} s", flush=True)


def receive(config: Path, workspace: Path, folder: Path) -> None:
    """Put the counts where the stages look for them; that of the pieces is known when that of the words is done."""
    from fedgram.pipeline.stages import run_stages
    from fedgram.pipeline.workspace import open_workspace

    c = read_run_config(config)
    stages = {stage.name: stage for stage in run_stages(c)}
    for by in ("words", "pieces"):
        with open_workspace(workspace) as space:
            place = space.place(stages[f"distill_{by}"])
            place.mkdir(parents=True, exist_ok=True)
            for path in (folder / by).iterdir():
                shutil.copy(path, place / path.name)
            space.run(list(stages.values()), until=f"distill_{by}", on_stage=lambda s, why: print(s.name, why or ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=("send", "count", "receive"))
    parser.add_argument("paths", type=Path, nargs="+")
    given = parser.parse_args()
    ways: dict[str, Callable[..., None]] = {"send": send, "count": count, "receive": receive}
    if len(given.paths) != (1 if given.way == "count" else 3):
        sys.exit(__doc__)
    ways[given.way](*given.paths)


if __name__ == "__main__":
    main()
