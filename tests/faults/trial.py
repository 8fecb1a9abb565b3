"""One trial: the tests of a fault in a process of their own, forked from one that has imported the large libraries."""

import importlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.faults.patching import patch

LIBRARIES = ("numpy", "scipy.stats", "numba", "torch", "pyarrow.parquet", "cryptography.fernet", "rich")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
# Plugins may be imported already, and a process that is forked must not have its output captured.
_OPTIONS = ("-q", "-s", "-m", "not slow", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
Verdict = Literal["killed", "survived", "invalid"]


@dataclass(frozen=True)
class Outcome:
    """What a trial showed: the verdict, the test that failed first, and how; on clean code, all that failed."""

    verdict: Verdict
    test: str = ""
    reason: str = ""
    seconds: float = 0.0
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """Tests in a copy; and the module that a fault changes, with its source before and after. None is clean code."""

    root: Path
    tests: tuple[str, ...]
    kernels: Path
    module: str | None = None
    old: str = ""
    new: str = ""


def import_libraries() -> None:
    """Import what most tests need, so that a trial does not. Nothing of the project is imported."""
    os.environ.update(dict.fromkeys(THREADS, "1"))
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)


def in_session(root: Path, files: tuple[str, ...], kernels: Path, body: Callable[["Session"], None]) -> None:
    """Make this process one of the copy in `root`, collect these test files once, and call `body` with their tests."""
    os.chdir(root)
    os.environ.update(NUMBA_CACHE_DIR=str(kernels), PYTHONPATH=str(root / "src"))
    _forget()
    libraries = [path for path in sys.path if "site-packages" in path or "/lib" in path]
    sys.path[:] = [str(root / "src"), *libraries]
    session = Session(body)
    pytest.main([*_OPTIONS, *files], plugins=[session])
    if not session.began:  # a file cannot be collected
        body(session)


class Session:
    """A pytest plugin that hands the collected tests to `body` instead of running them."""

    def __init__(self, body: Callable[["Session"], None]) -> None:
        self.body, self.began = body, False
        self._items: list[pytest.Item] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Call the body once."""
        self.began, self._items = True, list(session.items)
        self.body(self)
        return True

    def chosen(self, tests: tuple[str, ...]) -> list[pytest.Item]:
        """The collected tests with these names, or in these files and folders."""
        return [
            item for item in self._items if any(re.fullmatch(rf"{re.escape(t)}([/:\[].*)?", item.nodeid) for t in tests)
        ]

    def run(self, tests: tuple[str, ...], watcher: "Watcher") -> int:
        """Run collected tests until one fails, and give pytest's exit code."""
        items = self.chosen(tests)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.pluginmanager.register(watcher, "watcher") if item is items[0] else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if watcher.test:
                return 1
        return 0 if items else 5


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("fedgram", "tests")]:
        del sys.modules[name]


def run_tests(trial: Trial, session: Session, log: Path, *, seconds: float) -> Outcome:
    """Run tests of the copy in a forked process, with a fault until one fails.

    A run that takes longer than `seconds` counts as failed.
    """
    started = time.monotonic()
    log.write_text("")
    result = log.with_suffix(".json")
    result.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _become_pytest(trial, session, log)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() - started > seconds:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Outcome("killed", reason=f"took more than {seconds:.0f} s", seconds=seconds)
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what tests left running
    took = round(time.monotonic() - started, 1)
    if not result.exists():
        return Outcome("killed", reason="the process of the tests ended", seconds=took)
    return Outcome(**json.loads(result.read_text()), seconds=took)


def _become_pytest(trial: Trial, session: Session, log: Path) -> None:
    """In the child: run pytest in the copy, write the outcome beside the log, and end."""
    try:
        os.setsid()
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        is_clean = trial.module is None
        os.environ["NUMBA_CACHE_DIR"] = str(trial.kernels)
        if not is_clean:
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = not is_clean
        sys.modules["numba"].config.CACHE_DIR = str(trial.kernels)
        watcher = Watcher()
        if trial.module is not None and session.chosen(trial.tests) and patch(trial.module, trial.old, trial.new):
            code = session.run(trial.tests, watcher)
        else:
            _forget()
            stop = [] if is_clean else ["-x"]
            code = int(pytest.main([*stop, *_OPTIONS, *trial.tests], plugins=[watcher]))
        log.with_suffix(".json").write_text(json.dumps(watcher.outcome(code, trial.root)))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


class Watcher:
    """A pytest plugin that remembers the first failure."""

    def __init__(self) -> None:
        self.test = ""
        self.reason = ""
        self.is_valid = True
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note a failure of a test, its setup or its teardown."""
        report = yield
        if report.failed:
            if self.test:
                self.failed.append(item.nodeid)
            elif call.excinfo is not None:
                self._note(item.nodeid, call.excinfo.value)
        return report

    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[None]) -> None:
        """Note a failure to collect: a fault that breaks the import of a module breaks nothing in particular."""
        if isinstance(node, pytest.Collector) and call.excinfo is not None:
            self._note(node.nodeid, call.excinfo.value)
            self.is_valid = False

    def _note(self, test: str, error: BaseException) -> None:
        self.failed.append(test)
        self.test, self.reason = test, f"{type(error).__name__}: {error}".splitlines()[0][:200]
        names = {kind.__name__ for kind in type(error).__mro__}
        broken = names & {"SyntaxError", "ImportError", "NameError", "TypingError", "LoweringError"}
        kernels_fail = "NRT_adapt" in self.reason  # in numba, if kernels ran while tests were collected
        self.is_valid = not broken and not kernels_fail

    def outcome(self, code: int, root: Path) -> dict[str, Any]:
        """The verdict of a run that ended with pytest's exit code."""
        place = Path(getattr(sys.modules.get("fedgram"), "__file__", None) or "")
        if not place.is_relative_to(root):
            return {"verdict": "invalid", "reason": f"the tests imported fedgram from {place}"}
        if code == 0:
            return {"verdict": "survived"}
        verdict = "killed" if code == 1 and self.is_valid and self.test else "invalid"
        return {"verdict": verdict, "test": self.test, "reason": self.reason or f"pytest ended with code {code}",
                "failed": self.failed}  # fmt: skip
