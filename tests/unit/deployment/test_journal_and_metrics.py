"""What an operator sees: the journal, the status and the metrics."""

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fedgram.deployment.journal import Journal, read_status
from fedgram.deployment.keys import free_port
from fedgram.deployment.metrics import metrics_text, serve_metrics


def test_a_journal_adds_up_over_restarts(tmp_path: Path) -> None:
    for _ in range(2):
        journal = Journal(tmp_path, "unigrams", 5)
        journal.tell("round began", {"round": 1, "devices": 9})
        about = {"round": 1, "invited": 9, "reports": 7, "late": 1, "failed": {"declined": 1}, "refused": {}}
        journal.tell("progress", about)
        journal.tell("round summed", {**about, "seconds": 2.5, "bytes_sent": 90, "bytes_received": 70})
        journal.tell("round committed", {"round": 1})
    status = read_status(tmp_path)
    assert (status["rounds_committed"], status["totals"]["reports"], status["devices"]) == (2, 14, 9)
    assert status["totals"]["failed"] == {"declined": 2}
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 6
    text = metrics_text(status, {"online": 3})
    assert 'fedgram_failed_total{reason="declined"} 2' in text
    assert "fedgram_reports_total 14" in text
    assert 'fedgram_nodes{status="online"} 3' in text
    assert "fedgram_bytes_sent_total 2387845678\n" in metrics_text({"totals": {"bytes_sent": 2387845678}})
    assert metrics_text({}).count("\n") == len(metrics_text({}).splitlines())
    (tmp_path / "status.json").write_text("{")
    assert read_status(tmp_path) == {}


def test_the_status_names_the_job_and_what_devices_can_pin(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "ngrams", None)
    journal.tell("run began", {"rounds": None, "job": "abc", "parts": {"ngrams.words": "12"}})
    journal.tell("round committed", {"round": 1})
    status = read_status(tmp_path)
    assert (status["job"], status["parts"], status["rounds"]) == ("abc", {"ngrams.words": "12"}, 0)
    assert "fedgram_rounds 0\n" in metrics_text(status)
    journal = Journal(tmp_path, "ngrams", None)  # a ServerApp that was killed after it had told of the round
    journal.tell("run began", {"rounds": None, "job": "abc", "parts": {}})
    for number in (1, 2, 2):
        journal.tell("round committed", {"round": number})
    assert read_status(tmp_path)["rounds_committed"] == 2
    journal.tell("run completed", {})
    journal = Journal(tmp_path, "ngrams", None)
    journal.tell("run began", {"rounds": None, "job": "abc", "parts": {}})
    journal.tell("round committed", {"round": 1})
    assert read_status(tmp_path)["rounds_committed"] == 3


def test_a_job_that_pauses_for_another_counts_each_round_once(tmp_path: Path) -> None:
    def app(job: str, rounds: range, end: str) -> None:
        """A ServerApp: with the call for a round it tells of the one before, and of its last one at its end."""
        journal = Journal(tmp_path, "any", None)
        journal.tell("run began", {"rounds": None, "job": job, "parts": {}})
        for number in (rounds.start - 1, *rounds):
            if number:
                journal.tell("round committed", {"round": number})
        journal.tell(end, {})

    app("training", range(1, 3), "run paused")
    app("scoring", range(1, 5), "run completed")
    app("training", range(3, 4), "run paused")
    assert read_status(tmp_path)["rounds_committed"] == 2 + 4 + 1
    app("scoring", range(1, 2), "run completed")  # from the beginning
    assert read_status(tmp_path)["rounds_committed"] == 2 + 4 + 1 + 1


def test_metrics_are_served() -> None:
    port = free_port()
    server = serve_metrics(port, lambda: metrics_text({"round": 3}))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            assert b"fedgram_round 3\n" in reply.read()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other").close()
    finally:
        server.shutdown()
        server.server_close()


def test_status_says_that_privacy_has_no_bound_where_no_noise_is_added(tmp_path: Path, fedgram: Any) -> None:
    fedgram("federation", "init", tmp_path / "fed", "--port", free_port())
    Journal(tmp_path / "fed" / "server", "fedavg", 3).tell("round committed", {"round": 2})
    text = fedgram("federation", "status", tmp_path / "fed")
    assert "2 of 3" in text
    assert "none: no noise is added" in next(line for line in text.splitlines() if line.startswith("epsilon"))
    status = fedgram("federation", "status", tmp_path / "fed", "--json")
    assert (status["epsilon"], status["round"], status["rounds"]) == (None, 2, 3)
    assert "no noise is added" in status["epsilon_reason"]
