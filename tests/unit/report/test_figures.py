"""What figures show: the data of their lines and bands, and files that are images."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgb

from fedgram.federated.convergence import Convergence
from fedgram.report import figures
from fedgram.report.figures import (
    dark_twin,
    draw_distribution_convergence,
    draw_likelihood,
    draw_tail_words,
)  # fmt: skip

CONVERGENCE = Convergence([0.0, 0.5, -0.25, 0.1], [10, 15, 17, 18], [True, True, True, False], [1.0, 1.0, 1.0, 0.75])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures that were drawn, the light one first."""
    saved: list[Any] = []
    new = figures._new_figure

    def noted(theme: figures.Theme) -> tuple[Any, Any]:
        figure, axes = new(theme)
        saved.append(figure)
        return figure, axes

    monkeypatch.setattr(figures, "_new_figure", noted)
    return saved


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_figure_2_a(drawn: list[Any], tmp_path: Path) -> None:
    assert is_png(draw_distribution_convergence(CONVERGENCE, tmp_path / "z.png"))
    (axes,) = drawn[0].axes
    assert ([2, 3, 4], [0.5, -0.25, 0.1]) in lines(axes).values()  # a single round has no halves


def test_figure_2_b(drawn: list[Any], tmp_path: Path) -> None:
    assert is_png(draw_tail_words(CONVERGENCE, tmp_path / "tail.png", capacity=16, whitelist=20))
    left, right = drawn[0].axes
    assert lines(left)["whitelist words seen"] == ([1, 2, 3, 4], [10, 15, 17, 18])
    assert lines(right)["rounds with new words"] == ([1, 2, 3, 4], [1.0, 1.0, 1.0, 0.75])
    (band,) = left.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == (16, 20)
    assert band.get_label() == "size of the model (16) and of the whitelist (20)"


def test_figure_4(drawn: list[Any], tmp_path: Path) -> None:
    curves = {"W_30K": [(0, -50.0), (10, -40.0)], "P_4K-S": [(0, -60.0), (10, -45.0)], "P_30K": [(10, -44.0)]}
    assert is_png(draw_likelihood(curves, tmp_path / "sll.png", chosen=["W_30K"]))
    (axes,) = drawn[0].axes
    found = lines(axes)
    assert found == {name: ([x for x, _ in points], [y for _, y in points]) for name, points in curves.items()}
    styles = {line.get_label(): (line.get_linestyle(), line.get_linewidth()) for line in axes.get_lines()}
    assert styles["W_30K"][0] == "-" != styles["P_4K-S"][0]
    assert styles["W_30K"][1] > styles["P_4K-S"][1]
    assert len({line.get_color() for line in axes.get_lines()}) == 3


def test_seven_curves_can_be_told_apart(drawn: list[Any], tmp_path: Path) -> None:
    draw_likelihood({f"P_{i}": [(0, -i), (1, -i)] for i in range(7)}, tmp_path / "sll.png", chosen=["P_2"])
    (axes,) = drawn[0].axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
    assert len(looks) == 7


def test_every_figure_has_a_dark_twin(drawn: list[Any], tmp_path: Path) -> None:
    path = draw_likelihood({"R_W (W_30K)": [(0, -50.0), (10, -40.0)]}, tmp_path / "sll.png", dark=True)
    assert is_png(dark_twin(path))
    light, dark = drawn
    assert [figure.get_facecolor()[:3] < (0.5, 0.5, 0.5) for figure in drawn] == [False, True]
    for figure, bright in ((light, False), (dark, True)):
        (label,) = figure.axes[0].get_legend().get_texts()
        assert label.get_text() == "$R_{W}$ (W_30K)"
        assert (sum(to_rgb(label.get_color())) > 1.5) == bright
