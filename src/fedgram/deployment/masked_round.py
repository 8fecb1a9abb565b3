"""A masked round over a fleet: the four steps of secure aggregation, each a request to every device that is left.

    keys      ⌈n·over⌉ devices are asked; the first n to answer form the ring
    shares    sealed secrets are handed on
    masked    the server's state goes out; masked vectors come in and are added as they come
    unmasked  as soon as enough shares are there, the masks come off the sum

A step ends when all have answered, or with its part of the round's deadline. Who does not answer has left; what the
server learns is the sum of those who sent a vector, or that there is none. The machines are those of
`federated/secure`; the bytes are theirs.
"""

from collections import Counter
from collections.abc import Callable

from fedgram.deployment.participation import TOOK_PART
from fedgram.deployment.remote_fleet import RemoteFleet, problem_of, sorted_devices
from fedgram.deployment.transport import Content, Reply, Request
from fedgram.federated.fleet import Abandoned, RoundCall, RoundSum, Tally
from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.settings import AbandonedRoundError, RefusedMessageError
from fedgram.federated.secure.vectors import round_digest, total_from_sum, vector_length
from fedgram.federated.validation import RefusedUpdateError

STEPS = ("keys", "shares", "masked", "unmasked")
_SHARES_OF_DEADLINE = (0.15, 0.15, 0.5, 0.2)


class MaskedRound:
    """One attempt at a round over (device, node) in the order of asking; `shared` goes with every request."""

    def __init__(
        self, fleet: RemoteFleet, call: RoundCall, order: list[tuple[int, int]], shared: Content, state: Content,
        on_progress: Callable[[Tally], object],
    ) -> None:  # fmt: skip
        assert call.masking is not None
        self._fleet, self._call, self._shared, self._state, self._on_progress = fleet, call, shared, state, on_progress
        self._node = dict(order[: call.plan.invited])
        about = round_digest(fleet.job.digest, call.number, shared["broadcast"].decode())
        self._server = SecureServer(
            call.masking, vector_length(fleet.job.task.size), about=about, minimum=call.plan.minimum
        )
        self.tally, self._spent = Tally(), set[int]()

    def collect(self) -> RoundSum:
        """The round's sum; raises `Abandoned` where there can be none."""
        try:
            requests = self._server.begin(self._node)
            self.tally.asked = len(requests)
            for number, step in enumerate(STEPS):
                self._step(number, step, requests)
                requests = self._server.advance()
            found = self._server.total()
            total = total_from_sum(self._fleet.job.task, found)
        except (AbandonedRoundError, RefusedUpdateError) as why:
            problem = str(why).removeprefix("the round is abandoned: ")
            raise Abandoned(problem, self.tally, sorted_devices(self._server.opened | self._spent)) from None
        self.tally.reports = total.devices
        return RoundSum(total, sorted_devices({*found.devices, *self._spent}), self.tally)

    def _step(self, number: int, step: str, requests: dict[int, bytes]) -> None:
        clock, patience = self._fleet.clock, self._fleet.patience
        end = clock() + _SHARES_OF_DEADLINE[number] * patience.deadline
        waiting = self._send(step, requests, end - clock())
        answered = 0
        while waiting and clock() < end and not self._enough(step, answered):
            came = 0
            for reply in self._fleet.transport.poll(list(waiting), most=patience.batch):
                if self._enough(step, answered):
                    break  # later ones are left out, so that the ring is as large as was wanted
                device = waiting.pop(reply.request, None)
                if device is not None:
                    came += 1
                    answered += self._take(device, reply)
            self._on_progress(self.tally)
            if not came:
                self._fleet.sleep(patience.poll)
        if step != STEPS[-1] and not self._enough(step, answered):
            self.tally.late += len(waiting)

    def _enough(self, step: str, answered: int) -> bool:
        """Whether nobody needs to be waited for."""
        if step == "unmasked":
            return self._server.can_unmask
        return step == "keys" and answered >= self._call.plan.devices

    def _send(self, step: str, messages: dict[int, bytes], seconds: float) -> dict[str, int]:
        shared = {**self._shared, **(self._state if step == "masked" else {})}
        requests = [
            Request(self._node[device], "secure", {"message": message}, shared, str(self._call.number))
            for device, message in messages.items()
        ]
        names = self._fleet.transport.send(requests, seconds=max(seconds, 1.0)) if requests else []
        self.tally.bytes_sent += sum(request.size for request, name in zip(requests, names, strict=True) if name)
        self.tally.failed += Counter({"not sent": names.count("")})
        return {name: device for name, device in zip(names, messages, strict=True) if name}

    def _take(self, device: int, reply: Reply) -> bool:
        self.tally.bytes_received += reply.size
        if problem := problem_of(reply):
            self.tally.failed[problem] += 1
            self._fleet.heard_problem(device, problem)
            self._spent |= {device} if problem == TOOK_PART else set()
            return False
        try:
            self._server.receive(device, (reply.content or {})["answer"])
        except (RefusedMessageError, KeyError):
            self.tally.refused["damaged"] += 1
            return False
        return True
