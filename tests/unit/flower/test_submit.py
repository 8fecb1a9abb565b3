"""Looking after a run: how often it is started, and how it ends; the SuperLink is a handful of functions here."""

from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError
from fedgram.flower import submit
from fedgram.flower.control import Unreachable
from fedgram.flower.folder import FederationConfig, Folder, make_folder
from fedgram.flower.journal import Journal
from fedgram.flower.locks import locked
from fedgram.flower.orders import OUTCOME
from fedgram.flower.submit import carry_out


class Link:
    """A SuperLink on which runs have the status `status`; `on_start` is what a ServerApp does at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: str = "failed") -> None:
        self.status, self.started, self.stopped, self.now = status, list[int](), list[int](), 0.0
        monkeypatch.setattr(submit, "start_run", self.start)
        monkeypatch.setattr(submit, "run_status", lambda *_: self.status)
        monkeypatch.setattr(submit, "stop_run", lambda _, run: self.stopped.append(run))
        monkeypatch.setattr("time.sleep", self.sleep)
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def start(self, *_: object) -> int:
        self.started.append(len(self.started) + 1)
        self.on_start(len(self.started))
        return len(self.started)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def on_start(self, run: int) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path) -> Folder:
    (tmp_path / "work").mkdir()
    return make_folder(tmp_path / "fed", FederationConfig(tls=False))


def test_a_server_app_that_ends_without_a_word_is_started_a_few_times(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(monkeypatch)
    with pytest.raises(FedgramError, match=r"ended 5 times without a word or a round; see .*superlink\.log"):
        carry_out(home, tmp_path / "work")
    assert len(link.started) == 5


def test_one_that_gets_on_is_started_as_often_as_it_takes(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, journal = Link(monkeypatch), Journal(home.server, "unigrams", 9)

    def one_round(run: int) -> None:
        journal.tell("round committed", {"round": run})
        if run == 9:
            (tmp_path / "work" / OUTCOME).write_text('{"done": true}')

    monkeypatch.setattr(link, "on_start", one_round)
    carry_out(home, tmp_path / "work")
    assert len(link.started) == 9


def test_an_interrupted_command_stops_its_run(home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(monkeypatch, "running")

    def interrupt(_: int) -> None:
        if link.started:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(home, tmp_path / "work", on_round=interrupt)
    assert link.stopped == link.started == [1]


def test_a_run_of_other_orders_is_stopped_first(home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(monkeypatch, "running")

    def die(_: int) -> None:
        if link.started:
            raise RuntimeError  # as if killed: nothing is stopped

    with pytest.raises(RuntimeError):
        carry_out(home, tmp_path / "work", on_round=die)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(link, "on_start", lambda _: (tmp_path / "other" / OUTCOME).write_text('{"done": true}'))
    carry_out(home, tmp_path / "other")
    assert (link.started, link.stopped) == ([1, 2], [1])


def test_one_command_at_a_time_asks_the_devices(home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(monkeypatch)
    with locked(home.server, seconds=0), pytest.raises(FedgramError, match="another run is asking the devices of"):
        carry_out(home, tmp_path / "work")
    assert not link.started


def test_what_is_waited_for_is_said(
    home: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = Link(monkeypatch, "running")

    def away(_: int) -> None:
        if link.now < 20:
            raise Unreachable("no server answers at 127.0.0.1:1")

    monkeypatch.setattr(link, "on_start", away)
    Journal(home.server, "unigrams", 1).tell("waiting", {"there": 3, "wanted": 9, "online": 4, "turned_away": {}})
    with locked(tmp_path / "work", seconds=0), pytest.raises(FedgramError, match="enough"):
        carry_out(home, tmp_path / "work", on_round=lambda _: enough(link.now > 60))
    assert capsys.readouterr().err == "fedgram: waiting for devices: 3 of 9 are there, 4 online\n"
    link.now = 0.0
    with pytest.raises(FedgramError, match="enough"):
        carry_out(home, tmp_path / "work", on_round=lambda _: enough(link.now > 40))
    assert capsys.readouterr().err == "fedgram: no server answers at 127.0.0.1:1; waiting for it\n"


def enough(now: bool) -> None:
    if now:
        raise FedgramError("enough")
