"""The list of faults (`tests/faults`) is in step with the code; the slow test plants all of them."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.faults import mutate
from tests.faults.fault_list import HERE, ROOT, Fault, load_faults
from tests.faults.patching import can_patch

from fedgram.core import random, storage

LEAST_FAULTS = 250
LEAST_KILLED = 0.92
FAULTS = load_faults()


@cache
def content(path: str) -> str:
    return (ROOT / path).read_text()


def problem_of(fault: Fault) -> str | None:
    """Why a fault cannot be planted, or its tests cannot be run."""
    if not (ROOT / fault.path).is_file():
        return f"there is no {fault.path}"
    if (times := content(fault.path).count(fault.old)) != 1:
        return f"its old text occurs {times} times in {fault.file}"
    try:
        compile(fault.planted(content(fault.path)), fault.file, "exec")
    except SyntaxError as error:
        return str(error)
    for test in fault.tests:
        path, *names = test.split("::")
        if not (ROOT / path).exists() or (names and f"def {names[-1].split('[')[0]}(" not in content(path)):
            return f"there is no {test}"
    return None if fault.tests else "it names no tests"


def test_every_fault_can_be_planted_and_names_tests_that_exist() -> None:
    problems = {fault.title: problem for fault in FAULTS if (problem := problem_of(fault))}
    assert not problems


def test_the_list_is_long_and_covers_every_package_that_computes() -> None:
    assert len(FAULTS) >= LEAST_FAULTS
    packages = {path.name for path in (ROOT / "src/fedgram").iterdir() if (path / "__init__.py").is_file()}
    assert packages - {"cli"} <= {fault.file.split("/")[0] for fault in FAULTS}
    assert not [place for place, times in Counter((f.file, f.old, f.new) for f in FAULTS).items() if times > 1]
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", fault.name) for fault in FAULTS)


def test_what_is_critical_has_no_excuse() -> None:
    assert not [fault.title for fault in FAULTS if fault.is_critical and fault.survives]


def test_an_outdated_fault_is_found(tmp_path: Path) -> None:
    path = tmp_path / "core.toml"
    path.write_text(
        '[a-b]\nfile = "core/errors.py"\nold = "no such text"\nnew = ""\ntests = ["unit/core/test_core.py"]\n'
    )
    (fault,) = load_faults(tmp_path)
    assert problem_of(fault) == "its old text occurs 0 times in core/errors.py"
    with pytest.raises(ValueError, match="not once"):
        fault.planted(content(fault.path))
    assert HERE.is_dir()


def test_a_fault_in_a_kernel_is_compiled_and_not_patched_in() -> None:
    rounds, flush = content("src/fedgram/core/random.py"), content("src/fedgram/core/storage.py")
    assert not can_patch(random.__name__, rounds, rounds.replace("range(10)", "range(9)"))
    assert can_patch(storage.__name__, flush, flush.replace("os.fsync(descriptor)", "pass"))


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_almost_all_faults_are_noticed_by_a_test() -> None:
    outcomes = mutate.run(FAULTS)
    table = mutate.table(FAULTS, outcomes)
    assert not [fault.title for fault in FAULTS if outcomes[fault.title].verdict == "invalid"], table
    killed = [fault for fault in FAULTS if outcomes[fault.title].verdict == "killed"]
    assert len(killed) >= LEAST_KILLED * len(FAULTS), table
    missed = [fault for fault in FAULTS if outcomes[fault.title].verdict == "survived"]
    assert not [fault.title for fault in missed if fault.is_critical or not fault.survives], table
