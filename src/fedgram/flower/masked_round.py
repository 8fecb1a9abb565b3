"""A masked round over a fleet: the four steps of secure aggregation, each a request to every device that is left.

    keys      ⌈n·over⌉ devices are asked; the first n to answer form the ring
    shares    sealed secrets are handed on
    masked    the server's state goes out; masked vectors come in and are added as they come
    unmasked  as soon as enough shares are there, the masks come off the sum

A step ends when all have answered, or with its part of the round's deadline. Who does not answer has left; what the
server learns is the sum of those who sent a vector, or that there is none. The machines are those of
`federated/secure`; the bytes are theirs.
"""

import time
from collections.abc import Callable
from typing import Any

from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.settings import AbandonedRoundError, RefusedMessageError, SecureSettings
from fedgram.federated.secure.vectors import total_from_sum, vector_length
from fedgram.federated.task import FederatedTask, Total
from fedgram.flower.fleet import Content, Fleet, Reply, Request
from fedgram.flower.rounds import Abandoned, RoundPlan, Tally, problem_of

STEPS = ("keys", "shares", "masked", "unmasked")
_SHARES_OF_DEADLINE = (0.15, 0.15, 0.5, 0.2)


class MaskedRound:
    """One attempt at a round over (device, node) in the order of asking."""

    def __init__(
        self, fleet: Fleet, order: list[tuple[int, int]], task: FederatedTask[Any], settings: SecureSettings,
        plan: RoundPlan, *, content: Content, state: Content, group: str = "",
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
        on_progress: Callable[[Tally], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._fleet, self._task, self._plan, self._group = fleet, task, plan, group
        self._node = dict(order[: plan.asked])
        self._server = SecureServer(settings, vector_length(task.size))
        self._content, self._state = content, state
        self._clock, self._sleep, self._on_progress = clock, sleep, on_progress
        self.tally = Tally()

    def collect(self) -> Total:
        """The round's total; raises `Abandoned` where there can be none."""
        try:
            requests = self._server.begin(self._node)
            self.tally.asked = len(requests)
            for number, step in enumerate(STEPS):
                self._step(number, step, requests)
                requests = self._server.advance()
            found = self._server.total()
        except AbandonedRoundError as why:
            raise Abandoned(str(why).removeprefix("the round is abandoned: "), self.tally) from None
        self.tally.reports = len(found.devices)
        if self.tally.reports < self._plan.minimum:
            raise Abandoned(f"{self.tally.reports} of at least {self._plan.minimum} reports", self.tally)
        return total_from_sum(self._task, found)

    def _step(self, number: int, step: str, requests: dict[int, bytes]) -> None:
        end = self._clock() + _SHARES_OF_DEADLINE[number] * self._plan.deadline
        waiting = self._send(step, requests, end - self._clock())
        answered = 0
        while waiting and self._clock() < end and not self._enough(step, answered):
            came = 0
            for reply in self._fleet.poll(list(waiting), most=self._plan.batch):
                device = waiting.pop(reply.request, None)
                if device is not None:
                    came += 1
                    answered += self._take(device, reply)
            self._on_progress(self.tally)
            if not came:
                self._sleep(self._plan.poll)
        if step != STEPS[-1] and not self._enough(step, answered):
            self.tally.late += len(waiting)

    def _enough(self, step: str, answered: int) -> bool:
        """Whether nobody needs to be waited for."""
        if step == "unmasked":
            return self._server.can_unmask
        return step == "keys" and answered >= self._plan.devices

    def _send(self, step: str, messages: dict[int, bytes], seconds: float) -> dict[str, int]:
        shared = {**self._content, **(self._state if step == "masked" else {})}
        requests = [
            Request(self._node[device], "secure", {"message": message}, shared, self._group)
            for device, message in messages.items()
        ]
        names = self._fleet.send(requests, seconds=max(seconds, 1.0)) if requests else []
        self.tally.bytes_sent += sum(request.size for request in requests)
        return {name: device for name, device in zip(names, messages, strict=True) if name}

    def _take(self, device: int, reply: Reply) -> bool:
        self.tally.bytes_received += reply.size
        if problem := problem_of(reply):
            self.tally.failed[problem] += 1
            return False
        try:
            self._server.receive(device, (reply.content or {})["answer"])
        except (RefusedMessageError, KeyError):
            self.tally.refused["damaged"] += 1
            return False
        return True
