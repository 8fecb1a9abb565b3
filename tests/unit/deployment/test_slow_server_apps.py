"""A ServerApp that takes minutes to start, as on a machine with forty busy processes and two cores."""

from pathlib import Path

import pytest
from tests.unit.deployment.test_collector import call_of
from tests.unit.deployment.test_served_fleet import Link, fleet_at, server, some_sum

from fedgram.deployment.folder import FederationConfig, make_folder


@pytest.mark.parametrize("status", ["pending", "starting", "running"])
def test_a_server_app_that_starts_slowly_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Five starts of at most 60 s each once ended the run: "ended 5 times without answering"."""
    home, work = make_folder(tmp_path / "fed", FederationConfig(tls=False)), tmp_path / "work"
    link = Link(monkeypatch, status)
    later = link.sleep

    def sleep(seconds: float) -> None:
        later(seconds)
        if link.now > 400.0 and (found := server(work).next_call()):
            server(work).answer(*found, some_sum())

    monkeypatch.setattr("time.sleep", sleep)
    with fleet_at(home, work).working(1) as fleet:
        assert fleet.collect(call_of(1)).tally.reports == 3
    assert (len(link.started), link.stopped) == (1, [])
