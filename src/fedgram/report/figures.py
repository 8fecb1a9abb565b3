"""Figures as PNG files, with matplotlib. Colours are the colour-blind safe ones of Okabe and Ito."""

from pathlib import Path
from typing import Any

from fedgram.core.errors import MissingDependencyError
from fedgram.core.storage import atomic_write
from fedgram.federated.convergence import Convergence

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"


def _new_figure() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("drawing figures", "plots") from None
    figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    with atomic_write(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
    return path


def draw_distribution_convergence(convergence: Convergence, path: Path) -> Path:
    """Figure 2 (a): the Z statistic between the first and the second half of the rounds, against rounds."""
    figure, axes = _new_figure()
    rounds = range(2, len(convergence.z) + 1)
    axes.axhline(0.0, color=GREY, linewidth=1.0)
    axes.plot(rounds, convergence.z[1:], color=BLUE, linewidth=1.6, label="Z, first half against second half")
    axes.set_xlabel("round")
    axes.set_ylabel("Z statistic (0: the same distribution)")
    axes.set_title("Convergence of the unigram distribution")
    axes.legend(frameon=False)
    return _save(figure, path)


def draw_tail_words(convergence: Convergence, path: Path, *, capacity: int, whitelist: int) -> Path:
    """Figure 2 (b): words seen, with a band from the model's unigram capacity to the whitelist's size, and the moving
    average of rounds that bring new words.
    """
    figure, axes = _new_figure()
    rounds = range(1, len(convergence.unique) + 1)
    low, high = sorted((capacity, whitelist))
    axes.axhspan(low, high, color=GREY, alpha=0.25, linewidth=0, label=f"from {low:,} to {high:,} words")
    (seen,) = axes.plot(rounds, convergence.unique, color=BLUE, linewidth=1.8, label="whitelist words seen")
    axes.set_ylim(0, high * 1.05)
    axes.set_xlabel("round")
    axes.set_ylabel("words", color=BLUE)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}K" if value else "0")
    right = axes.twinx()
    right.spines["top"].set_visible(False)
    (new,) = right.plot(
        rounds, convergence.moving_average, color=ORANGE, linewidth=1.4, linestyle="--", label="rounds with new words"
    )
    right.set_ylim(0, 1.05)
    right.set_ylabel("share of recent rounds with new words", color=ORANGE)
    band = axes.patches[0]
    axes.legend(handles=[seen, new, band], frameon=False, loc="center right")
    axes.set_title("Learning the tail of the vocabulary")
    return _save(figure, path)
