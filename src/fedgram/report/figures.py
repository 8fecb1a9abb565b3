"""Figures as PNG files, drawn with matplotlib in the colour-blind safe palette of Okabe and Ito.

With `dark`, a figure is drawn twice: `x.png` for light pages, and `x-dark.png` for dark ones.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgram.core.errors import MissingDependencyError
from fedgram.core.storage import atomic_write
from fedgram.federated.convergence import Convergence

_DASHES = ("--", "-.", ":")


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a figure: the page, text and axes, the grid, and those of the lines."""

    paper: str
    ink: str
    grid: str
    lines: tuple[str, ...]

    @property
    def grey(self) -> str:
        """The colour of what is only there to compare with."""
        return "#8b949e"


LIGHT = Theme(
    "#ffffff", "#1b1f24", "#e4e8ec", ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
)
DARK = Theme(
    "#0d1117", "#e6edf3", "#262c34", ("#56B4E9", "#E69F00", "#2fbf94", "#e39ac6", "#f0e442", "#6f9cff", "#ffffff")
)


def dark_twin(path: Path) -> Path:
    """Where the dark figure beside a light one is.

    >>> dark_twin(Path("report/z.png")).name
    'z-dark.png'
    """
    return path.with_name(f"{path.stem}-dark{path.suffix}")


def typeset(name: str) -> str:
    """The name of a model as the tables have it: A_W_e becomes A with W and e below it.

    >>> typeset("R_W (p_13m)")
    '$R_{W}$ (p_13m)'
    """
    below = r"$\1_{\2}$"
    name = re.sub(r"\b([AR])_([WP])_([eimr])\b", r"$\1_{\2_{\3}}$", name)
    return re.sub(r"\b([AR])_([WP])\b", below, name)


def _new_figure(theme: Theme) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("drawing figures", "plots") from None
    figure = Figure(figsize=(9.6, 4.4), dpi=150, layout="constrained", facecolor=theme.paper)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _dress(axes, theme)
    axes.grid(visible=True, color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _dress(axes: Any, theme: Theme) -> None:
    """The theme's colours, larger text, and no frame."""
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.ink, labelsize=11)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(theme.grey)


def _finish(axes: Any, theme: Theme, x: str, y: str) -> None:
    axes.set_xlabel(x, color=theme.ink, fontsize=12)
    axes.set_ylabel(y, color=theme.ink, fontsize=12)


def _draw(path: Path, draw: Callable[[Any, Any, Theme], None], *, dark: bool) -> Path:
    """Draw a figure for light pages and, with `dark`, its twin for dark ones."""
    for theme, target in ((LIGHT, path), (DARK, dark_twin(path)))[: 1 + dark]:
        figure, axes = _new_figure(theme)
        draw(figure, axes, theme)
        with atomic_write(target) as file:
            figure.savefig(file, format="png", metadata={"Software": None}, facecolor=theme.paper)
    return path


def draw_distribution_convergence(convergence: Convergence, path: Path, *, dark: bool = False) -> Path:
    """Figure 2 (a): the Z statistic between the first and the second half of the rounds, by round."""

    def draw(_: Any, axes: Any, theme: Theme) -> None:
        rounds = range(2, len(convergence.z) + 1)
        axes.axhline(0.0, color=theme.grey, linewidth=1.2)
        axes.plot(rounds, convergence.z[1:], color=theme.lines[0], linewidth=2.0)
        _finish(axes, theme, "round", "Z statistic (0: equal distributions)")

    return _draw(path, draw, dark=dark)


def draw_tail_words(convergence: Convergence, path: Path, *, capacity: int, whitelist: int, dark: bool = False) -> Path:
    """Figure 2 (b): the number of words seen, and the moving average of rounds with new words, by round.

    A band marks the range from the model's unigram capacity to the size of the whitelist.
    """
    low, high = sorted((capacity, whitelist))

    def draw(_: Any, axes: Any, theme: Theme) -> None:
        rounds = range(1, len(convergence.unique) + 1)
        blue, orange = theme.lines[:2]
        sizes = f"size of the model ({capacity:,}) and of the whitelist ({whitelist:,})"
        band = axes.axhspan(low, high, color=theme.grey, alpha=0.25, linewidth=0, label=sizes)
        (seen,) = axes.plot(rounds, convergence.unique, color=blue, linewidth=2.2, label="whitelist words seen")
        axes.set_ylim(0, high * 1.05)
        _finish(axes, theme, "round", "words")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}K" if value else "0")
        right = axes.twinx()
        _dress(right, theme)
        (new,) = right.plot(
            rounds, convergence.moving_average, color=orange, linewidth=1.8, linestyle="--",
            label="rounds with new words",
        )  # fmt: skip
        right.set_ylim(0, 1.05)
        right.set_ylabel("share of recent rounds with new words", color=theme.ink, fontsize=12)
        axes.legend(handles=[seen, new, band], frameon=False, loc="center right", labelcolor=theme.ink, fontsize=11)

    return _draw(path, draw, dark=dark)


def draw_likelihood(
    curves: Mapping[str, Sequence[tuple[int, float]]], path: Path, *, chosen: Sequence[str] = (), dark: bool = False
) -> Path:
    """Figure 4: SLL^e per sentence by training round; the lines of chosen models are thick and solid."""

    def draw(_: Any, axes: Any, theme: Theme) -> None:
        for i, (name, points) in enumerate(curves.items()):
            axes.plot(
                [round_ for round_, _ in points], [value for _, value in points], label=typeset(name),
                color=theme.lines[i % len(theme.lines)], linewidth=2.6 if name in chosen else 1.6,
                linestyle="-" if name in chosen or not chosen else _DASHES[i % len(_DASHES)],
                marker="o" if len(points) == 1 else None,
            )  # fmt: skip
        _finish(axes, theme, "round", "SLL$^e$ per sentence [nats]")
        axes.legend(frameon=False, loc="lower right", labelcolor=theme.ink, fontsize=11)

    return _draw(path, draw, dark=dark)


def draw_exposure(curves: Mapping[str, Sequence[tuple[int, float]]], path: Path, *, dark: bool = False) -> Path:
    """The exposure of planted secrets in bits by the number of devices that hold them, by model."""
    ticks = sorted({holders for points in curves.values() for holders, _ in points if holders})

    def draw(_: Any, axes: Any, theme: Theme) -> None:
        for i, (name, points) in enumerate(curves.items()):
            held = [(holders, bits) for holders, bits in points if holders]
            colour = theme.lines[i % len(theme.lines)]
            axes.plot(
                [h for h, _ in held], [bits for _, bits in held], "o-", color=colour, linewidth=2.0, label=typeset(name)
            )
            for _, bits in (point for point in points if not point[0]):
                axes.axhline(bits, color=colour, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        _finish(axes, theme, "devices that hold a secret", "mean exposure [bits]")
        axes.legend(frameon=False, labelcolor=theme.ink, fontsize=11)

    return _draw(path, draw, dark=dark)
