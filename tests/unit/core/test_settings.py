"""Settings take the numbers of numpy as those of Python, and nothing that merely resembles a number."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from fedgram.core.errors import InputError
from fedgram.core.settings import (
    AtLeastOne,
    Between,
    Limit,
    Needs,
    Positive,
    SettingError,
    Settings,
    Share,
    chosen,
    setting,
    without_effect,
)
from fedgram.core.toml_config import digest, from_table, read_config


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


def test_a_setting_has_no_effect_without_what_it_needs() -> None:
    dp, limit = Needs("protection", ("dp", "both")), Needs("limit", otherwise="nothing is limited")
    given = {"epsilon": (dp,), "delta": (dp,), "rule": (limit,), "seed": ()}
    met = {"protection": ("both", "none"), "limit": (2.0, 1.0)}
    assert without_effect(given, met) is None
    assert without_effect(given, {**met, "protection": ("none", "none")}) == (("epsilon", "delta"), dp)
    assert without_effect(given, {**met, "protection": ("other", "none")}) == (("epsilon", "delta"), dp)
    assert without_effect(given, {**met, "limit": (1.0, 1.0)}) == (("rule",), limit)
    assert without_effect(given, {}) is None  # where there is no such setting, it is not needed
    assert without_effect({"seed": ()}, {"protection": ("none", "none")}) is None


@dataclass(frozen=True, slots=True)
class Bounds(Settings):
    share: Share = setting(0.5, "A share.", formerly="part")
    rate: Positive = setting(1.0, "A rate.")
    both: Annotated[float, Between(above=0, high=2)] = setting(1.0, "Above 0 and at most 2.")


@pytest.mark.parametrize(("name", "value"), [("share", 0.0), ("share", 1.0), ("rate", 1e-300), ("both", 2.0)])
def test_the_ends_of_bounds_are_allowed(name: str, value: float) -> None:
    assert getattr(Bounds(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("share", -1e-9), ("share", 1 + 1e-9), ("rate", 0.0), ("rate", float("inf")), ("both", 0.0), ("both", 2 + 1e-9)],
)
def test_what_is_just_outside_of_bounds_is_refused(name: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"{name} must be a number"):
        Bounds(**{name: value})


@pytest.mark.parametrize("wrong", [(), (1, 0), (2, 3, -1)])
def test_every_number_of_an_array_is_checked_and_there_is_one(wrong: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match="orders must be an array"):
        Options(orders=wrong)


def test_options_are_an_object_or_keywords_but_not_both() -> None:
    assert chosen(Bounds, None, {"rate": 2.0}) == Bounds(rate=2.0)
    assert chosen(Bounds, Bounds(rate=3.0), {}) == Bounds(rate=3.0)
    with pytest.raises(TypeError, match="give either a Bounds or its fields, not both"):
        chosen(Bounds, Bounds(), {"rate": 2.0})
    with pytest.raises(TypeError, match="unknown setting 'rat'"):
        chosen(Bounds, None, {"rat": 2.0})


def test_a_key_is_given_once_whatever_its_name() -> None:
    assert from_table({"part": 0.25}, Bounds) == Bounds(share=0.25)
    with pytest.raises(InputError, match="unknown key share"):
        from_table({"part": 0.25, "share": 0.5}, Bounds)


def test_the_digest_of_a_configuration_ignores_the_order_of_its_keys() -> None:
    assert digest({"a": 1, "b": [2, {"c": 3, "d": 4}]}) == digest({"b": [2, {"d": 4, "c": 3}], "a": 1})
    assert digest(Bounds()) != digest(Bounds(rate=2.0))


def test_a_configuration_of_more_than_256_kib_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"rate = 2\n#" + b"x" * ((1 << 18) - 10))
    assert read_config(path, Bounds) == Bounds(rate=2.0)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(InputError, match="more than 256 KiB"):
        read_config(path, Bounds)
