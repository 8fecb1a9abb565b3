"""`scripts/mutate`: plants the faults of the list one by one in a copy of the project, and sees whether tests fail.

Each fault first meets the tests that it names, and if they pass, all tests of its package but the slow ones. Results
are kept in the temporary folder as they come, so an interrupted run resumes. A result stays valid until the fault, its
file or one of its test files changes. A run is of the project as it was when the run began. Before the faults of a
package, its tests run on the clean copy: a fault whose tests fail there is invalid, and so is one that only breaks an
import.
"""

import argparse
import fcntl
import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from fnmatch import fnmatch
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.faults.fault_list import ROOT, Fault, load_faults
from tests.faults.patching import can_patch
from tests.faults.planting import Copy, tree_digest
from tests.faults.trial import Outcome, Session, Trial, import_libraries, in_session, run_tests

HOME = Path(tempfile.gettempdir()) / f"fedgram-mutate-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"
RESULTS = HOME / "results.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. The exit code is 1 if a fault is invalid, or survives without a reason in the list."""
    options = _options(arguments)
    wanted = options.only or ["*"]
    faults = [fault for only in wanted for fault in load_faults() if fnmatch(fault.title, only)]
    faults = list(dict.fromkeys(faults))
    if not faults:
        print(f"mutate: no fault is named {' or '.join(options.only)}", file=sys.stderr)
        return 2
    outcomes = run(faults, jobs=options.jobs, again=options.again, wide=options.wide, clean=options.clean)
    print(json.dumps(_facts(faults, outcomes), indent=1) if options.json else table(faults, outcomes))
    return int(any(_is_bad(fault, outcomes[fault.title]) for fault in faults))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", action="append", metavar="PACKAGE/NAME", help="only these faults; * is allowed")
    parser.add_argument("--jobs", type=int, default=1, help="number of copies that are tested at the same time")
    parser.add_argument("--json", action="store_true", help="print every fault and its outcome as JSON")
    parser.add_argument("--again", action="store_true", help="do not use results of earlier runs")
    parser.add_argument("--named-tests-only", dest="wide", action="store_false", help="only the tests a fault names")
    parser.add_argument("--skip-clean-tests", dest="clean", action="store_false", help="trust that the tests pass now")
    return parser.parse_args(arguments)


def run(
    faults: list[Fault], *, jobs: int = 1, again: bool = False, wide: bool = True, clean: bool = True
) -> dict[str, Outcome]:
    """The outcome of each fault, by its title."""
    HOME.mkdir(exist_ok=True)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() and not again else {}
    known = {f.title: kept[f.title]["outcome"] for f in faults if kept.get(f.title, {}).get("key") == key(f, wide)}
    outcomes = {title: Outcome(**outcome) for title, outcome in known.items()}
    new = [fault for fault in faults if fault.title not in outcomes]
    if new:
        import_libraries()
        groups = _groups(new, jobs)
        with ProcessPoolExecutor(len(groups), get_context("fork")) as pool:
            works = [pool.submit(_work, group, wide, clean) for group in groups]
            for found in (work.result() for work in works):
                outcomes |= {title: Outcome(**fields) for title, fields in found.items()}
    return outcomes


def _groups(faults: list[Fault], jobs: int) -> list[list[Fault]]:
    """Shares of the faults; those of one package stay together as far as possible."""
    size = -(-len(faults) // max(jobs, 1))
    return [faults[start : start + size] for start in range(0, len(faults), size)]


def _work(faults: list[Fault], wide: bool, clean: bool) -> dict[str, dict[str, Any]]:
    """One process: its own copy, and its share of the faults.

    Outcomes are returned as their fields: here the modules of the copy are imported, and `Outcome` is another class.
    """
    copy, outcomes = Copy(HOME), dict[str, Outcome]()
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)  # what pytest prints
    for package in dict.fromkeys(fault.package for fault in faults):
        own = [fault for fault in faults if fault.package == package]
        files = tuple(sorted({file for fault in own for file in fault.test_files}))
        folder = f"tests/unit/{package}"
        collected = (*files, folder) if wide and (copy.root / folder).is_dir() else files
        tried = partial(_try_all, copy, own, files, outcomes, wide=wide, clean=clean)
        in_session(copy.root, collected, copy.clean_kernels, tried)
    return {title: asdict(outcome) for title, outcome in outcomes.items()}


def _try_all(
    copy: Copy, faults: list[Fault], files: tuple[str, ...], outcomes: dict[str, Outcome], session: Session, *,
    wide: bool, clean: bool,
) -> None:  # fmt: skip
    """Try the faults of a package, whose test files are `files`."""
    failing = _failing(copy, files, session) if clean else {}
    for fault in faults:
        broken = [failing[file] for file in fault.test_files if file in failing]
        if broken:
            outcome = Outcome("invalid", reason=f"without the fault: {broken[0]}")
        else:
            outcome = _try(copy, fault, session, wide)
            _keep(fault, outcome, key(fault, wide, copy.root))
        outcomes[fault.title] = outcome
        found = f"{outcome.test}: " if outcome.test and outcome.test.split("::")[0] not in fault.test_files else ""
        print(f"{outcome.verdict:8} {outcome.seconds:6.1f} s  {fault.title}  {found}{outcome.reason}", file=sys.stderr)


def _failing(copy: Copy, files: tuple[str, ...], session: Session) -> dict[str, str]:
    """The tests that fail on the clean copy, by file; that none does is remembered."""
    done = HOME / f"clean-{hashlib.sha256(repr((tree_digest(copy.root), files)).encode()).hexdigest()[:16]}"
    if done.exists():
        return {}
    trial = Trial(copy.root, files, copy.clean_kernels)
    outcome = run_tests(trial, session, HOME / f"clean-{copy.name}.log", seconds=3000)
    if outcome.verdict == "survived":
        done.touch()
        return {}
    if not outcome.failed:
        return dict.fromkeys(files, outcome.reason)
    return {test.split("::")[0]: test for test in outcome.failed}


def _try(copy: Copy, fault: Fault, session: Session, wide: bool) -> Outcome:
    """Plant a fault and run its tests, then those of its package."""
    old = (copy.root / fault.path).read_text()
    try:
        new = fault.planted(old)
        compile(new, fault.file, "exec")
    except (SyntaxError, ValueError) as error:
        return Outcome("invalid", reason=str(error))
    folder = f"tests/unit/{fault.package}"
    with copy.planted(fault, recompile=not can_patch(fault.module, old, new)) as kernels:
        log = copy.root.parent / f"{fault.package}-{fault.name}.log"
        trial = Trial(copy.root, fault.tests, kernels, fault.module, old, new)
        outcome = run_tests(trial, session, log, seconds=300)
        if outcome.verdict == "survived" and wide and not fault.survives and (copy.root / folder).is_dir():
            outcome = run_tests(replace(trial, tests=(folder,)), session, log, seconds=1200)
    return outcome


def key(fault: Fault, wide: bool, root: Path = ROOT) -> str:
    """What a result depends on: the fault, its file and its tests."""
    files = [root / file for file in (fault.path, *fault.test_files)]
    contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    return hashlib.sha256(repr((fault, contents, wide)).encode()).hexdigest()


def _keep(fault: Fault, outcome: Outcome, key: str) -> None:
    """Add a result to the file, which is replaced as a whole; other processes write it too."""
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        kept[fault.title] = {"key": key, "outcome": asdict(outcome)}
        partial = RESULTS.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(kept, indent=1))
        partial.rename(RESULTS)


def _is_bad(fault: Fault, outcome: Outcome) -> bool:
    return outcome.verdict == "invalid" or (outcome.verdict == "survived") != bool(fault.survives)


def _facts(faults: list[Fault], outcomes: dict[str, Outcome]) -> list[dict[str, object]]:
    return [{"fault": f.title, "file": f.file, "survives": f.survives, **asdict(outcomes[f.title])} for f in faults]


def table(faults: list[Fault], outcomes: dict[str, Outcome]) -> str:
    """Killed and survived by package, and every survivor."""
    lines = [f"{'package':12} {'faults':>6} {'killed':>6} {'survived':>8} {'invalid':>7} {'killed %':>8}"]
    for package in dict.fromkeys(fault.package for fault in faults):
        lines.append(_row(package, (outcomes[fault.title] for fault in faults if fault.package == package)))
    lines.append(_row("critical", (outcomes[fault.title] for fault in faults if fault.is_critical)))
    lines.append(_row("all", outcomes.values()))
    for fault in faults:
        outcome = outcomes[fault.title]
        if outcome.verdict != "killed" or fault.survives:
            lines.append(f"\n{outcome.verdict}: {fault.title}\n  {fault.survives or outcome.reason or 'no test fails'}")
    return "\n".join(lines)


def _row(name: str, outcomes: Iterable[Outcome]) -> str:
    count = Counter(outcome.verdict for outcome in outcomes)
    share = 100 * count["killed"] / max(count.total(), 1)
    return f"{name:12} {count.total():6} {count['killed']:6} {count['survived']:8} {count['invalid']:7} {share:8.1f}"


if __name__ == "__main__":
    sys.exit(main())
