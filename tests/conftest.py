"""Fixtures: the command line in this process, and text that is only there for the project's developers."""

import json
import os
from collections.abc import Callable, Generator
from itertools import islice
from pathlib import Path
from typing import Any

# One thread per process, also in processes that tests start: several processes share the cores already. Libraries read
# this when they are imported, so it comes first.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

import pytest
from hypothesis import settings

from fedgram.cli.main import run

# Kernels compile on their first call, so no deadline; the same examples every time.
settings.register_profile("fedgram", deadline=None, derandomize=True)
settings.load_profile("fedgram")

PROGRAMS = ("Node", "Chromium", "presage", "Onboard")
SHARED = Path(os.environ.get("FEDGRAM_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.hookimpl(trylast=True)  # when tests that are not wanted are out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that are marked `early` at the beginning of what every other process gets first.

    They wait most of the time, so the other processes have work for the cores meanwhile.
    """
    processes = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    early = [item for item in items if item.get_closest_marker("early")]
    others = iter([item for item in items if not item.get_closest_marker("early")])
    left = len(items)
    items.clear()
    for n in range(processes):
        size = left // (processes - n)  # as xdist cuts them
        first = early[n // 2 :: (processes + 1) // 2] if n % 2 == 0 else []
        items += [*first, *islice(others, max(size - len(first), 0))]
        left -= size
    assert next(others, None) is None


@pytest.fixture(scope="session", autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Tests keep the key of pseudonyms in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def fedgram(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command that must succeed, and return what it printed, read as JSON where `--json` was asked for."""

    def call(*arguments: object) -> Any:
        words = [str(argument) for argument in arguments]
        code = run(words)
        out, err = capsys.readouterr()
        assert code == 0, err
        return json.loads(out) if "--json" in words else out

    return call


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused with one line and exit code 2, and return the line."""

    def call(*arguments: object) -> str:
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert code == 2, (code, out, err)
        assert out == ""
        assert err.startswith("fedgram: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err[len("fedgram: ") : -1]

    return call


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that were flushed to disk, in order; a temporary file has the name it had then."""
    paths: list[Path] = []
    flush = os.fsync

    def note(descriptor: int) -> None:
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        flush(descriptor)

    monkeypatch.setattr("os.fsync", note)
    return paths


@pytest.fixture(scope="session")
def earnest() -> list[str]:
    """The lines of The Importance of Being Earnest, in capitals and without punctuation."""
    path = SHARED / "earnest.txt"
    if not path.is_file():
        pytest.skip("the play is not part of the project; set FEDGRAM_SHARED_DATA to a folder with earnest.txt")
    return path.read_text().splitlines()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where all programs are there (`scripts/programs`), a test that skips for want of one has failed."""
    report = yield
    if report.skipped and os.environ.get("FEDGRAM_ALL_PROGRAMS") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if any(f"{program} is not installed" in reason for program in PROGRAMS):
            report.outcome, report.longrepr = "failed", f"{reason}, though scripts/programs ran"
    return report
