"""fedgram and its peers side by side: one task, measured in turns, and how many times as good fedgram is.

A peer that is not on this machine gets a row that says how to install it. So one table has all peers on every machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Figures = Callable[[], float | Sequence[float]]
Row = dict[str, object]


class Missing(Exception):
    """A peer is not on this machine; the message says how to get it."""


@dataclass(frozen=True)
class Measure:
    """What a figure means.

    Attributes:
        unit: Of the figures.
        better: What the ratio says, as in "times as fast"; above 1, fedgram is better.
        rising: Whether larger figures are better.
    """

    unit: str
    better: str = "fast"
    rising: bool = False

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times as good our figure is.

        >>> Measure("s").ratio(2.0, 3.0), Measure("tokens/s", rising=True).ratio(2.0, 3.0)
        (1.5, 0.6666666666666666)
        """
        return ours / theirs if self.rising else theirs / ours

    def show(self, figure: float) -> str:
        """The figure with three digits, and its unit.

        >>> Measure("queries/s").show(5_612_345.0), Measure("s").show(0.01234)
        ('5,610,000 queries/s', '0.0123 s')
        """
        return f"{float(f'{figure:.3g}'):,.15g} {self.unit}"


SECONDS, MILLISECONDS, MICROSECONDS = Measure("s"), Measure("ms"), Measure("µs")
QUERIES, TOKENS = Measure("queries/s", rising=True), Measure("tokens/s", rising=True)
MEGABYTES, PERCENT = Measure("MB", "small"), Measure("%", "often", rising=True)


@dataclass(frozen=True)
class Peer:
    """Another program.

    Attributes:
        name: In the table.
        prepare: Makes what the peer needs, and returns what measures it once; raises `Missing` if it is not installed.
    """

    name: str
    prepare: Callable[[], Figures]


def compare(tasks: Mapping[str, Measure], ours: Figures, *peers: Peer, repeats: int = 3) -> list[Row]:
    """Rows for each task and peer: medians of figures taken in turns, their ratio, and the range of the turns' ratios.

    With several tasks, `ours` and the peers return a figure for each of them.
    """
    ready: dict[str, Figures] = {}
    absent: dict[str, str] = {}
    for peer in peers:
        with _noting(peer.name, absent):
            ready[peer.name] = peer.prepare()
    own: list[NDArray[np.float64]] = []
    theirs: dict[str, list[NDArray[np.float64]]] = {name: [] for name in ready}
    for _ in range(repeats):
        own.append(np.atleast_1d(ours()))
        for name in [name for name in ready if name not in absent]:
            with _noting(name, absent):
                theirs[name].append(np.atleast_1d(ready[name]()))
    rows: list[Row] = []
    for k, (task, measure) in enumerate(tasks.items()):
        for peer in peers:
            row: Row = {"task": task, "fedgram": measure.show(np.median(own, axis=0)[k]), "peer": peer.name}
            if peer.name in absent:
                rows.append(row | {"its figure": absent[peer.name], "ratio": None, "range": None})
                continue
            a, b = np.median(own, axis=0)[k], np.median(theirs[peer.name], axis=0)[k]
            turns = [measure.ratio(x[k], y[k]) for x, y in zip(own, theirs[peer.name], strict=True)]
            rows.append(row | {
                "its figure": measure.show(b),
                "ratio": f"{measure.ratio(a, b):.3g} times as {measure.better}",
                "range": f"{min(turns):.3g} to {max(turns):.3g}" if min(turns) < max(turns) else None,
            })  # fmt: skip
    return rows


@contextmanager
def _noting(name: str, absent: dict[str, str]) -> Iterator[None]:
    """Keep why a peer has no figure: its failure is a row, and not the end of the table."""
    try:
        yield
    except Missing as reason:
        absent[name] = f"missing: {reason}"
    except Exception as error:
        lines = str(error).strip().splitlines()
        absent[name] = f"failed: {(lines[-1] if lines else type(error).__name__)[:100]}"
