"""Makes the README's pictures: `python docs/images.py lm.fgram report.html`, from a packed model and a report.

Both are photographed in headless Chromium: the keyboard after some taps, and the beginning of the report.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.chromium import Chromium  # noqa: E402
from tests.keyboard_page import READY, Server, tap  # noqa: E402

IMAGES = ROOT / "docs" / "images"
TYPED = "i think we should "


@contextmanager
def browser(width: int, height: int) -> Iterator[Chromium]:
    """A new browser with a window of this size."""
    with tempfile.TemporaryDirectory() as folder:
        page = Chromium(Path(folder) / "profile", width=width, height=height)
        try:
            yield page
        finally:
            page.close()


def photograph_keyboard(model: Path, path: Path) -> None:
    """Type a few words on the keyboard's page, and save what a phone would show."""
    server = Server(model)
    try:
        with browser(390, 640) as page:
            page.open(server.url)
            page.wait_for(READY)
            tap(page, TYPED)
            page.screenshot(path)
    finally:
        server.stop()


def photograph_report(report: Path, path: Path) -> None:
    """Save the sentence and the chart with which a report begins."""
    with browser(1000, 565) as page:
        page.open(report.resolve().as_uri())
        page.wait_for("document.querySelector('figcaption') !== null")
        page.screenshot(path)


if __name__ == "__main__":
    photograph_keyboard(Path(sys.argv[1]), IMAGES / "keyboard.png")
    photograph_report(Path(sys.argv[2]), IMAGES / "results.png")
