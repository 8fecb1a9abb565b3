"""A round without masking: the server sees each device's update, checks it, and adds it to the sum at once.

    invite ⌈n·over⌉ devices in the order of the round's draw
    until n have reported or the deadline has passed:
        check a report and add it to the sum
        for a device that fails, declines or is refused, invite the next one of the draw
    with n_min reports or more there is a sum; with fewer the attempt is abandoned, and nothing of it is kept

Replies are fetched in batches and added as they come, so the server's memory does not depend on the size of the cohort.
Each device is invited once per attempt, so none is counted twice. Paper: §3.1; Bonawitz et al. 2019.
"""

from itertools import islice

from fedgram.deployment.attempt import Attempt, sorted_devices
from fedgram.federated.fleet import AbandonedAttemptError, RoundSum
from fedgram.federated.intake import Intake


class PlainRound:
    """An attempt at a plain round."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt, self._tally, self._plan = attempt, attempt.tally, attempt.call.plan
        self._shared = {**attempt.shared, "broadcast": attempt.broadcast}
        self._following, self._waiting = iter(attempt.nodes), dict[str, int]()
        self._intake = Intake(attempt.job.task, attempt.nodes)
        self._end = attempt.clock() + attempt.timeouts.deadline

    def collect(self) -> RoundSum:
        """The round's sum; raises `AbandonedAttemptError` with too few reports."""
        attempt, tally, wanted = self._attempt, self._tally, self._plan.devices
        self._invite(self._plan.invited)
        while tally.reports < wanted and attempt.clock() < self._end:
            self._invite(wanted - tally.reports - len(self._waiting))
            if not self._waiting:
                break
            came = self._receive()
            attempt.on_progress(tally)
            if not came and self._waiting:
                attempt.sleep(attempt.timeouts.poll)
        tally.late += len(self._waiting)
        participants = sorted_devices(self._intake.participants | attempt.took_part)
        if tally.reports < self._plan.minimum:
            raise AbandonedAttemptError(self._why(), tally, participants)
        tally.empty = self._intake.empty
        return RoundSum(self._intake.total, participants, tally)

    def _invite(self, count: int) -> None:
        """Invite the next devices of the draw."""
        chosen = list(islice(self._following, max(count, 0)))
        seconds = self._end - self._attempt.clock()
        self._waiting |= self._attempt.send("report", {device: {} for device in chosen}, self._shared, seconds=seconds)
        self._tally.invited += len(chosen)

    def _receive(self) -> int:
        """Add the reports that have come; returns how many devices replied."""
        came = 0
        for device, content in self._attempt.replies(self._waiting):
            came += 1
            if content is None:
                continue
            if reason := self._intake.offer(device, content.get("update", b"")):
                self._tally.refused[reason] += 1
            else:
                self._tally.reports += 1
            if self._tally.reports >= self._plan.devices:
                break
        return came

    def _why(self) -> str:
        tally = self._tally
        causes = [f"{n} {reason}" for reason, n in (tally.failed + tally.refused).items()]
        causes += [f"{tally.late} late"] if tally.late else []
        late = self._attempt.clock() >= self._end
        end = "by the deadline" if late else "and no device is left to invite"
        return f"{tally.reports} of at least {self._plan.minimum} reports {end} ({', '.join(causes) or 'no device'})"
