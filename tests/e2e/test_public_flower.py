"""A real federation over Flower's public interfaces: its programs, its command line, and the Grid's methods."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from fedgram.core.errors import FedgramError
from fedgram.deployment.checks import is_up
from fedgram.deployment.flower import internals
from fedgram.deployment.flower.control import admit, nodes
from fedgram.deployment.flower.processes import end, start_superlink, start_supernode, wait_until_served
from fedgram.deployment.folder import FederationConfig, make_folder
from fedgram.deployment.keys import free_port, read_public_key, write_device_key
from fedgram.deployment.served_fleet import ServedFleet
from fedgram.deployment.store import DeviceStore, open_store, write_store
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.text.population import population_from_messages
from fedgram.text.vocabulary import Vocabulary

TEXT = "see you there, see you soon"
JOB = Job(UnigramTask(Vocabulary.of(["see", "you", "soon", "it"]), clip=20.0), 3, participations=1)


def a_store(folder: Path) -> DeviceStore:
    """The store of device 0."""
    write_store(folder / "0.sqlite", 0, [TEXT])
    return open_store(folder / "0.sqlite")


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_federation_needs_only_what_flower_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is admitted, a run is started, and its sum is the simulation's."""
    monkeypatch.setenv(internals.SWITCH, "off")
    home = make_folder(tmp_path / "fed", FederationConfig(port=free_port(), masked_with=0))
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "log").open("wb"))
        link = start_superlink(home, host="127.0.0.1", log=log)
        stack.callback(end, link)
        wait_until_served(home, link)
        write_device_key(home.node(0))
        key = read_public_key(home.node(0) / "key.pub")
        assert admit(home, key, "device-0")
        stack.callback(end, start_supernode(home, a_store(tmp_path), port=free_port(), log=log))
        assert not admit(home, key, "device-0")
        assert [node["name"] for node in nodes(home)] == ["device-0"]
        timeouts, options = Timeouts(deadline=120, wait_seconds=120), RunOptions(1, RoundPlan(1, 1.0))
        with ServedFleet(home, tmp_path / "work", JOB, timeouts).working(1) as fleet:
            (ours,) = run_rounds(JOB, fleet, options).state.rounds
    assert not is_up(home)
    people = population_from_messages([("0", TEXT, "train")])
    (alone,) = run_rounds(JOB, SimulatedFleet(JOB, people.users(), dropout=0.0), options).state.rounds
    assert np.array_equal(ours.index, alone.index)
    assert np.array_equal(ours.weight, alone.weight)
    said = f"fedgram: using Flower's public interfaces ({internals.SWITCH}=off)\n"
    assert (tmp_path / "log").read_text().count(said) == 2  # the SuperLink's and the SuperNode's


def test_the_public_way_is_for_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with private modules can a server hide its other interfaces, and a device check the app it is sent."""
    monkeypatch.setenv(internals.SWITCH, "off")
    home = make_folder(tmp_path / "fed", FederationConfig(host="fed.example.org"))
    with pytest.raises(FedgramError, match=r"serving other machines, on 0\.0\.0\.0, needs Flower 1\.41\.0"):
        start_superlink(home, host="0.0.0.0")
    with pytest.raises(FedgramError, match=r"joining a server on another machine, .* pip install flwr==1\.41\.0"):
        start_supernode(home, a_store(tmp_path), port=1)
