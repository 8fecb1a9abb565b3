"""A fleet of simulated devices: users of a population, in one process or shared by several processes.

Updates are computed one device at a time with the task's `client_update`, or in batches if the task offers them. With
masking they are computed one device at a time and go through the same protocol and bytes as over a network. A random
share of the invited devices drops out; the seed decides which.
"""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError, InvariantError
from fedgram.core.random import stream
from fedgram.federated.batched_task import BatchedTask, Member
from fedgram.federated.fleet import AbandonedAttemptError, RoundCall, RoundSum, Tally
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job
from fedgram.federated.robust import rule_of
from fedgram.federated.secure.rounds import MASKED_STEP, SecureRound, Traffic, sum_securely
from fedgram.federated.secure.settings import AbandonedRoundError
from fedgram.federated.secure.vectors import round_digest, total_from_sum, update_to_vector, vector_length
from fedgram.federated.task import Total, device_stream
from fedgram.federated.validation import Reason, RefusedUpdateError
from fedgram.federated.wire import record_to_bytes, update_to_bytes
from fedgram.text.population import Users

_HEAD_START = 0.02  # seconds by which a round starts before the next one is prepared


class Ranks(Protocol):
    """Several processes that run the same rounds, each with a share of the devices."""

    @property
    def rank(self) -> int:
        """The number of this process."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def sum(self, arrays: Sequence[LongArray]) -> list[LongArray]:
        """The sums of integer arrays over all processes."""


class _Alone(NamedTuple):
    rank: int = 0
    size: int = 1

    def sum(self, arrays: Sequence[LongArray]) -> list[LongArray]:
        return list(arrays)


class SimulatedFleet:
    """Users of a population as the devices of a job.

    `dropout` is the share of invited devices that never report. With `batched`, updates are computed in batches if the
    task offers them. With `as_bytes`, updates are converted to bytes and back, so that their sizes are known.
    """

    def __init__(
        self, job: Job[Any], users: Users, *, dropout: float = 0.1, batched: bool = True, as_bytes: bool = False,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        if not len(users):
            raise FedgramError("there are no users to invite; check the split")
        if not 0.0 <= dropout < 1.0:
            raise FedgramError(f"the dropout rate must be in [0, 1), not {dropout}")
        self._job, self._users, self._dropout = job, users, dropout
        self._codes = job.task.encode(users.population.words)
        needs_single = rule_of(job.task) is not None
        self._batched = batched and isinstance(job.task, BatchedTask) and not needs_single
        self._as_bytes, self._ranks = as_bytes, ranks or _Alone()
        if needs_single and self._ranks.size > 1:
            raise FedgramError("a median of updates is computed in one process; use one worker")
        self._ahead: dict[int, tuple[LongArray, Future[Sequence[Any]]]] = {}
        self._pool = ThreadPoolExecutor(1) if self._batched else None

    def devices(self, wanted: int, spent: LongArray) -> LongArray:  # noqa: ARG002
        """All users that are not in `spent`."""
        clients = self._users.clients
        return np.setdiff1d(clients, spent, assume_unique=True) if len(spent) else clients

    def prepare(self, call: RoundCall) -> None:
        """Make the next round's batches while the current round is computed."""
        if self._pool is not None and call.masking is None:
            self._ahead[call.number] = call.order, self._pool.submit(self._batches_ahead, call)

    def collect(self, call: RoundCall) -> RoundSum:
        """The sum of the devices that do not drop out."""
        reporting, missing, tally = self._cohort(call)
        if call.masking is not None:
            return self._sum_masked(call, reporting, missing, tally)
        return self._sum_plain(call, reporting, tally)

    def _cohort(self, call: RoundCall) -> tuple[LongArray, LongArray, Tally]:
        """The devices whose reports count, the invited devices whose reports do not, and the tally."""
        invited = call.order[: call.plan.invited]
        rng = stream(self._job.seed, "dropout", call.number, call.attempt)
        stays = rng.random(len(invited)) >= self._dropout
        reports = invited[stays]
        counted, late = reports[: call.plan.devices], reports[call.plan.devices :]
        tally = Tally(invited=len(invited), late=len(late))
        if dropped := len(invited) - len(reports):
            tally.failed["dropped out"] = dropped
        return counted, np.concatenate([invited[~stays], late]), tally

    def _member(self, call: RoundCall, device: int) -> Member:
        data = self._users.population.load(device, self._codes)
        return Member(device, data, device_stream(self._job.seed, call.number, device))

    def _batches(self, call: RoundCall) -> Sequence[Any]:
        reporting, _, _ = self._cohort(call)
        task: Any = self._job.task
        batches: Sequence[Any] = task.batches([self._member(call, device) for device in reporting.tolist()])
        return batches

    def _batches_ahead(self, call: RoundCall) -> Sequence[Any]:
        """The batches of a future round; waits a little, so that the current round can start its own work first."""
        time.sleep(_HEAD_START)
        return self._batches(call)

    def _prepared(self, call: RoundCall) -> Sequence[Any]:
        """The batches of a call; made ahead of time if `prepare` was told of the same call."""
        order, batches = self._ahead.pop(call.number, (None, None))
        if order is not None and batches is not None and call.attempt == 0 and np.array_equal(order, call.order):
            return batches.result()
        return self._batches(call)

    def _sum_plain(self, call: RoundCall, reporting: LongArray, tally: Tally) -> RoundSum:
        intake = Intake(self._job.task, reporting.tolist())
        rank, size = self._ranks.rank, self._ranks.size
        if self._batched:
            task: Any = self._job.task
            task.client_updates(call.broadcast, self._prepared(call)[rank::size], intake)
        else:
            for device in reporting[rank::size].tolist():
                member = self._member(call, device)
                update = self._job.task.client_update(call.broadcast, member.data, member.rng)
                report = update_to_bytes(update) if self._as_bytes else update
                tally.bytes_received += len(report) if isinstance(report, bytes) else 0
                intake.offer(device, report)
        return self._joined(intake, reporting, tally)

    def _joined(self, intake: Intake, reporting: LongArray, tally: Tally) -> RoundSum:
        """The sum over all processes."""
        total, reasons = intake.total, list(Reason)
        participants = np.fromiter(intake.participants, np.int64, len(intake.participants))
        took_part = np.isin(reporting, participants).astype(np.int64)
        numbers = [
            total.weight,
            total.devices,
            intake.empty,
            tally.bytes_received,
            *(intake.refused[r] for r in reasons),
        ]
        *arrays, took_part, summed = self._ranks.sum([*total.arrays.values(), took_part, np.array(numbers, np.int64)])
        if (took_part > 1).any():
            raise InvariantError("two processes trained the same device; use GPUs of the same kind")
        weight, devices, tally.empty, tally.bytes_received, *refused = summed.tolist()
        tally.refused.update({str(r): n for r, n in zip(reasons, refused, strict=True) if n})
        tally.reports, tally.example = devices, intake.example
        joined = Total(total.bits, dict(zip(total.arrays, arrays, strict=True)), weight, devices)
        return RoundSum(joined, reporting[took_part > 0], tally)

    def _sum_masked(self, call: RoundCall, reporting: LongArray, missing: LongArray, tally: Tally) -> RoundSum:
        if self._ranks.size > 1:
            raise FedgramError("secure aggregation is simulated in one process; use one worker")
        task, refused, traffic = self._job.task, list[int](), Traffic()

        def on_failure(device: int, error: FedgramError) -> None:
            if not isinstance(error, RefusedUpdateError):
                raise error
            tally.refused[str(error.reason)] += 1
            tally.example = tally.example or error.example
            refused.append(device)

        drawn = stream(self._job.seed, "leaving", call.number, call.attempt).integers(0, MASKED_STEP + 1, len(missing))
        drawn[len(missing) - tally.late :] = 0  # the ring is complete before late devices answer
        leaving = dict(zip(missing.tolist(), drawn.tolist(), strict=True))
        vectors = {device: partial(self._vector, call, device) for device in (*reporting.tolist(), *leaving)}
        try:
            found = sum_securely(
                self._secure_round(call), vectors, leaving=leaving, traffic=traffic, on_failure=on_failure
            )
        except AbandonedRoundError as abandoned:
            raise AbandonedAttemptError(abandoned.reason, tally, np.array(sorted(refused), np.int64)) from None
        finally:
            tally.bytes_received, tally.bytes_sent = traffic.up, traffic.down
        participants = np.array(sorted({*found.devices, *refused}), np.int64)
        try:
            total = total_from_sum(task, found)
        except RefusedUpdateError as refusal:
            raise AbandonedAttemptError(str(refusal), tally, participants) from None
        tally.reports = total.devices
        return RoundSum(total, participants, tally)

    def _secure_round(self, call: RoundCall) -> SecureRound:
        assert call.masking is not None
        broadcast = hashlib.sha256(record_to_bytes(call.broadcast)).hexdigest()
        about = round_digest(self._job.digest, call.number, broadcast)
        return SecureRound(call.masking, vector_length(self._job.task.size), about, call.plan.minimum)

    def _vector(self, call: RoundCall, device: int) -> LongArray:
        """What a device masks."""
        member, task = self._member(call, device), self._job.task
        return update_to_vector(task, task.client_update(call.broadcast, member.data, member.rng))
