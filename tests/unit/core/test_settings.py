"""Settings take the numbers of numpy as those of Python, and nothing that merely resembles a number."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

from fedgram.core.settings import AtLeastOne, Between, Limit, SettingError, Settings, setting


@dataclass(frozen=True, slots=True)
class Options(Settings):
    rounds: AtLeastOne = setting(1, "A whole number.")
    clip: Limit = setting(1.0, "A number.")
    orders: Annotated[tuple[int, ...], Between(1)] = setting((1,), "Whole numbers.")
    shares: tuple[float, ...] = setting((0.5,), "Numbers.")


def test_numbers_of_numpy_become_those_of_python() -> None:
    options = Options(
        rounds=np.int32(3), clip=np.float32(0.5), orders=(np.uint8(1), 2), shares=[np.float64(0.25), np.int64(1)]  # type: ignore[arg-type]
    )  # fmt: skip
    assert options == Options(rounds=3, clip=0.5, orders=(1, 2), shares=(0.25, 1.0))
    assert [type(value) for value in (options.rounds, options.clip, *options.orders, *options.shares)] == [
        int, float, int, int, float, float
    ]  # fmt: skip
    assert Options(clip=np.float32("inf")).clip == float("inf")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [True, np.True_, 2.0, np.float64(2), "2", np.int64(0), None])
def test_what_is_no_whole_number_is_refused(wrong: Any) -> None:
    with pytest.raises(SettingError, match="rounds must be a whole number at least 1, not "):
        Options(rounds=wrong)


@pytest.mark.parametrize("wrong", [True, np.False_, "1", 1j, np.nan, np.float32(-1), 10**400])
def test_what_is_no_number_is_refused(wrong: Any) -> None:
    with pytest.raises(SettingError, match="clip must be a number above 0, not "):
        Options(clip=wrong)
