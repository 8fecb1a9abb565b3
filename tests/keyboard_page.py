"""The keyboard's page in Chromium: the command that serves it, models of generated text, and fingers on its keys."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tests.chromium import Chromium, key_events

from fedgram.automata.build import count_ngrams
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.fgram.pack import pack
from fedgram.keyboard.layout import load_layout
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

SHOTS = Path(__file__).parents[1] / "build" / "screenshots"
KEYS = load_layout("en_us").keys
TEXT = "document.querySelector('.before').textContent + document.querySelector('.screen .literal').textContent"
STRIP = "[...document.querySelectorAll('.strip button')].map(b => b.textContent)"
KINDS = "[...document.querySelectorAll('.strip button')].map(b => b.className)"
WORDS = "[...document.querySelectorAll('#personal li span')].map(e => e.textContent)"
READY = "document.querySelector('#status')?.textContent === 'Ready.'"
PLACES = (
    "[...document.querySelectorAll('.key:not([hidden]), .strip, .strip button, .screen, .board, header')]"
    ".map(e => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })"
)


def pack_text(path: Path, sentences: Iterable[list[str]]) -> Path:
    """A packed model of some sentences."""
    rows = list(sentences)
    names = Vocabulary.of(word for sentence in rows for word in sentence)
    text = Ragged.from_rows([names.encode(sentence) for sentence in rows])
    pack(smooth(count_ngrams(text, names, order=3), "modified-kneser-ney"), path)
    return path


def pack_languages(folder: Path, more: Iterable[str] = ()) -> tuple[Path, Path]:
    """English and Portuguese, from generated text; more sentences are English."""
    english, portuguese = (SyntheticPopulation(name, seed=5).clean_sentences(3000) for name in ("en_us", "pt_br"))
    return (
        pack_text(folder / "en_us.fgram", [*english, *(line.split() for line in more)]),
        pack_text(folder / "pt_br.fgram", portuguese),
    )


class Server:
    """The command, as a user runs it."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "fedgram", "phone", "keyboard", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
        assert self.process.stderr
        found = re.match(r"(http://127\.0\.0\.1:[1-9]\d*/) ", self.process.stderr.readline())
        assert found
        self.url = found[1]

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)


def key(page: Chromium, letter: str) -> tuple[float, float]:
    """The centre of a letter's key."""
    return page.centre(f".letters button:nth-child({KEYS.index(letter) + 1})")


def tap(page: Chromium, text: str) -> None:
    """Tap letters, and the keys for space, comma, full stop and new line."""
    names = {" ": "space", ",": "comma", ".": "full stop", "\n": "enter"}
    for character in text:
        page.touch([key(page, character)]) if character in KEYS else other(page, names[character])


def other(page: Chromium, label: str) -> None:
    page.touch([page.centre(f".others [aria-label='{label}']")])


def choose(page: Chromium, word: str) -> None:
    """Tap a suggestion."""
    page.touch([page.centre(f".strip button:nth-child({page.evaluate(STRIP).index(word) + 1})")])


def random_events(page: Chromium, count: int, rng: np.random.Generator) -> list[tuple[str, dict[str, Any]]]:
    """Messages for real keys, taps, suggestions and short trails at random."""
    box = page.evaluate(
        "(() => { const b = document.querySelector('.keys').getBoundingClientRect(); "
        "return [b.x, b.y, b.width, b.height]; })()"
    )
    keys = [*KEYS, *"eationsrhl" * 3, *["Space"] * 12, *["Backspace"] * 8, "Enter", *".,?!'5éÉçZ-", "Tab", "Escape"]
    messages = []
    for _ in range(count):
        if rng.random() < 0.75:
            messages += key_events(keys[int(rng.integers(len(keys)))])
            continue
        x, y = box[0] + box[2] * rng.random(), box[1] - 30 + (box[3] + 30) * rng.random()
        away = (rng.random(2) - 0.5) * (200 if rng.random() < 0.2 else 4)
        points = [(x, y), (x + float(away[0]), y + float(away[1]))]
        messages += [
            ("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": a, "y": b}]})
            for kind, (a, b) in zip(("touchStart", "touchMove"), points, strict=True)
        ]
        messages.append(("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []}))
    return messages


def quiet(page: Chromium, url: str) -> None:
    """Nobody complained, and nobody else was asked."""
    page.drain()
    assert page.complaints == []
    assert page.requests
    assert all(request.startswith((url, "blob:" + url)) for request in page.requests)
