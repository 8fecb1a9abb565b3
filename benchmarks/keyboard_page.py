"""The keyboard's page in headless Chromium: milliseconds per key, from the event to the finished layout.

    python -m benchmarks.keyboard_page lm.fgram
    python -m benchmarks.keyboard_page en_us.fgram pt_br.fgram          # two languages in one keyboard

A text is tapped letter by letter, with a spread of 0.3 key widths; every key is decoded and the strip filled. The same
taps are made in several rounds. Figures by the clock are those of all keys, and those of each key's median over the
rounds, which other work on the machine disturbs less. Then random keys, taps and trails are handled, of which the time
on the processor is measured.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from benchmarks.measure import save
from tests.chromium import Chromium
from tests.keyboard_page import READY, Server, key, other, random_events

from fedgram.core.arrays import FloatArray

SPREAD = 0.3
TEXT = (
    "i think the weather is good today and we should go to the beach with some friends this afternoon because there "
    "will be sun all day long"
)
TIMES = "import('/static/page.js').then((page) => page.phones[0].times)"


@contextmanager
def opened(url: str) -> Iterator[Chromium]:
    """The page, once its models are loaded."""
    with tempfile.TemporaryDirectory() as folder:
        page = Chromium(Path(folder) / "profile")
        try:
            page.open(url)
            page.wait_for(READY)
            yield page
        finally:
            page.close()


def tapped(page: Chromium, rounds: int) -> FloatArray:
    """Milliseconds by the clock of each key of the text, a row per round."""
    width = page.evaluate("document.querySelector('.letters button').getBoundingClientRect().width") / 0.9
    for _ in range(rounds):
        page.touch([page.centre("#clear")])
        rng = np.random.default_rng(0)
        for word in TEXT.split():
            for letter in word:
                x, y = key(page, letter)
                dx, dy = (SPREAD * width * rng.normal(size=2)).tolist()
                page.touch([(x + dx, y + dy)])
            other(page, "space")
    times = np.array(page.evaluate(TIMES), np.float64)
    keys = len(TEXT) + 1
    return times.reshape(rounds, -1)[:, -keys:]  # without the press of Clear


def handled_at_random(page: Chromium, events: int) -> list[float]:
    """Milliseconds on the processor of each handled event, with the layout."""
    page.begin_trace()
    page.send_all(random_events(page, events, np.random.default_rng(3)))
    return page.end_trace("keydown", "pointerdown", "pointerup", "click")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--events", type=int, default=10_000)
    given = parser.parse_args()
    server = Server(*given.models)
    try:
        with opened(server.url) as page:
            times = tapped(page, given.rounds)
        with opened(server.url) as page:
            handled = handled_at_random(page, given.events)
    finally:
        server.stop()
    by_key = np.median(times, axis=0)
    row: dict[str, object] = {
        "models": len(given.models), "keys": times.size,
        "median, ms": round(float(np.median(times)), 2),
        "99th percentile, ms": round(float(np.percentile(times, 99)), 2),
        "99th percentile of a key's median, ms": round(float(np.percentile(by_key, 99)), 2),
        "random events": len(handled),
        "99th percentile on the processor, ms": round(float(np.percentile(handled, 99)), 2),
    }  # fmt: skip
    save("keyboard_page", [row])


if __name__ == "__main__":
    main()
