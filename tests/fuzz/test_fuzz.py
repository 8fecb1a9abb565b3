"""Fuzzing: briefly in every run of the tests, and a million mutations with `scripts/test --slow`."""

import random
import re
import sys
from pathlib import Path

import pytest
from tests.fuzz import child, fuzz
from tests.fuzz.mutations import mutate_bytes
from tests.fuzz.targets import TARGETS, Target, has

IN_THIS_PROCESS = [
    name for name in TARGETS if name not in ("other_fst", "javascript_fgram", "javascript_personal_words")
]
MILLION = 1_000_000


@pytest.mark.parametrize("name", IN_THIS_PROCESS)
def test_mutations_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Some mutations of every parser, without processes of their own, so that the tests stay quick."""
    target = TARGETS[name]
    if not has(target.needs):
        pytest.skip(f"{target.needs} is not installed")
    seeds, path = target.seeds(tmp_path), tmp_path / f"in{target.suffix}"
    ended = []
    for number in range(30):
        path.write_bytes(child.mutated(name, 0, number, seeds))
        ended.append(child.outcome(target, path))
    assert set(ended) <= {"read", "refused"}


@pytest.mark.skipif(not has("node"), reason="Node is not installed")
def test_processes_with_limits_run_the_readers_in_javascript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz, "FOUND", tmp_path)
    assert fuzz.main(["javascript_fgram", "javascript_personal_words", "--mutations", "200"]) == 0
    found = re.findall(r"(\d+) mutations, (\d+) read, (\d+) refused", capsys.readouterr().out)
    assert len(found) == 2
    assert all(int(read) + int(refused) == int(count) and int(refused) for count, read, refused in found)


def test_a_parser_that_fails_is_found(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        raise ValueError(path.name)

    path = tmp_path / "in"
    path.write_bytes(b"x")
    assert child.outcome(Target("", lambda _: [b"x"], mutate_bytes, read), path).startswith("ValueError at")


def test_a_process_that_ends_by_a_signal_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    for name in ("SIGSEGV", "SIGPROF"):
        program.write_text(f"#!/bin/sh\nprintf '\\007\\0\\0\\0\\0\\0\\0\\0' > $7\nkill -{name[3:]} $$\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        outcomes, done, _ = fuzz._block("arpa", 0, 5, 20)
        assert outcomes == {f"mutation 7: {'takes over 5 s' if name == 'SIGPROF' else name}": 1, "before that": 2}
        assert done == 3


def test_mutations_are_repeatable_and_change_something() -> None:
    whole = bytes(range(256))
    first = [mutate_bytes(random.Random(n), whole) for n in range(50)]
    assert first == [mutate_bytes(random.Random(n), whole) for n in range(50)]
    assert sum(changed != whole for changed in first) > 45


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_a_million_mutations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "FOUND", tmp_path)
    assert fuzz.main(["--mutations", str(MILLION)]) == 0
