"""A masked round: the five steps of secure aggregation, each a request to every device that is left.

    keys      ⌈n·over⌉ devices are invited; the first n to answer form the ring
    shares    sealed secrets are passed on
    masked    the broadcast goes out; masked vectors come in and are added as they come
    confirmed devices sign the list of those whose vectors came in
    unmasked  against enough signatures devices give shares; with enough of them the masks are removed from the sum

A step ends when all devices have answered, or after its share of the round's deadline. A device that does not answer
has left the round. The server learns the sum of those that sent a vector, or that there is none. The state machines and
their messages are those of `federated/secure`. Paper: §7.1.
"""

from fedgram.core.errors import FedgramError
from fedgram.deployment.attempt import Attempt, sorted_devices
from fedgram.federated.fleet import AbandonedAttemptError, RoundSum
from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.settings import AbandonedRoundError, RefusedMessageError
from fedgram.federated.secure.vectors import round_digest, total_from_sum, vector_length
from fedgram.federated.validation import RefusedUpdateError

# with their shares of the deadline
STEPS = {"keys": 0.15, "shares": 0.15, "masked": 0.45, "confirmed": 0.1, "unmasked": 0.15}


class MaskedRound:
    """An attempt at a masked round."""

    def __init__(self, attempt: Attempt) -> None:
        call, job = attempt.call, attempt.job
        assert call.masking is not None
        self._attempt, self._tally = attempt, attempt.tally
        if attempt.admitted is None:
            raise FedgramError("a masked round needs the list of admitted keys; admit devices with `federation admit`")
        about = round_digest(job.digest, call.number, attempt.shared["broadcast_digest"].decode())
        length = vector_length(job.task.size)
        self._server = SecureServer(call.masking, length, attempt.admitted, about=about, minimum=call.plan.minimum)

    def collect(self) -> RoundSum:
        """The round's sum; raises `AbandonedAttemptError` if there is none."""
        attempt = self._attempt
        try:
            requests = self._server.begin(list(attempt.nodes)[: attempt.call.plan.invited])
            self._tally.invited = len(requests)
            for step in STEPS:
                self._step(step, requests)
                requests = self._server.advance()
            found = self._server.total()
            total = total_from_sum(attempt.job.task, found)
        except AbandonedRoundError as why:
            raise self._abandoned(why.reason) from None
        except RefusedUpdateError as why:
            raise self._abandoned(str(why)) from None
        self._tally.reports = total.devices
        return RoundSum(total, sorted_devices({*found.devices, *attempt.took_part}), self._tally)

    def _abandoned(self, reason: str) -> AbandonedAttemptError:
        participants = sorted_devices(self._server.opened | self._attempt.took_part)
        return AbandonedAttemptError(reason, self._tally, participants)

    def _step(self, step: str, requests: dict[int, bytes]) -> None:
        attempt = self._attempt
        seconds = STEPS[step] * attempt.timeouts.deadline
        end = attempt.clock() + seconds
        shared = {**attempt.shared, "broadcast": attempt.broadcast} if step == "masked" else attempt.shared
        contents = {device: {"message": message} for device, message in requests.items()}
        waiting, answered = attempt.send("secure", contents, shared, seconds=seconds), 0
        while waiting and attempt.clock() < end and not self._is_done(step, answered):
            before = len(waiting)
            answered += self._receive(step, waiting, answered)
            attempt.on_progress(self._tally)
            if len(waiting) == before:
                attempt.sleep(attempt.timeouts.poll)
        if step not in ("confirmed", "unmasked") and not self._is_done(step, answered):
            self._tally.late += len(waiting)

    def _is_done(self, step: str, answered: int) -> bool:
        """Whether the step needs no further answers."""
        if step == "unmasked":
            return self._server.can_unmask
        return step == "keys" and answered >= self._attempt.call.plan.devices

    def _receive(self, step: str, waiting: dict[str, int], answered: int) -> int:
        """Pass the answers that have come to the server; returns how many it accepted."""
        accepted = 0
        for device, content in self._attempt.replies(waiting):
            if content is not None:
                try:
                    self._server.receive(device, content["answer"])
                    accepted += 1
                except (RefusedMessageError, KeyError):
                    self._tally.refused["damaged"] += 1
            if self._is_done(step, answered + accepted):
                break  # later answers are left out, so that the ring is no larger than wanted
        return accepted
