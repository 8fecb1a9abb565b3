"""Curves of time by size: exponents of power laws, and figures."""

import json
from pathlib import Path

import pytest
from benchmarks.scaling import SIZES, TITLES, draw, exponent, larger_half, measured, saved


@pytest.mark.parametrize("slope", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law(slope: float) -> None:
    assert exponent([(n, 3.0 * n**slope) for n in (10, 100, 1000, 10_000, 100_000)]) == pytest.approx(slope)


def test_fixed_costs_of_small_sizes_do_not_count() -> None:
    points = [(1, 50.0), (10, 50.0), (100, 100.0), (1000, 1000.0)]
    assert larger_half(points) == points[2:]
    assert exponent(points) == pytest.approx(1.0)


def test_a_power_law_needs_two_points() -> None:
    assert exponent([(10, 1.0)]) is None


def test_sizes_are_those_of_the_description() -> None:
    ends = {name: (sizes[0], sizes[-1]) for name, sizes in SIZES.items()}
    assert ends == {
        "ngrams": (10_000, 5_000_000), "clients": (100, 342_477), "samples": (10_000, 10_000_000), "devices": (50, 500)
    }  # fmt: skip
    assert TITLES.keys() == SIZES.keys()


def test_a_curve_stops_at_the_largest_size() -> None:
    points = measured("clients", 0.003)
    assert [size for size, _, _ in points] == [100, 1000]
    assert all(took > 0 and memory > 0 for _, took, memory in points)


def test_a_figure_has_every_curve(tmp_path: Path) -> None:
    draw({name: [(n, n / 7) for n in sizes] for name, sizes in SIZES.items()}, tmp_path / "scaling.svg")
    drawn = (tmp_path / "scaling.svg").read_text()
    assert drawn.startswith("<?xml")
    assert all(f"<!-- {title} -->" in drawn for title in TITLES.values())


def test_saved_points_are_those_of_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.scaling.RESULTS", tmp_path)
    title = TITLES["samples"]
    rows = [{"curve": title, "size": n, "seconds": n / 4} for n in (10, 20)]
    (tmp_path / "scaling.json").write_text(json.dumps([*rows, {"curve": title, "size": "exponent", "seconds": 1.0}]))
    assert saved() == {"samples": [(10, 2.5), (20, 5.0)]}
