"""The server's side of a federation: the tasks' rounds over a fleet, each committed before the next begins.

`server_update` and everything after it are the in-process driver's. A crash loses the round that was going on and
nothing else: a round's sum lives in memory alone until the state after it is on the disk.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram.core.errors import FedgramError
from fedgram.federated.intake import Intake
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.task import FederatedTask, Total
from fedgram.federated.unigram_collection import UnigramState
from fedgram.flower.fleet import Content, Fleet, Request
from fedgram.flower.job import FedAvgJob, Job, UnigramJob, fedavg_state, job_digest, job_to_bytes, unigram_state
from fedgram.flower.ledger import read_rounds, write_round
from fedgram.flower.masked_round import MaskedRound
from fedgram.flower.roster import Roster
from fedgram.flower.rounds import Abandoned, RoundPlan, Tally, collect, order_of_asking

if TYPE_CHECKING:
    from fedgram.fedavg.run import RunOptions, RunResult
    from fedgram.fedavg.task import FedAvgState
    from fedgram.neural.network import WeightArrays
    from fedgram.neural.scoring import ScoredText

Tell = Callable[[str, Mapping[str, Any]], object]


class Server:
    """Runs a job's rounds over a fleet; `tell` is told of what happens, in words and numbers, never in text."""

    def __init__(
        self, fleet: Fleet, job: Job, plan: RoundPlan, *, masking: SecureSettings | None = None,
        tell: Tell = lambda *_: None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.fleet, self.job, self.plan, self.masking, self.tell = fleet, job, plan, masking, tell
        self._clock, self._sleep = clock, sleep
        content = job_to_bytes(job)
        self._digest = job_digest(content).encode()
        self.roster = Roster(fleet, content, clock=clock, sleep=sleep)

    def round(self, number: int, task: FederatedTask[Any], state: bytes) -> Total:
        """The sum of a round's updates; a round with too few is tried again."""
        last = ""

        def waiting(about: Mapping[str, Any]) -> None:
            self.tell("waiting", {"round": number, **about})

        for attempt in range(self.plan.attempts):
            present = self.roster.wait_for(self.plan.wait_for, self.plan.wait_seconds, on_wait=waiting)
            order = order_of_asking(list(present), seed=self.job.seed, round_number=number, attempt=attempt)
            began = self._clock()
            self.tell("round began", {"round": number, "attempt": attempt, "devices": len(present)})
            try:
                total, tally = self._attempt(number, task, state, [(device, present[device]) for device in order])
            except Abandoned as why:
                last = str(why)
                self.tell("round abandoned", {"round": number, "why": last, **why.tally.fields()})
                self._mind(why.tally)
                self._sleep(min(2.0**attempt, 30.0))
                continue
            seconds = round(self._clock() - began, 3)
            self.tell("round summed", {"round": number, "seconds": seconds, **tally.fields()})
            self._mind(tally)
            return total
        times = f"{self.plan.attempts} times, the last time because: {last}"
        raise FedgramError(f"round {number} was abandoned {times}; the state before it is kept")

    def _attempt(
        self, number: int, task: FederatedTask[Any], state: bytes, order: list[tuple[int, int]]
    ) -> tuple[Total, Tally]:
        """The sum of the updates of devices in this order, masked on the way or not; it is whole, or there is none."""
        job, own = {"job": self._digest}, {"state": state}

        def on_progress(tally: Tally) -> None:
            self.tell("progress", {"round": number, **tally.fields()})

        if self.masking is not None:
            masked = MaskedRound(
                self.fleet, order, task, self.masking, self.plan, content=job, state=own, group=str(number),
                clock=self._clock, sleep=self._sleep, on_progress=on_progress,
            )  # fmt: skip
            return masked.collect(), masked.tally
        intake, shared = Intake(task, (device for device, _ in order)), {**job, **own}

        def fold(device: int, content: Content) -> str | None:
            return intake.offer(device, content.get("update", b""))

        tally = collect(
            self.fleet, order, lambda node: Request(node, "report", {}, shared, str(number)), fold, self.plan,
            clock=self._clock, sleep=self._sleep, on_progress=on_progress,
        )  # fmt: skip
        return intake.total, tally

    def _mind(self, tally: Tally) -> None:
        if tally.failed["NotKnown"]:  # a device lost the job, as one does that is set up anew
            self.roster.forget()


def run_unigrams(
    server: Server, job: UnigramJob, rounds: int, folder: Path, settings: Mapping[str, Any]
) -> UnigramState:
    """Collect, from the beginning or from the last round that was committed in the folder."""
    task = job.task()
    state = read_rounds(folder, settings)
    for number in range(len(state.rounds) + 1, rounds + 1):
        total = server.round(number, task, unigram_state(number))
        state = task.server_update(state, total)
        write_round(folder, number, state.rounds[-1], settings)
        server.tell("round committed", {"round": number, "reports": total.devices})
    return UnigramState(state.rounds[:rounds])


def run_fedavg(
    server: Server, job: FedAvgJob, start: "WeightArrays", options: "RunOptions", dev: "ScoredText | None",
    folder: Path, settings: Mapping[str, Any],
) -> "RunResult":  # fmt: skip
    """Train, from the beginning or from the newest checkpoint in the folder."""
    from fedgram.fedavg.engine import RoundReport
    from fedgram.fedavg.run import follow
    from fedgram.fedavg.task import TARGETS, FederatedAveraging

    task = FederatedAveraging(job.shape, start, job.plan)

    def one_round(state: "FedAvgState", _: Mapping[str, Any]) -> tuple[Total, RoundReport, int]:
        total = server.round(state.round + 1, task, fedavg_state(state))
        return total, RoundReport(total.devices, 0, int(total.array(TARGETS)[0])), 0

    return follow(
        task, one_round, dev, options, pieces=job.coding.pieces is not None, folder=folder, settings=settings,
        resume=True,
        on_round=lambda m: server.tell("round committed", {"round": m.round, "loss": m.loss}),
    )  # fmt: skip
