"""Optional packages that are missing are named together."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedgram.cli.run import extras_of
from fedgram.core import extras
from fedgram.core.errors import MissingDependencyError
from fedgram.pipeline.config import read_run_config


def test_every_extra_is_known_and_part_of_all() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    known = {name for name in project["optional-dependencies"] if name not in ("all", "build", "dev", "oracles")}
    assert known == extras.PACKAGES.keys()
    (everything,) = project["optional-dependencies"]["all"]
    assert everything == f"fedgram[{','.join(sorted(known))}]"


def test_missing_extras_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in ("torch", "pyarrow") else object())
    with pytest.raises(MissingDependencyError, match=r"pip install 'fedgram\[data,neural\]'$"):
        extras.check_extras("a run", "plots", "neural", "data")
    extras.check_extras("figures", "plots")


def test_a_run_asks_for_what_it_will_need(tmp_path: Path) -> None:
    config = read_run_config("demo")
    assert extras_of(config, None, tmp_path) == ["neural", "pieces", "plots"]
    assert extras_of(config, "unigrams", tmp_path) == ["neural"]
    files = {("population", name): __file__ for name in ("supplement", "whitelist")}
    given = config.with_files({**files, ("population", "users"): "users.parquet"})
    assert extras_of(given, "evaluation", tmp_path) == ["neural", "data"]
    (tmp_path / "users.population").touch()  # read before, perhaps on another machine
    assert extras_of(given, "evaluation", tmp_path) == ["neural"]
    private = replace(given, privacy=replace(given.privacy, protection="dp"))
    assert "privacy" in extras_of(private, None, tmp_path)
    assert "privacy" not in extras_of(private, "evaluation", tmp_path)  # Gaussian noise needs no other package
