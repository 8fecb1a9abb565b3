"""The keyboard's page in headless Chromium: milliseconds a key, as the page itself measures them.

    python -m benchmarks.keyboard_page lm.fgram

A text is tapped letter by letter with a noise of 0.3 key widths; every key is decoded and the strip filled.
"""

import argparse
import re
import tempfile
import time
from pathlib import Path

from benchmarks.measure import save
from tests.chromium import Chromium
from tests.e2e.test_keyboard_page import READY, Server, key, other, set_noise

TEXT = (
    "i think the weather is good today and we should go to the beach with some friends this afternoon because there "
    "will be sun all day long"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--times", type=int, default=2)
    given = parser.parse_args()
    server = Server(given.model)
    with tempfile.TemporaryDirectory() as folder:
        page = Chromium(Path(folder) / "profile")
        try:
            page.open(server.url)
            page.wait_for(READY)
            set_noise(page, 0.3)
            for word in given.times * TEXT.split():
                for letter in word:
                    page.touch([key(page, letter)])
                other(page, "space")
            time.sleep(1)
            told = str(page.evaluate("document.querySelector('#speed').textContent"))
        finally:
            page.close()
            server.stop()
    keys, median, most = re.findall(r"[\d.]+(?= keys| ms, 9| ms;)", told)
    save("keyboard_page", [{"keys": int(keys), "median, ms": float(median), "99th percentile, ms": float(most)}])


if __name__ == "__main__":
    main()
