"""An experiment on a real federation on this machine: released, installed, measured, resumed, ended by a release."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_federation import DEVICES, command, set_up, write_text

from fedgram.automata.model import NGramModel
from fedgram.deployment.flower.processes import wait_until_served
from fedgram.deployment.installed import ModelFolder
from fedgram.deployment.store import open_store
from fedgram.fgram.pack import pack


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_devices_measure_the_model_of_their_arm(
    tmp_path: Path, fedgram: Callable[..., Any], refused: Callable[..., str]
) -> None:
    stores, home_path = tmp_path / "devices", tmp_path / "fed"
    write_text(tmp_path)
    fedgram("federation", "devices", tmp_path / "users.parquet", "-o", stores)
    home = set_up(home_path, "--masked-with", 0, fedgram=fedgram)
    lines = (tmp_path / "supplement.txt").read_text().splitlines()
    old, new = tmp_path / "old.fgram", tmp_path / "new.fgram"
    for path, some in ((old, lines[:50]), (new, lines)):
        pack(NGramModel.train(some, order=2, smoothing="witten-bell"), path)
    trial = ("federation", "experiment", home_path, "--control", old, "--treatment", new, "--share", 1, "--days", 7)
    with ExitStack() as stack:
        wait_until_served(home, stack.enter_context(command("federation", "serve", home_path)), seconds=120)
        for number in DEVICES:
            stack.enter_context(command("federation", "join", home_path, "--data", stores / f"{number}.sqlite"))
        while len(online := fedgram("federation", "status", home_path, "--json")["nodes"]) < 3 or any(
            node["status"] != "online" for node in online
        ):
            time.sleep(0.3)
        first = fedgram(*trial, "--once", "--json")
        again = fedgram(*trial, "--once", "--json")  # the same period: nobody reports twice
        assert "another experiment goes on" in refused(*trial[:3], "--control", new, "--treatment", old, "--once")
        back = fedgram("federation", "publish", home_path, new, "--wait", 0.5, "--json")
    messages = sum(open_store(stores / f"{number}.sqlite").messages() for number in DEVICES)
    assert sum(first["devices"].values()) == sum(first["reports_without_times"].values()) == 3
    assert sum(first["words"].values()) > messages
    assert {name: again[name] for name in ("devices", "words", "levels")} == {
        name: first[name] for name in ("devices", "words", "levels")
    }
    assert (back["version"], back["installed"]) == (first["version"] + 1, 3)
    installed = {ModelFolder(home.node(number) / "models").state().model for number in DEVICES}
    assert len(installed) == 1
