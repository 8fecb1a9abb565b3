"""The keyboard's page in headless Chromium: milliseconds per key, from the event to the finished layout.

    python -m benchmarks.keyboard_page lm.fgram
    python -m benchmarks.keyboard_page en_us.fgram pt_br.fgram          # two languages in one keyboard

A text is tapped letter by letter, with a spread of 0.3 key widths; every key is decoded and the strip filled.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from benchmarks.measure import save
from tests.chromium import Chromium
from tests.keyboard_page import READY, Server, key, other

SPREAD = 0.3
TEXT = (
    "i think the weather is good today and we should go to the beach with some friends this afternoon because there "
    "will be sun all day long"
)


def tapped(url: str, times: int) -> list[float]:
    """Milliseconds of each key of the text."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        page = Chromium(Path(folder) / "profile")
        try:
            page.open(url)
            page.wait_for(READY)
            width = page.evaluate("document.querySelector('.letters button').getBoundingClientRect().width") / 0.9
            for word in times * TEXT.split():
                for letter in word:
                    x, y = key(page, letter)
                    dx, dy = (SPREAD * width * rng.normal(size=2)).tolist()
                    page.touch([(x + dx, y + dy)])
                other(page, "space")
            found: list[float] = page.evaluate("import('/static/page.js').then((page) => page.phones[0].times)")
            return found
        finally:
            page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--times", type=int, default=2)
    given = parser.parse_args()
    server = Server(*given.models)
    try:
        times = tapped(server.url, given.times)
    finally:
        server.stop()
    row: dict[str, object] = {
        "models": len(given.models), "keys": len(times), "median, ms": round(float(np.median(times)), 2),
        "99th percentile, ms": round(float(np.percentile(times, 99)), 2),
    }  # fmt: skip
    save("keyboard_page", [row])


if __name__ == "__main__":
    main()
