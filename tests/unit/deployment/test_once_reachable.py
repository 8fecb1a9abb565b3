"""A device that starts before its server waits for it, and says so once."""

import pytest
from tests.unit.deployment.transports import Clock

from fedgram.core.errors import FedgramError
from fedgram.deployment.checks import UnreachableError, once_reachable


def test_it_acts_once_the_server_answers_and_says_once_that_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    clock, tries = Clock(), list[float]()

    def act() -> str:
        tries.append(clock())
        if len(tries) < 4:
            raise UnreachableError("no server answers")
        return "done"

    assert once_reachable(act, 60.0, clock=clock, sleep=clock.sleep) == "done"
    assert tries == [0.0, 1.0, 2.0, 3.0]
    assert capsys.readouterr().err == "fedgram: no server answers; waiting for it\n"


@pytest.mark.parametrize(("seconds", "tries"), [(0.0, 1), (2.0, 3)])
def test_it_gives_up_in_time(seconds: float, tries: int) -> None:
    clock, made = Clock(), list[float]()

    def act() -> None:
        made.append(clock())
        raise UnreachableError("no server answers")

    with pytest.raises(UnreachableError):
        once_reachable(act, seconds, clock=clock, sleep=clock.sleep)
    assert len(made) == tries


def test_what_waiting_does_not_mend_is_raised_at_once() -> None:
    def act() -> None:
        raise FedgramError("another authority")

    clock = Clock()
    with pytest.raises(FedgramError, match="another authority"):
        once_reachable(act, 60.0, clock=clock, sleep=clock.sleep)
    assert clock() == 0.0
