"""Figures as PNG files, drawn with matplotlib, in the colour-blind safe palette of Okabe and Ito."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgram.core.errors import MissingDependencyError
from fedgram.core.storage import atomic_write
from fedgram.evaluate.jackknife import Estimate
from fedgram.federated.convergence import Convergence

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"
_COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("--", "-.", ":")


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
    """Figure 2 (a): the Z statistic between the first and the second half of the rounds, by round."""
    figure, axes = _new_figure()
    rounds = range(2, len(convergence.z) + 1)
    axes.axhline(0.0, color=GREY, linewidth=1.0)
    axes.plot(rounds, convergence.z[1:], color=BLUE, linewidth=1.6, label="Z between the first and the second half")
    axes.set_xlabel("round")
    axes.set_ylabel("Z statistic (0: equal distributions)")
    axes.set_title("Convergence of the unigram distribution")
    axes.legend(frameon=False)
    return _save(figure, path)


def draw_tail_words(convergence: Convergence, path: Path, *, capacity: int, whitelist: int) -> Path:
    """Figure 2 (b): the number of words seen, and the moving average of rounds with new words, by round.

    A band marks the range from the model's unigram capacity to the size of the whitelist.
    """
    figure, axes = _new_figure()
    rounds = range(1, len(convergence.unique) + 1)
    low, high = sorted((capacity, whitelist))
    axes.axhspan(low, high, color=GREY, alpha=0.25, linewidth=0, label=f"{low:,} to {high:,} words")
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


def draw_likelihood(
    curves: Mapping[str, Sequence[tuple[int, float]]], path: Path, *, chosen: Sequence[str] = ()
) -> Path:
    """Figure 4: SLL^e per sentence by training round; the lines of chosen models are thick and solid."""
    figure, axes = _new_figure()
    for i, (name, points) in enumerate(curves.items()):
        axes.plot(
            [round_ for round_, _ in points], [value for _, value in points], label=name,
            color=_COLOURS[i % len(_COLOURS)], linewidth=2.4 if name in chosen else 1.3,
            linestyle="-" if name in chosen or not chosen else _DASHES[i % len(_DASHES)],
            marker="o" if len(points) == 1 else None,
        )  # fmt: skip
    axes.set_xlabel("round")
    axes.set_ylabel("SLL$^e$ per sentence [nats]")
    axes.set_title("Federated training of the networks (SLL$^e$)")
    axes.legend(frameon=False, loc="lower right")
    return _save(figure, path)


def draw_accuracies(levels: Mapping[str, Estimate], path: Path, *, baseline: str | None = None) -> Path:
    """Top-1 accuracy of all models in per cent, with 95 % intervals; a line marks the baseline."""
    figure, axes = _new_figure()
    figure.set_figheight(1.4 + 0.34 * len(levels))
    for row, (name, estimate) in enumerate(levels.items()):
        low, high = estimate.interval or (estimate.value, estimate.value)
        colour = GREY if name == baseline else BLUE
        axes.plot([low, high], [row, row], color=colour, linewidth=2.2, solid_capstyle="butt")
        axes.plot([estimate.value], [row], "o", color=colour, markersize=6)
    if baseline is not None and baseline in levels:
        axes.axvline(levels[baseline].value, color=GREY, linewidth=1.0, linestyle="--")
    axes.set_yticks(range(len(levels)), list(levels))
    axes.set_ylim(len(levels) - 0.5, -0.5)
    axes.set_xlabel("top-1 accuracy [%], with 95 % interval")
    axes.set_title("Next-word prediction on held-out users")
    return _save(figure, path)


def draw_exposure(curves: Mapping[str, Sequence[tuple[int, float]]], path: Path) -> Path:
    """The exposure of planted secrets in bits by the number of devices that hold them, by model."""
    figure, axes = _new_figure()
    for i, (name, points) in enumerate(curves.items()):
        held = [(holders, bits) for holders, bits in points if holders]
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot([h for h, _ in held], [bits for _, bits in held], "o-", color=colour, linewidth=1.8, label=name)
        for _, bits in (point for point in points if not point[0]):
            axes.axhline(bits, color=colour, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    ticks = sorted({holders for points in curves.values() for holders, _ in points if holders})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices that hold a secret")
    axes.set_ylabel("mean exposure [bits]")
    axes.set_title("What models show of planted secrets")
    axes.legend(frameon=False)
    return _save(figure, path)
