"""What `fedgram federation evaluate` says of the devices that were asked."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedgram.automata.model import NGramModel
from fedgram.cli.main import cli
from fedgram.deployment import evaluation
from fedgram.deployment.flower import processes
from fedgram.deployment.folder import FederationConfig, make_folder
from fedgram.evaluate.on_devices import DeviceComparison, evaluate_on_devices
from fedgram.federated.fleet import Tally
from fedgram.files import save
from fedgram.text.population import population_from_messages

PEOPLE = population_from_messages((f"user{n}", "hello you are here", "train") for n in range(4))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.arpa"
    save(NGramModel.train(["hello you are here", "you are you"], order=2), path)
    return path


def shown(tally: Tally, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    """The output of the command if this is what happened in the rounds."""
    found = evaluate_on_devices([str(model)], PEOPLE.train, arm="train", devices_per_round=4, dropout=0.0)
    assert found.progress is not None
    found = replace(found, progress=replace(found.progress, tally=tally))

    def instead(*_: Any, **__: Any) -> DeviceComparison:
        return found

    monkeypatch.setattr(evaluation, "evaluate_on_federation", instead)
    monkeypatch.setattr(processes, "wait_until_served", lambda *_, **__: None)
    make_folder(folder / "fed", FederationConfig(tls=False, masked_with=0))
    given = ["federation", "evaluate", str(folder / "fed"), str(model), "--arm", "train", *options]
    result = CliRunner().invoke(cli, given, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize(
    ("tally", "line"),
    [
        (Tally(invited=4, reports=4), "4 invited, 4 reported"),
        (Tally(invited=4, reports=3, late=1), "4 invited, 3 reported, 1 late"),
        (
            Tally(invited=6, reports=3, failed=Counter(declined=2), refused=Counter({"too large": 1})),
            "6 invited, 3 reported, 2 declined, 1 refused (too large)",
        ),
    ],
)
def test_the_devices_that_did_not_report_are_named(
    tally: Tally, line: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(tally, model, tmp_path, monkeypatch).splitlines()[0] == line


def test_json_is_only_json(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(Tally(invited=4, reports=3), model, tmp_path, monkeypatch, "--json").startswith('{"split": "train"')
