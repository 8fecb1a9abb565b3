"""A device's own rules: how often it takes part in a job, and which settings it demands."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployment.transports import (
    MASKING,
    ONCE,
    TEXTS,
    TRAINING,
    UNIGRAMS,
    WORDS,
    LocalTransport,
    admitted_of,
    answer_of,
    make_devices,
)

from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.deployment.device import Device, open_device
from fedgram.deployment.masked_round import STEPS
from fedgram.deployment.participation import MAX_OPEN
from fedgram.deployment.remote_fleet import RemoteFleet
from fedgram.deployment.store import write_store
from fedgram.deployment.waiting import Timeouts
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.vectors import round_digest, total_from_sum, vector_length
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.wire import record_to_bytes
from fedgram.text.vocabulary import Vocabulary

TOOK_PART, TOO_EARLY = {"declined": b"took part already"}, {"declined": b"took part too recently"}
UNLIMITED = Job(UNIGRAMS, 5)  # by the job, but not by its devices


def restarted(device: Device) -> Device:
    """The device after its process was started again: all that is left is its folder."""
    return replace(device, jobs=Path(str(device.jobs)))


def request(job: Job[Any], number: int, broadcast: Record | None = None) -> dict[str, bytes]:
    content = record_to_bytes(broadcast or job.task.broadcast(job.task.init()))
    return {"job": job.digest.encode(), "round": str(number).encode(), "broadcast": content}


def joined(folder: Path, job: Job[Any], participations: int = 1) -> Device:
    (device,) = make_devices(folder, {3: TEXTS[3]}, participations=participations).values()
    assert device.join({"job": job.content})["ready"] == b"yes"
    return device


@pytest.mark.parametrize("job", [ONCE, UNLIMITED], ids=["by the job", "by the device"])
def test_a_device_reports_once_and_may_repeat_itself(tmp_path: Path, job: Job[Any]) -> None:
    device = joined(tmp_path, job)
    first = device.report(request(job, 1))
    assert "update" in first
    for own in (device, restarted(device)):
        assert own.report(request(job, 1)) == first
        assert own.report(request(job, 2)) == TOOK_PART
    write_store(device.store.path, 3, [*TEXTS[3], "something new to say"])
    assert device.report(request(job, 1)) == TOOK_PART  # it would be another report
    again = Job(UNIGRAMS, 6, participations=1)  # the same question with another seed
    device.join({"job": again.content})
    assert device.report(request(again, 2)) == TOOK_PART
    other = Job(UnigramTask(UNIGRAMS.vocabulary, clip=3.0), 6, participations=1)
    device.join({"job": other.content})
    assert "update" in device.report(request(other, 2))


def test_a_device_that_allows_more_takes_part_as_often_as_the_job_says(tmp_path: Path) -> None:
    twice = Job(UNIGRAMS, 5, participations=2)
    device = joined(tmp_path, twice, participations=3)
    for number in (1, 1, 4, 4):
        assert "update" in restarted(device).report(request(twice, number))
    assert restarted(device).report(request(twice, 5)) == TOOK_PART
    assert joined(tmp_path, twice).report(request(twice, 1)) != TOOK_PART


def test_a_training_may_ask_a_device_again_unless_it_sets_a_limit(tmp_path: Path) -> None:
    device = joined(tmp_path, TRAINING)
    assert all("update" in device.report(request(TRAINING, number)) for number in (1, 2, 3))
    assert not device.jobs.with_name("participations.json").exists()
    limited = Job(TRAINING.task, 5, participations=1)
    device.join({"job": limited.content})
    assert "update" in device.report(request(limited, 1))
    weights = TRAINING.task.init().model.weights
    probe = Record({"round": 1}, {name: w + 1 for name, w in weights.items()})
    assert device.report(request(limited, 1, probe)) == TOOK_PART


def test_a_device_keeps_the_separation_of_its_rounds(tmp_path: Path) -> None:
    apart = Job(TRAINING.task, 5, participations=3, min_separation=4)
    device = joined(tmp_path, apart)

    def asked(number: int) -> dict[str, bytes]:
        weights = TRAINING.task.init().model.weights
        return restarted(device).report(request(apart, number, Record({"round": number}, weights)))

    assert "update" in asked(5)
    assert asked(5) == asked(5) != TOO_EARLY  # the same report again
    assert [asked(number) for number in (6, 8, 4, 1)] == [TOO_EARLY] * 4
    assert "update" in asked(9)
    assert asked(12) == TOO_EARLY
    assert "update" in asked(20)
    assert asked(99) == TOOK_PART  # three times


def test_a_device_keeps_the_separation_of_masked_rounds(tmp_path: Path) -> None:
    devices = make_devices(tmp_path, {n: TEXTS[n] for n in range(3)}, MASKING, participations=9)
    apart = Job(UNIGRAMS, 5, participations=9, min_separation=3)
    for device in devices.values():
        device.join({"job": apart.content})
    for number, answered in ((2, True), (3, False), (4, False), (1, False), (5, True), (7, False), (8, True)):
        going = Round(devices, number, apart)
        for step in range(len(STEPS)):
            answers = going.step()
            if not answered:
                assert answers == [TOO_EARLY] * 3
                break
            assert all("answer" in answer for answer in answers), (number, step)
            if step < len(STEPS) - 1:
                going.advance()


def test_server_and_devices_agree_on_the_separation(tmp_path: Path) -> None:
    apart = Job(TRAINING.task, 5, participations=2, min_separation=3)
    devices = make_devices(tmp_path, {n: TEXTS[n % len(TEXTS)] for n in range(8)})
    fleet = RemoteFleet(LocalTransport(devices), apart, Timeouts(wait_seconds=60, poll=0.01))
    found = run_rounds(apart, fleet, RunOptions(6, RoundPlan(2, 1.0, minimum=2)))
    assert found.progress.round == 6
    assert not found.progress.tally.failed  # nobody had to decline
    noted = [json.loads(d.jobs.with_name("participations.json").read_text())[apart.question] for d in devices.values()]
    by_device = dict(zip(found.progress.device.tolist(), found.progress.last.tolist(), strict=True))
    assert {n: entry["last"] for n, entry in enumerate(noted)} == by_device
    assert sum(entry["spent"] for entry in noted) == 12


def test_a_report_is_noted_before_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    device = joined(tmp_path, ONCE)
    with monkeypatch.context() as full:
        full.setattr("fedgram.deployment.participation.atomic_write", fail)
        with pytest.raises(OSError, match="space"):
            device.report(request(ONCE, 1))
    assert "update" in device.report(request(ONCE, 2))


class Round:
    """A server's side of a masked round, step by step."""

    def __init__(self, devices: dict[int, Device], number: int, job: Job[Any] = ONCE) -> None:
        import hashlib

        self.devices, self.job, self.number = devices, job, number
        self.broadcast = record_to_bytes(job.task.broadcast(job.task.init()))
        self.digest = hashlib.sha256(self.broadcast).hexdigest()
        about = round_digest(job.digest, number, self.digest)
        self.server = SecureServer(MASKING, vector_length(job.task.size), admitted_of(devices), about=about)
        self.requests = self.server.begin(devices)

    def step(self) -> list[dict[str, bytes]]:
        """Send the requests that are due; the answers."""
        answers = []
        for node, message in self.requests.items():
            content = {
                "job": self.job.digest.encode(), "round": str(self.number).encode(), "message": message,
                "broadcast": self.broadcast, "broadcast_digest": self.digest.encode(),
            }  # fmt: skip
            answers.append(answer_of(restarted(self.devices[node]), "secure", content))
            if "answer" in answers[-1]:
                self.server.receive(node, answers[-1]["answer"])
        return answers

    def advance(self) -> None:
        self.requests = self.server.advance()


def masked(folder: Path) -> dict[int, Device]:
    devices = make_devices(folder, {n: TEXTS[n] for n in range(3)}, MASKING)
    for device in devices.values():
        device.join({"job": ONCE.content})
    return devices


def steps(devices: dict[int, Device], count: int, number: int = 1) -> Round:
    going = Round(devices, number)
    for step in range(count):
        assert all("answer" in answer for answer in going.step()), step
        if step < count - 1:
            going.advance()
    return going


@pytest.mark.parametrize("count", [1, 2, 3])
def test_after_a_masked_round_of_which_nothing_was_unmasked_a_device_may_be_asked_again(
    tmp_path: Path, count: int
) -> None:
    devices = masked(tmp_path)
    steps(devices, count)
    last = steps(devices, len(STEPS), number=2)
    total = total_from_sum(UNIGRAMS, last.server.total())
    assert total.devices == 3


def test_a_device_that_gave_out_shares_has_taken_part(tmp_path: Path) -> None:
    devices = masked(tmp_path)
    steps(devices, len(STEPS))  # should its sum be lost, they are not asked again all the same
    for number in (1, 2):
        assert Round(devices, number).step() == [TOOK_PART] * 3


def test_masked_vectors_are_not_sent_in_vain_without_end(tmp_path: Path) -> None:
    devices = masked(tmp_path)
    for number in range(MAX_OPEN):
        steps(devices, 3, number=number + 1)
    assert Round(devices, 99).step() == [TOOK_PART] * 3


def test_a_device_in_a_round_of_one_job_gives_out_nothing_of_another(tmp_path: Path) -> None:
    devices, other = masked(tmp_path), Job(UNIGRAMS, 6, participations=1)
    for device in devices.values():
        device.join({"job": other.content})
    going = steps(devices, 2)
    going.advance()
    going.job = other  # the server says that it is about another job
    assert going.step() == [{"failed": b"RefusedMessageError"}] * 3


def pinned(folder: Path, pins: str) -> Device:
    (own,) = make_devices(folder, {3: TEXTS[3]}).values()
    return open_device(own.store.path, own.jobs, pins=pins)


def test_a_job_whose_pinned_setting_differs_is_declined(tmp_path: Path) -> None:
    other = Job(UnigramTask(Vocabulary.of([*WORDS.words[3:], "secret"]), clip=20.0), 5, participations=1)
    parts = ONCE.parts()
    assert set(parts) == {"unigrams.clip", "unigrams.norm", "unigrams.words"}
    device = pinned(tmp_path, f"unigrams.words={parts['unigrams.words']}")
    assert device.join({"job": ONCE.content})["ready"] == b"yes"
    assert device.join({"job": other.content})["ready"] == b"not the pinned unigrams.words"
    assert "update" in device.report(request(ONCE, 1))
    for server_asks in (device.report, replace(device, masking=MASKING).secure):
        asked = {**request(other, 1), "message": b"FGSA\4\1" + bytes(64), "broadcast_digest": b"0" * 64}
        assert server_asks(asked) == {"declined": b"not the pinned unigrams.words"}
    louder = Job(UnigramTask(WORDS, clip=1e6), 5, participations=1)
    assert device.join({"job": louder.content})["ready"] == b"yes"  # of which it demands nothing
    device = pinned(tmp_path, ",".join(f"{name}={digest}" for name, digest in parts.items()))
    assert device.join({"job": louder.content})["ready"] == b"not the pinned unigrams.clip"
    assert device.join({"job": TRAINING.content})["ready"] == b"yes"  # another task


def test_an_operator_sees_that_devices_turn_a_job_away(tmp_path: Path) -> None:
    other = Job(UnigramTask(Vocabulary.of(["other"]), clip=20.0), 5, participations=1)
    pins = {"unigrams.words": ONCE.parts()["unigrams.words"]}
    devices = {n: replace(d, pins=pins) for n, d in make_devices(tmp_path, {n: TEXTS[n] for n in range(3)}).items()}
    fleet = RemoteFleet(LocalTransport(devices), other, Timeouts(wait_seconds=0.4, poll=0.01))
    with pytest.raises(FedgramError, match=r"0 of 3 are ready \(3 online; turned away so far: 3 not ready\)"):
        run_rounds(other, fleet, RunOptions(1, RoundPlan(3, 1.0)))


def test_what_is_noted_is_not_what_was_typed(tmp_path: Path) -> None:
    device = joined(tmp_path, ONCE)
    device.report(request(ONCE, 1))
    noted = json.loads(device.jobs.with_name("participations.json").read_text())
    assert list(noted) == [ONCE.question]
    assert noted[ONCE.question].keys() == {"spent", "round", "report", "open", "last"}


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"x": {"spent": -5}}', b'{"x": {"spent": 0.5}}', b'{"y": 1}'])
def test_a_device_with_a_damaged_note_takes_part_in_nothing(tmp_path: Path, content: bytes) -> None:
    device = joined(tmp_path, ONCE)
    device.jobs.with_name("participations.json").write_bytes(content)
    with pytest.raises(FedgramError, match="is damaged"):
        device.report(request(ONCE, 1))


def test_the_same_job_in_other_bytes_is_the_same_question(tmp_path: Path) -> None:
    """Blanks behind the header of its file give a job another digest, and another seed too."""
    content = ONCE.content
    size = int.from_bytes(content[:8], "little")
    spaced = (size + 8).to_bytes(8, "little") + content[8 : 8 + size] + b" " * 8 + content[8 + size :]
    device = joined(tmp_path, ONCE)
    assert "update" in device.report(request(ONCE, 1))
    device.join({"job": spaced})
    again = {**request(ONCE, 2), "job": sha256(spaced).hexdigest().encode()}
    assert device.report(again) == TOOK_PART


def test_requests_at_the_same_time_are_answered_one_by_one(tmp_path: Path) -> None:
    device = joined(tmp_path, ONCE)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda number: restarted(device).report(request(ONCE, number)), range(1, 9)))
    assert sum("update" in reply for reply in replies) == 1
