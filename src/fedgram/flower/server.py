"""The server's side of a federation: the tasks' rounds over a fleet, each committed before the next begins.

`server_update` and everything after it are the in-process driver's. A crash loses the round that was going on and
nothing else: a round's sum lives in memory alone until the state after it is on the disk.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgram.core.errors import FedgramError
from fedgram.federated.task import FederatedTask, Total
from fedgram.federated.unigram_collection import UnigramState
from fedgram.federated.wire import update_from_bytes
from fedgram.flower.fleet import Content, Fleet, Request
from fedgram.flower.job import FedAvgJob, Job, UnigramJob, fedavg_state, job_digest, job_to_bytes, unigram_state
from fedgram.flower.ledger import read_rounds, write_round
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
        self, fleet: Fleet, job: Job, plan: RoundPlan, *, tell: Tell = lambda *_: None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.fleet, self.job, self.plan, self.tell = fleet, job, plan, tell
        self._clock, self._sleep = clock, sleep
        content = job_to_bytes(job)
        self._digest = job_digest(content).encode()
        self.roster = Roster(fleet, content, clock=clock, sleep=sleep)

    def round(self, number: int, task: FederatedTask[Any], state: bytes) -> Total:
        """The sum of a round's updates; a round with too few is tried again."""
        content = {"job": self._digest, "state": state}
        for attempt in range(self.plan.attempts):
            present = self.roster.wait_for(self.plan.wait_for, self.plan.wait_seconds)
            order = order_of_asking(list(present), seed=self.job.seed, round_number=number, attempt=attempt)
            total = Total.zero(task.size, task.bits)
            began = self._clock()
            self.tell("round began", {"round": number, "attempt": attempt, "devices": len(present)})
            try:
                tally = collect(
                    self.fleet, [(device, present[device]) for device in order],
                    lambda node: Request(node, "report", content, str(number)), self._fold(total), self.plan,
                    clock=self._clock, sleep=self._sleep,
                    on_progress=lambda t: self.tell("progress", {"round": number, **t.fields()}),
                )  # fmt: skip
            except Abandoned as why:
                self.tell("round abandoned", {"round": number, "why": str(why), **why.tally.fields()})
                self._mind(why.tally)
                self._sleep(min(2.0**attempt, 30.0))
                continue
            seconds = round(self._clock() - began, 3)
            self.tell("round summed", {"round": number, "seconds": seconds, **tally.fields()})
            self._mind(tally)
            return total
        raise FedgramError(f"round {number} was abandoned {self.plan.attempts} times; the state before it is kept")

    def _mind(self, tally: Tally) -> None:
        if tally.failed["NotKnown"]:  # a device lost the job, as one does that is set up anew
            self.roster.forget()

    def _fold(self, total: Total) -> Callable[[int, Content], str | None]:
        """What takes a report into the total; whatever a device sends, the total stays sane."""
        counted: set[int] = set()

        def fold(device: int, content: Content) -> str | None:
            if device in counted:
                return "counted already"
            try:
                update = update_from_bytes(content["update"])
                if update.size != {name: len(array) for name, array in total.arrays.items()}:
                    return "other vectors"
                trial = self.job.check(update)
                if trial is None:
                    total.add(update)
            except (FedgramError, KeyError, ValueError, TypeError, OverflowError):
                return "malformed"
            if trial is None:
                counted.add(device)
            return trial

        return fold


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

    def one_round(state: "FedAvgState") -> tuple[Total, RoundReport, int]:
        total = server.round(state.round + 1, task, fedavg_state(state))
        return total, RoundReport(total.devices, 0, int(total.array(TARGETS)[0])), 0

    return follow(
        task, one_round, dev, options, pieces=job.coding.pieces is not None, folder=folder, settings=settings,
        resume=True,
        on_round=lambda m: server.tell("round committed", {"round": m.round, "loss": m.loss}),
    )  # fmt: skip
