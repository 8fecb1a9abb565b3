"""The folder of a run: artefacts on disk, and a manifest that says where each came from.

A stage is a name, the files it reads, the files it writes, its part of the configuration, and a function. Its *key*
is a digest of all that its result depends on: the stage, its configuration, the content of what it reads, this
program's version, and the code that it runs (`fedgram.core.sources`). A stage whose key stands in the manifest, with
files that still have the digests noted there, is not run again; as keys hold the content of inputs, a stage that makes
the same bytes again does not disturb those after it.

A stage works in a folder of its own, `.work/NAME-KEY`. When it is done, its files are flushed to the disk and moved
to their place, and the manifest is replaced. So a run may be killed at any moment: what the manifest names is whole,
and the interrupted stage finds its working folder again, with any checkpoints it left there. A lock that the system
gives back when its process ends keeps two runs apart.

The manifest also counts how often each measuring stage has measured which users. A result on test users is evidence
only if nothing was chosen after looking at them, so the report says how often that could have happened.
"""

import hashlib
import json
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedgram import __version__
from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.core.locks import LOCK, locked
from fedgram.core.progress import Begin, silent
from fedgram.core.sources import code_digest
from fedgram.core.storage import atomic_write, flush
from fedgram.core.toml_config import digest

MANIFEST, WORK = "manifest.json", ".work"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage's function is given: its configuration, what to read, where to write, and a progress callback.

    `measured` says how often the stage has measured the same users before.
    """

    config: Any
    folder: Path
    inputs: Mapping[str, Path]
    begin: Begin = silent
    measured: int = 0

    def read(self, name: str) -> Path:
        """The path of an input."""
        return self.inputs[name]

    def write(self, name: str) -> Path:
        """Where to write an output, or a checkpoint that a resumed run will find there."""
        return self.folder / name


@dataclass(frozen=True, slots=True)
class Stage:
    """`inputs` are outputs of earlier stages; `sources` are files from outside, by the name the function uses.

    `measures` names the users on whom the stage measures models, such as test; the workspace counts how often it does.
    `after` are outputs of earlier stages for which the stage waits, though it does not read them.
    """

    name: str
    outputs: tuple[str, ...]
    function: Callable[[Work], None]
    inputs: tuple[str, ...] = ()
    sources: Mapping[str, Path] = field(default_factory=dict)
    config: Any = None
    measures: str | None = None
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Planned:
    """Whether a stage will run, and why; `seconds` is what it took the last time, if it ever ran."""

    stage: Stage
    reason: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _Begun:
    """A stage that runs, what its function was given, what is noted of it, and when it began."""

    stage: Stage
    work: Work
    noted: Mapping[str, Any]
    began: float


class Runner(Protocol):
    """Calls the functions of stages, at most `at_once` at the same time."""

    @property
    def at_once(self) -> int:
        """How many stages may run at the same time."""

    def call(self, stage: Stage, work: Work) -> "Future[int]":
        """Call a stage's function; the result is the most memory that it had, in bytes."""


class OneByOne:
    """A `Runner` in this process."""

    at_once = 1

    def call(self, stage: Stage, work: Work) -> "Future[int]":
        """Call the function, and come back when it is done."""
        stage.function(work)
        done = Future[int]()
        done.set_result(peak_bytes())
        return done


class Workspace:
    """A run's folder, held for one run; open it with `open_workspace`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest: dict[str, dict[str, Any]]
        self._measured: dict[str, dict[str, int]]  # by stage and users
        self._manifest, self._measured = _read_manifest(folder / MANIFEST)
        self._known: dict[tuple[int, ...], str] = {}  # digests of files as they were when they were last read

    @property
    def artefacts(self) -> Mapping[str, Mapping[str, Any]]:
        """By stage: key, version, digests of code, configuration, inputs and files, seconds, and peak memory."""
        return self._manifest

    def plan(self, stages: Sequence[Stage], until: str | None = None) -> list[Planned]:
        """What a run would do; a stage after one that runs is spared if its input comes out the same."""
        result, stale = [], set[str]()
        for stage in _checked(stages, until):
            changed = [name for name in stage.inputs if name in stale]
            is_new = stage.name not in self._manifest
            reason = f"{changed[0]} may change" if changed and not is_new else self._reason(stage)
            if reason:
                stale |= set(stage.outputs)
            result.append(Planned(stage, reason, self._manifest.get(stage.name, {}).get("seconds")))
        return result

    def run(
        self,
        stages: Sequence[Stage],
        *,
        until: str | None = None,
        runner: "Runner | None" = None,
        on_stage: Callable[[Stage, str | None], object] = lambda *_: None,
        on_done: Callable[[Stage, float], object] = lambda *_: None,
        begin: Begin = silent,
    ) -> None:
        """Run what is not there yet; a stage begins when what it reads is there, in the order of the stages.

        Args:
            stages: All stages, in an order in which they can run.
            until: The name of the last stage to run.
            runner: What calls the stages' functions; by default this process, one after the other.
            on_stage: Told of every stage, and why it runs, None if it does not.
            on_done: Told of every stage that ran, and its seconds.
            begin: Progress callback.
        """
        waiting, running = list(_checked(stages, until)), dict[Future[int], _Begun]()
        runner = runner or OneByOne()
        for stage in waiting:
            code_digest(stage.function)  # sources are read before the first stage, as they may be edited meanwhile
        while waiting or running:
            missing = {name for stage in (*waiting, *(b.stage for b in running.values())) for name in stage.outputs}
            ready = [stage for stage in waiting if missing.isdisjoint((*stage.inputs, *stage.after))]
            if ready and len(running) < runner.at_once:
                waiting.remove(stage := ready[0])
                on_stage(stage, reason := self._reason(stage))
                if reason:
                    with _named(stage):
                        begun = self._begin(stage, begin)
                        running[runner.call(stage, begun.work)] = begun
                else:
                    self._clear(stage.name)  # a run that was killed at its very end leaves an empty working folder
                continue
            ended = wait(running, return_when=FIRST_COMPLETED).done
            for done in sorted(ended, key=lambda future: future.exception() is not None):  # what is done is noted first
                with _named((begun := running.pop(done)).stage):
                    on_done(begun.stage, self._finish(begun, done.result()))

    def _reason(self, stage: Stage) -> str | None:
        noted = self._manifest.get(stage.name)
        if noted is None:
            return "new"
        if noted["version"] != __version__:
            return "another version of fedgram"
        if noted["config"] != digest(stage.config):
            return "its configuration changed"
        if noted.get("code") != code_digest(stage.function):
            return "its code changed"
        inputs = self._input_digests(stage)
        for name in sorted(inputs.keys() | noted["inputs"].keys()):
            if inputs.get(name) != noted["inputs"].get(name):
                return f"{name} changed"
        for name in stage.outputs:
            if noted["files"].get(name) != self._describe(self.folder / name):
                return f"{name} is missing or changed"
        return None

    def _input_digests(self, stage: Stage) -> dict[str, str | None]:
        paths = {name: self.folder / name for name in stage.inputs} | dict(stage.sources)
        return {name: (self._describe(path) or {}).get("sha256") for name, path in paths.items()}

    def _begin(self, stage: Stage, begin: Begin) -> "_Begun":
        """Check what a stage reads, and make its working folder."""
        inputs = self._input_digests(stage)
        for name, content in inputs.items():
            if content is None:
                raise InputError(
                    stage.sources.get(name, self.folder / name), f"is needed by {stage.name}, and not there"
                )
        for path in stage.sources.values():
            if path.resolve() in {(self.folder / name).resolve() for name in stage.outputs}:
                raise InputError(path, "is where the run writes a file", remedy="keep it outside of the workspace")
        noted, key = _key(stage, inputs)
        folder = self._place(stage, key)
        self._clear(stage.name, keep=folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: self.folder / name for name in stage.inputs} | dict(stage.sources)
        measured = self._measured.get(stage.name, {}).get(stage.measures or "", 0)
        work = Work(stage.config, folder, paths, begin, measured)
        return _Begun(stage, work, {**noted, "key": key}, time.perf_counter())

    def _finish(self, begun: "_Begun", peak_bytes: int) -> float:
        """Move what a stage wrote to its place, and note it; returns the seconds that the stage took."""
        stage, folder, seconds = begun.stage, begun.work.folder, round(time.perf_counter() - begun.began, 3)
        files = {}
        for name in stage.outputs:
            files[name] = self._describe(folder / name)
            if files[name] is None:
                raise InvariantError(f"stage {stage.name} did not write {name}")
        self._manifest.pop(stage.name, None)  # from here until the end the stage has no files that can be trusted
        self._write_manifest()
        for name in stage.outputs:
            flush(folder / name)
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).replace(self.folder / name)
        flush(self.folder)
        self._manifest[stage.name] = {**begun.noted, "seconds": seconds, "peak_bytes": peak_bytes, "files": files}
        if stage.measures:
            measured = self._measured.get(stage.name, {})
            self._measured[stage.name] = {**measured, stage.measures: begun.work.measured + 1}
        self._write_manifest()
        shutil.rmtree(folder, ignore_errors=True)
        return seconds

    def _describe(self, path: Path) -> dict[str, Any] | None:
        """The digest and the size of a file; None if there is none."""
        if not path.is_file():
            return None
        about = path.stat()
        same = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        if same not in self._known:
            with path.open("rb") as file:
                self._known[same] = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": self._known[same], "bytes": about.st_size}

    def place(self, stage: Stage) -> Path:
        """Where a stage works, as its inputs are now; checkpoints that were made elsewhere may be put there."""
        return self._place(stage, _key(stage, self._input_digests(stage))[1])

    def _place(self, stage: Stage, key: str) -> Path:
        return self.folder / WORK / f"{stage.name}-{key[:16]}"

    def _clear(self, stage: str, keep: Path | None = None) -> None:
        """Remove a stage's working folders, but for one."""
        for other in (self.folder / WORK).glob(f"{stage}-{'?' * 16}"):
            if other != keep:
                shutil.rmtree(other, ignore_errors=True)

    def _write_manifest(self) -> None:
        content = {"format": _FORMAT, "artefacts": self._manifest, "measured": self._measured}
        with atomic_write(self.folder / MANIFEST) as file:
            file.write(json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")


@contextmanager
def open_workspace(folder: str | Path) -> Iterator[Workspace]:
    """The workspace of a folder, made if it is not there, and refused while another run has it."""
    home = Path(folder)
    if home.exists() and not home.is_dir():
        raise InputError(home, "is not a folder", remedy="name a folder for the run's files")
    home.mkdir(parents=True, exist_ok=True)
    if not any((home / own).exists() for own in (MANIFEST, LOCK)) and any(home.iterdir()):
        raise InputError(home, "holds files that are not a run's", remedy="name a new or an empty folder")

    def taken(owner: str) -> InputError:
        return InputError(home, f"is in use by another run ({owner})", remedy="wait for it to end")

    with locked(home, taken=taken):
        yield Workspace(home)


def _key(stage: Stage, inputs: Mapping[str, str | None]) -> tuple[dict[str, Any], str]:
    """What a stage's result depends on, and its digest."""
    noted = {
        "version": __version__, "code": code_digest(stage.function), "config": digest(stage.config), "inputs": inputs,
    }  # fmt: skip
    return noted, hashlib.sha256(json.dumps([stage.name, noted], sort_keys=True).encode()).hexdigest()


def _checked(stages: Sequence[Stage], until: str | None) -> Sequence[Stage]:
    """The stages up to the last one wanted, if they fit together."""
    made: set[str] = set()
    names = [stage.name for stage in stages]
    for stage in stages:
        if missing := [name for name in (*stage.inputs, *stage.after) if name not in made]:
            raise InvariantError(f"stage {stage.name} needs {missing[0]}, which no earlier stage writes")
        if twice := made & set(stage.outputs) or names.count(stage.name) > 1 or not stage.outputs:
            raise InvariantError(f"stage {stage.name} stands twice, writes nothing, or writes another's file ({twice})")
        made |= set(stage.outputs)
    if until is None:
        return stages
    if until not in names:
        raise FedgramError(f"there is no stage {until!r}; the stages are {', '.join(names)}")
    return stages[: names.index(until) + 1]


@contextmanager
def _named(stage: Stage) -> Iterator[None]:
    """Errors say in which stage they happened."""
    try:
        yield
    except (FedgramError, OSError, MemoryError) as error:
        error.add_note(f"in the stage {stage.name}")
        raise


def _read_manifest(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, int]]]:
    """What is noted of each stage, and how often each has measured users."""
    if not path.exists():
        return {}, {}
    remedy = "remove it to run everything again"
    try:
        content = json.loads(path.read_text("utf-8"))
        found = content["format"]
        artefacts: dict[str, dict[str, Any]] = content["artefacts"]
        for noted in artefacts.values():
            if not (isinstance(noted["inputs"], dict) and isinstance(noted["files"], dict)):
                raise TypeError
            noted["version"], noted["config"], noted["key"], float(noted["seconds"])
        measured = {stage: {u: int(n) for u, n in by.items()} for stage, by in content.get("measured", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(path, "is damaged", remedy=remedy) from None
    if found != _FORMAT:
        raise InputError(path, f"has format {found!r}, not {_FORMAT}", remedy=remedy)
    return artefacts, measured


def peak_bytes() -> int:
    """The most memory this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
