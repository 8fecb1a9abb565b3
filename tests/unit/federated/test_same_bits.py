"""The same bits however a task runs: in batches, masked, shared by processes, and on a device that has only the job."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.federated_tasks import TASKS, ThreadRanks, bits_of
from tests.unit.federated.runs import CLIENTS, PEOPLE, a_fleet, a_job, run, same

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job, find_task, job_from_bytes
from fedgram.federated.rounds import Run
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import device_stream
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.wire import update_to_bytes


@pytest.mark.parametrize("name", TASKS)
def test_every_way_of_running_gives_the_same_bits(name: str) -> None:
    """In batches, one device at a time, through bytes, and masked."""
    job, plan = a_job(name), RoundPlan(devices=8, over_selection=1.5)
    expected = run(job, rounds=2, plan=plan)
    for options in ({"batched": False}, {"batched": False, "as_bytes": True}):
        found = run(job, rounds=2, plan=plan, fleet=a_fleet(job, **options))
        assert bits_of(job.task.save(found.state)) == bits_of(job.task.save(expected.state))
        assert found.progress.times.tolist() == expected.progress.times.tolist()
    assert found.progress.tally.bytes_received > 0
    masked = run(job, rounds=2, plan=plan, masking=SecureSettings())
    assert bits_of(job.task.save(masked.state)) == bits_of(job.task.save(expected.state))
    assert masked.progress.device.tolist() == expected.progress.device.tolist()
    assert masked.progress.tally.reports == expected.progress.tally.reports


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", TASKS)
def test_processes_that_share_the_rounds_agree(name: str, batched: bool, tmp_path: Path) -> None:
    job = a_job(name)
    alone = run(job, rounds=3, fleet=a_fleet(job, batched=batched))

    def rank(r: Any) -> Run[Any]:
        own = tmp_path / str(r.rank)
        return run(
            job, rounds=3, fleet=a_fleet(job, batched=batched, ranks=r), folder=own, lead=r.rank == 0
        )  # fmt: skip

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(rank, ThreadRanks(3).all):
            assert same(job, alone, found)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]  # one of them writes the checkpoints


def test_processes_that_share_devices_wrongly_are_noticed() -> None:
    class Doubling:
        rank, size = 0, 1

        def sum(self, arrays: Any) -> list[LongArray]:
            return [2 * array for array in arrays]

    job = a_job()
    with pytest.raises(FedgramError, match="two processes trained the same device"):
        run(job, fleet=a_fleet(job, ranks=Doubling()))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_its_settings(name: str) -> None:
    """A device makes the task from the job's bytes, and computes the same update."""
    job = a_job(name, participations=3)
    there = job_from_bytes(job.content)
    assert (there.digest, there.seed, there.participations, there.task.name) == (job.digest, 5, 3, job.task.name)
    assert Job(there.task, 5, 3).content == job.content
    assert there.parts() == job.parts()
    assert find_task(job.task.name) is type(job.task)
    codes, own = (task.encode(PEOPLE.words) for task in (job.task, there.task))
    assert np.array_equal(codes, own)  # type: ignore[arg-type]
    state = job.task.init()
    for device in CLIENTS[:5].tolist():
        rng = device_stream(5, 1, device)
        broadcast = job.task.broadcast(state)
        here, remote = (
            update_to_bytes(task.client_update(broadcast, PEOPLE.load(device, codes), rng))
            for task in (job.task, there.task)
        )
        assert here == remote
        assert Intake(there.task).offer(device, remote) is None


def test_a_job_is_called_by_the_bytes_it_came_as(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the device's version of the task writes its settings differently: both must compute the same digest."""
    job = a_job()
    content, plain = job.content, UnigramTask.settings
    monkeypatch.setattr(UnigramTask, "settings", lambda self: Record({**plain(self).fields, "more": 1}))
    assert a_job().digest != job.digest
    assert (job_from_bytes(content).content, job_from_bytes(content).digest) == (content, job.digest)


@pytest.mark.parametrize("name", TASKS)
def test_a_state_is_what_was_saved(name: str) -> None:
    job = a_job(name)
    for state in (job.task.init(), run(job, rounds=2).state):
        saved = job.task.save(state)
        assert bits_of(job.task.save(job.task.load(saved))) == bits_of(saved)
