"""What a server or a device could do to learn, or to spoil, more than it should. Each of these once worked."""

from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from os import urandom
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.deployment.transports import OFTEN, ONCE, START, TEXTS, TRAINING, UNIGRAMS, admitted_of, make_devices

from fedgram.automata.model import NGramModel
from fedgram.core.arrays import LongArray
from fedgram.core.storage import Record
from fedgram.deployment.device import Device
from fedgram.evaluate.scoring_task import ScoringTask
from fedgram.evaluate.sent_model import SentModel
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job
from fedgram.federated.secure.admitted_keys import new_credentials
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.messages import Kind
from fedgram.federated.secure.rounds import STEPS, SecureRound, sum_securely
from fedgram.federated.secure.server import SecureServer, SecureSum
from fedgram.federated.secure.settings import AbandonedRoundError, RefusedMessageError, SecureSettings
from fedgram.federated.secure.vectors import round_digest, total_from_sum, update_to_vector, vector_length
from fedgram.federated.task import Update, device_stream
from fedgram.federated.unigram_collection import UnigramTask
from fedgram.federated.validation import Reason, RefusedUpdateError
from fedgram.federated.wire import record_to_bytes, update_to_bytes
from fedgram.text.population import population_from_messages
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.fedavg_task import FederatedAveraging

MASKING = SecureSettings(min_devices=3)
SIX = {n: TEXTS[n] for n in range(6)}
Content = dict[str, bytes]


def joined(tmp_path: Path, jobs: Mapping[int, Job[Any]]) -> dict[int, Device]:
    devices = {node - 100: device for node, device in make_devices(tmp_path, SIX, MASKING).items()}
    for number, device in devices.items():
        device.join({"job": jobs[number].content})
    return devices


def request_for(job: Job[Any], number: int, broadcast: bytes) -> Content:
    digest = sha256(broadcast).hexdigest().encode()
    fields = {"job": job.digest.encode(), "round": str(number).encode()}
    return {**fields, "broadcast_digest": digest, "broadcast": broadcast}


def masked_round(
    devices: Mapping[int, Device], requests: Callable[[int], Content], about: bytes, length: int, *,
    gone: Collection[int] = (), masking: SecureSettings = MASKING,
) -> tuple[SecureSum | None, dict[int, Content]]:  # fmt: skip
    """A round of an outwardly honest server; devices in `gone` leave after they shared their secrets.

    Returns the sum, if there is one, and the last reply of each device that declined.
    """
    server = SecureServer(masking, length, admitted_of(devices), about=about)
    messages, declined = server.begin(devices), dict[int, Content]()
    try:
        for step in range(STEPS):
            for number, message in messages.items():
                if number in gone and step >= 2:
                    continue
                try:
                    reply = devices[number].secure({**requests(number), "message": message})
                except RefusedMessageError as error:
                    reply = {"declined": str(error).encode()}
                if "answer" in reply:
                    server.receive(number, reply["answer"])
                else:
                    declined[number] = reply
            messages = server.advance()
        return server.total(), declined
    except AbandonedRoundError:
        return None, declined


NOTHING = record_to_bytes(Record())


def test_two_masked_sums_never_differ_by_one_device(tmp_path: Path) -> None:
    """The sum of six devices less that of five would be the sixth one's counts."""
    devices = joined(tmp_path, dict.fromkeys(SIX, ONCE))

    def round_number(number: int, gone: Collection[int] = ()) -> tuple[SecureSum | None, dict[int, Content]]:
        request = request_for(ONCE, number, NOTHING)
        about = round_digest(ONCE.digest, number, request["broadcast_digest"].decode())
        return masked_round(devices, lambda _: request, about, vector_length(UNIGRAMS.size), gone=gone)

    first, declined = round_number(1)
    assert first is not None
    assert len(first.devices) == 6
    assert not declined
    for number in (1, 2):  # the same round again, or another one
        again, declined = round_number(number, gone=(4,))
        assert again is None
        assert declined == {device: {"declined": b"took part already"} for device in SIX}


def evaluation(clip: float = 1000.0) -> tuple[Job[Any], bytes]:
    """An evaluation of one model on devices of the train arm, and its broadcast."""
    model = NGramModel.train([text.lower() for text in TEXTS[0]], order=2)
    task = ScoringTask.of([SentModel.of(model)], cased=False, arm="train", clip=clip)
    return Job(task, 5, participations=1), record_to_bytes(task.broadcast(task.init()))


def evaluated(
    devices: Mapping[int, Device], job: Job[Any], broadcast: bytes, *, gone: Collection[int] = (),
    masking: SecureSettings = MASKING,
) -> tuple[SecureSum | None, dict[int, Content]]:  # fmt: skip
    request = request_for(job, 1, broadcast)
    about = round_digest(job.digest, 1, request["broadcast_digest"].decode())
    length = vector_length(job.task.size)
    return masked_round(devices, lambda _: request, about, length, gone=gone, masking=masking)


def test_no_bucket_of_an_evaluation_is_smaller_than_devices_allow(tmp_path: Path) -> None:
    """Devices that were told to mask with three send nothing to a server that sums two."""
    job, broadcast = evaluation()
    two = {n: device for n, device in joined(tmp_path, dict.fromkeys(SIX, job)).items() if n < 2}
    found, declined = evaluated(two, job, broadcast, masking=SecureSettings(min_devices=2))
    assert found is None
    assert declined.keys() == two.keys()


def test_the_same_model_is_not_measured_again_with_one_device_less(tmp_path: Path) -> None:
    """Neither as it was, nor with another clip norm, seed or limit, which leave the figures as they are."""
    job, broadcast = evaluation()
    devices = joined(tmp_path, dict.fromkeys(SIX, job))
    first, declined = evaluated(devices, job, broadcast)
    assert first is not None
    assert not declined
    other, _ = evaluation(clip=999.0)
    for again in (job, other, Job(other.task, 6), Job(job.task, 7, participations=99)):
        for device in devices.values():
            device.join({"job": again.content})
        found, declined = evaluated(devices, again, broadcast, gone=(4,))
        assert found is None
        assert declined == {device: {"declined": b"took part already"} for device in SIX}


def test_an_abandoned_round_counts_against_nothing(tmp_path: Path) -> None:
    """Nothing was unmasked: five of six left before."""
    devices = joined(tmp_path, dict.fromkeys(SIX, ONCE))
    request = request_for(ONCE, 1, NOTHING)
    about = round_digest(ONCE.digest, 1, request["broadcast_digest"].decode())
    length = vector_length(UNIGRAMS.size)
    found, _ = masked_round(devices, lambda _: request, about, length, gone=(0, 1, 2, 3, 4))
    assert found is None
    found, declined = masked_round(devices, lambda _: request, about, length)
    assert (found is not None, declined) == (True, {})


def test_devices_with_different_jobs_have_no_sum(tmp_path: Path) -> None:
    """A server that gives all but one device a job of words that nobody has would read that one's counts."""
    strange = Vocabulary.of([f"zzq{k}" for k in range(len(UNIGRAMS.vocabulary) - 3)])
    fake = Job(UnigramTask(strange, clip=20.0), 5, participations=1)
    jobs = {number: ONCE if number == 0 else fake for number in SIX}
    devices = joined(tmp_path, jobs)
    assert vector_length(fake.task.size) == vector_length(UNIGRAMS.size)
    for told in (ONCE, fake):  # whatever the server's messages say they are about
        about = round_digest(told.digest, 1, sha256(NOTHING).hexdigest())
        found, declined = masked_round(
            devices, lambda n: request_for(jobs[n], 1, NOTHING), about, vector_length(UNIGRAMS.size)
        )
        assert found is None or 0 not in found.devices
        assert all(b"another round, job or broadcast" in reply["declined"] for reply in declined.values())
        assert declined.keys() == {n for n in SIX if jobs[n] is not told}


def test_devices_with_different_broadcasts_have_no_sum(tmp_path: Path) -> None:
    """A server that sends one device other weights than it announced gets no vector of it."""
    devices = joined(tmp_path, dict.fromkeys(SIX, TRAINING))
    task = TRAINING.task
    assert isinstance(task, FederatedAveraging)
    broadcast = record_to_bytes(task.broadcast(task.init()))
    other = record_to_bytes(Record({"round": 1}, {name: 2 * w for name, w in START.items()}))
    honest, lying = request_for(TRAINING, 1, broadcast), {**request_for(TRAINING, 1, broadcast), "broadcast": other}
    about = round_digest(TRAINING.digest, 1, honest["broadcast_digest"].decode())
    server = SecureServer(MASKING, vector_length(task.size), admitted_of(devices), about=about)
    messages = server.begin(devices)
    for _ in range(2):
        for number, message in messages.items():
            server.receive(number, devices[number].secure({**honest, "message": message})["answer"])
        messages = server.advance()
    with pytest.raises(Exception, match="not the one that the round began with"):
        devices[0].secure({**lying, "message": messages[0]})
    assert "answer" in devices[1].secure({**honest, "message": messages[1]})


@pytest.mark.parametrize("amount", [2_000_000, -1])
def test_an_oversized_contribution_to_a_masked_sum_is_noticed(amount: int) -> None:
    """One of ten devices masks what no device may send; the server sees the sum alone, and refuses it."""
    task, scale = UNIGRAMS, 2**UNIGRAMS.bits
    people = population_from_messages([(f"{n}", text, "train") for n in range(10) for text in TEXTS[n]])
    codes = task.encode(people.words)

    def vector_of(device: int) -> Callable[[], LongArray]:
        update = task.client_update(Record(), people.load(device, codes), device_stream(1, 1, device))
        vector = update_to_vector(task, update)
        if device == 3:
            vector[7] = amount * scale  # the device's own check is left out
        return lambda: vector

    found = sum_securely(SecureRound(SecureSettings(), vector_length(task.size)), {n: vector_of(n) for n in range(10)})
    with pytest.raises(RefusedUpdateError) as refusal:
        total_from_sum(task, found)
    assert refusal.value.reason in (Reason.TOO_LARGE, Reason.NORM, Reason.NEGATIVE)


def test_unigram_devices_send_their_clipped_counts_and_nothing_else(tmp_path: Path) -> None:
    """Squares and products with a device's length name the words of single devices, and link them."""
    assert dict(UNIGRAMS.size) == {"count": len(UNIGRAMS.vocabulary)}
    devices = make_devices(tmp_path, {0: TEXTS[0]})
    device = devices[100]
    device.join({"job": OFTEN.content})
    reply = device.report(request_for(OFTEN, 1, NOTHING))
    people = population_from_messages([("0", text, "train") for text in TEXTS[0]])
    data = people.load(0, UNIGRAMS.encode(people.words))
    counts = np.bincount(data.sentences.values, minlength=len(UNIGRAMS.vocabulary)).astype(float)
    counts[:3] = 0
    counts *= min(1.0, 20.0 / counts.sum())
    places = np.flatnonzero(counts)
    own = Update({"count": len(counts)}, {"count": places}, {"count": counts[places]}, 1.0)
    assert reply == {"update": update_to_bytes(own)}


def test_an_update_without_weight_moves_nothing() -> None:
    task = TRAINING.task
    intake = Intake(task)
    honest = Update.dense({name: np.zeros(n) for name, n in task.size.items()}, 6.0)
    assert intake.offer(0, honest) is None
    weightless = Update.dense({name: np.full(n, 6e5) for name, n in task.size.items()}, 0.0)
    assert intake.offer(1, update_to_bytes(weightless)) == Reason.WEIGHT
    assert all(not array.any() for array in intake.total.arrays.values())


def test_too_few_vectors_are_never_unmasked() -> None:
    """The server's own minimum is checked before any device is asked for shares."""
    vectors = {n: lambda n=n: np.full(4, n) for n in range(6)}
    asked: list[Kind] = []

    class Watching(SecureClient):
        def answer(self, request: bytes) -> bytes:
            asked.append(Kind(request[5]))
            return super().answer(request)

    own = new_credentials(vectors, urandom)
    server = SecureServer(MASKING, 4, own[0].admitted, minimum=5)
    clients = {n: Watching(MASKING, 4, vector, own[n]) for n, vector in vectors.items()}
    messages = server.begin(clients)
    for step in range(3):
        for n, message in messages.items():
            if step < 2 or n < 4:
                server.receive(n, clients[n].answer(message))
        if step < 2:
            messages = server.advance()
    with pytest.raises(AbandonedRoundError, match="4 devices sent their vectors, 5 are needed"):
        server.advance()
    assert Kind.SURVIVORS not in asked
