"""The settings of privacy: parts of a budget, whom a device stands for, and the least threshold."""

from math import sqrt
from typing import Any

import pytest

from fedgram.core.settings import SettingError
from fedgram.privacy.accounting import Gaussian, compose
from fedgram.privacy.gaussian import multiplier_for
from fedgram.privacy.options import PrivacyOptions


@pytest.mark.parametrize("shares", [(1.0,), (0.25, 0.75), (0.2, 0.3, 0.5)])
def test_the_parts_of_a_budget_cost_the_whole_of_it_together(shares: tuple[float, ...]) -> None:
    whole = PrivacyOptions("dp", epsilon=2.0, delta=1e-7)
    parts = [whole.part(share) for share in shares]
    assert compose([part.event for part in parts], 1e-7).epsilon == pytest.approx(2.0, rel=1e-6)
    for part, share in zip(parts, shares, strict=True):
        assert part.event.multiplier == pytest.approx(multiplier_for(2.0, 1e-7) / sqrt(share), rel=1e-6)
        assert part.delta == 1e-7
    assert whole.event == Gaussian(multiplier_for(2.0, 1e-7))


def test_without_noise_a_part_has_all_that_protects() -> None:
    for protection in ("threshold", "none"):
        whole = PrivacyOptions(protection, min_devices=7)
        assert whole.part(0.25) == whole


def test_only_with_noise_and_in_a_simulation_a_device_stands_for_many() -> None:
    assert PrivacyOptions("dp", simulated=1000).stands_for(10) == 100.0
    assert PrivacyOptions("dp", simulated=1000).stands_for(0) == 1.0
    assert PrivacyOptions("dp").stands_for(10) == 1.0
    for protection in ("threshold", "none"):
        for devices in (10, None):
            assert PrivacyOptions(protection, simulated=1000).stands_for(devices) == 1.0


def test_a_device_of_a_federation_cannot_stand_for_many() -> None:
    assert PrivacyOptions("dp").stands_for(None) == 1.0
    with pytest.raises(SettingError, match="a device of a federation stands for one user"):
        PrivacyOptions("dp", simulated=1000).stands_for(None)


def test_a_threshold_is_of_two_devices_at_least() -> None:
    """The n-grams of one device are those of one user."""
    assert PrivacyOptions(min_devices=2, network_devices=2).min_devices == 2
    for name in ("min_devices", "network_devices"):
        for value in (1, 0, -1):
            wrong: dict[str, Any] = {name: value}
            with pytest.raises(SettingError) as error:
                PrivacyOptions(**wrong)
            assert error.value.name == name
    with pytest.raises(SettingError, match="at most min_devices, 3"):
        PrivacyOptions(min_devices=3, network_devices=4)
