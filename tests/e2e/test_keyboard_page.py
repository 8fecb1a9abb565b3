"""`fedgram keyboard` in Chromium without a window, on a screen as large as a phone's: typed, glided and looked at.

Screenshots are left in `build/screenshots`.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
from tests.chromium import CHROMIUM, Chromium

from fedgram.automata.build import count_ngrams
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model
from fedgram.keyboard.layout import load_layout
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
KEYS = load_layout("en_us").keys
TEXT, HIT = "document.querySelector('.decoded').textContent", "document.querySelector('.hit').textContent"
STRIP = "[...document.querySelectorAll('.strip button')].map(b => b.textContent)"
READY = "document.querySelector('#status')?.textContent === 'Ready.'"
PAIR = ["the scary vampire bit her", "a scary vampire", "a good value", "good value for money"] * 30


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """English and Portuguese, from generated text; the paper's two words are among the English."""
    paths = []
    for language, more in (("en_us", PAIR), ("pt_br", [])):
        sentences = [*SyntheticPopulation(language, seed=5).clean_sentences(3000), *(line.split() for line in more)]
        names = Vocabulary.of(word for sentence in sentences for word in sentence)
        text = Ragged.from_rows([names.encode(sentence) for sentence in sentences])
        paths.append(tmp_path_factory.mktemp("models") / f"{language}.fgram")
        pack(smooth(count_ngrams(text, names, order=3), "modified-kneser-ney"), paths[-1])
    return paths[0], paths[1]


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


@pytest.fixture
def server(packed: tuple[Path, Path]) -> Iterator[Server]:
    server = Server(packed[0])
    yield server
    server.stop()


@pytest.fixture
def page(server: Server, tmp_path: Path) -> Iterator[Chromium]:
    page = Chromium(tmp_path / "profile")
    try:
        page.open(server.url)
        page.wait_for(READY)
        yield page
    finally:
        page.close()


def key(page: Chromium, letter: str) -> tuple[float, float]:
    return page.centre(f".keys button:nth-child({KEYS.index(letter) + 1})")


def other(page: Chromium, label: str) -> None:
    page.touch([page.centre(f".bottom [aria-label='{label}']")])


def glide(page: Chromium, *letters: str) -> None:
    """Along the line through the letters of a word, or through the middle of two words' lines."""
    lines = []
    for word in letters:
        places = np.array([key(page, letter) for letter in word])
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(places, axis=0).T))])
        at = np.linspace(0.0, along[-1], 40)
        lines.append(np.stack([np.interp(at, along, places[:, axis]) for axis in range(2)], axis=1))
    page.touch([(float(x), float(y)) for x, y in np.mean(lines, axis=0)])


def set_noise(page: Chromium, sigma: float) -> None:
    page.evaluate(
        f"(() => {{ const n = document.querySelector('#noise'); n.value = {sigma}; "
        "n.dispatchEvent(new Event('input')); })()"
    )


def quiet(page: Chromium, url: str) -> None:
    """Nobody complained, and nobody else was asked."""
    page.drain()
    assert page.complaints == []
    assert page.requests
    assert all(request.startswith(url) for request in page.requests)


def test_a_sentence_is_tapped_with_noise(page: Chromium, server: Server, packed: tuple[Path, Path]) -> None:
    model = open_model(packed[0])
    assert page.evaluate(STRIP) == [p.word for p in model.predict([], 3)]
    # the same noise every time
    page.evaluate(
        "(() => { let s = 7; Math.random = () => (s = (Math.imul(s, 1103515245) + 12345) & 0x7fffffff) / 2 ** 31; })()"
    )
    for n, word in enumerate(["i", "think", "the", "weather", "is", "good"]):
        for letter in word:
            x, y = key(page, letter)
            page.touch([(x, y)]) if n % 2 else page.click(x, y)
        other(page, "space")
    assert page.evaluate(TEXT).lower() == "i think the weather is good"
    assert page.evaluate(HIT) != "i think the weather is good"
    page.screenshot(SHOTS / "tapped.png")
    assert page.evaluate(STRIP)
    other(page, "full stop")
    assert page.evaluate(TEXT).endswith("good.")
    assert re.match(r"2\d keys: median \d", page.evaluate("document.querySelector('#speed').textContent"))
    median = float(page.evaluate("document.querySelector('#speed').textContent").split()[3])
    assert median < 20
    drawn = "[...document.querySelector('#histogram').getContext('2d').getImageData(0, 0, 300, 200).data].some(Boolean)"
    assert page.evaluate(drawn)
    words = "[...document.querySelectorAll('#personal li')].map(e => e.firstChild.textContent.trim())"
    assert "weather" in page.evaluate(words)
    page.touch([page.centre("#personal [aria-label='Forget weather']")])
    assert "weather" not in page.evaluate(words)
    assert "weather" not in page.evaluate("localStorage.getItem('fedgram-personal')")
    page.screenshot(SHOTS / "whole-page.png", whole=True)
    page.touch([page.centre("#erase")])
    assert page.evaluate(words) == []
    page.touch([page.centre("#clear")])
    assert page.evaluate(TEXT) == ""
    quiet(page, server.url)


def test_one_trail_is_two_words(page: Chromium, server: Server) -> None:
    """The paper's example, and a plain trail before it."""
    set_noise(page, 0)
    glide(page, "people")
    assert page.evaluate(TEXT).lower() == "people"
    assert page.evaluate(
        "[...document.querySelector('.trail').getContext('2d').getImageData(0, 0, 700, 300).data].some(Boolean)"
    )
    for before, meant in (("scary", "vampire"), ("good", "value")):
        page.touch([page.centre("#clear")])
        for letter in before:
            page.touch([key(page, letter)])
        glide(page, "vampire", "value")
        assert page.evaluate(TEXT).lower() == f"{before} {meant}"
        page.screenshot(SHOTS / f"glided-{meant}.png")
    offered = page.evaluate(STRIP)
    assert "vampire" in offered
    page.touch([page.centre(f".strip button:nth-child({offered.index('vampire') + 1})")])
    assert page.evaluate(TEXT).lower() == "good vampire"
    quiet(page, server.url)


def test_the_keyboard_alone_is_enough(page: Chromium, server: Server) -> None:
    set_noise(page, 0)
    for letter in "goof":
        page.press(letter)
    page.press("Backspace")
    page.press("d")
    page.press("Space")
    assert page.evaluate(TEXT).lower() == "good"
    page.press("Tab")  # into the strip, then to the letters, among which arrows move
    assert page.evaluate("document.activeElement.closest('.strip') !== null")
    first = page.evaluate("document.activeElement.textContent")
    page.press("Enter")
    assert page.evaluate(TEXT).lower() == f"good {first}"
    page.evaluate("document.querySelector('.keys button').focus()")
    page.press("ArrowRight")
    page.press("ArrowDown")
    focused = page.evaluate("document.activeElement.textContent")
    assert focused in "asd"
    page.press("Enter")
    assert page.evaluate(HIT).endswith(f" {focused}")
    quiet(page, server.url)


def test_shift_and_autocorrect(page: Chromium, server: Server) -> None:
    set_noise(page, 0)
    page.touch([page.centre("#autocorrect")])
    for letter in "teh":
        page.touch([key(page, letter)])
    other(page, "space")
    assert page.evaluate(TEXT) == "teh"
    page.touch([page.centre("#autocorrect")])
    page.touch([page.centre("#clear")])
    other(page, "shift")
    assert page.evaluate("document.querySelector('.keys').textContent") == KEYS.upper()
    for letter in "good":
        page.touch([key(page, letter)])
    other(page, "space")
    other(page, "shift")
    other(page, "shift")
    for letter in "good":
        page.touch([key(page, letter)])
    page.screenshot(SHOTS / "capitals.png")
    other(page, "space")
    other(page, "shift")
    assert page.evaluate("document.querySelector('.keys').textContent") == KEYS
    assert page.evaluate(TEXT) == "Good GOOD"
    quiet(page, server.url)


@contextmanager
def another_program(url: str) -> Iterator[None]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"another program")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", int(url.split(":")[2].strip("/"))), Answer) as program:
        threading.Thread(target=program.serve_forever, daemon=True).start()
        yield
        program.shutdown()


def test_the_page_works_without_its_server(page: Chromium, server: Server) -> None:
    page.wait_for("navigator.serviceWorker.ready.then(() => navigator.serviceWorker.controller !== null)")
    page.evaluate("Promise.all(['/?a=1', '/models.json?a=1', '/models/7.fgram', '/other'].map((url) => fetch(url)))")
    kept = page.evaluate(
        "caches.keys().then((names) => caches.open(names[0]))"
        ".then((cache) => cache.keys()).then((keys) => keys.map((key) => key.url))"
    )
    assert {server.url, f"{server.url}models.json", f"{server.url}models/0.fgram"} <= set(kept)
    assert not any("?" in url or url.endswith(("/other", "/7.fgram")) for url in kept)
    server.stop()
    with another_program(server.url):  # its answers are shown, but not kept
        assert page.evaluate("fetch('/').then((answer) => answer.text())") == "another program"
    page.open("about:blank")
    page.open(server.url)
    page.wait_for(READY)
    set_noise(page, 0)
    for letter in "good":
        page.touch([key(page, letter)])
    assert page.evaluate(TEXT).lower() == "good"
    page.drain()
    assert all(request.startswith((server.url, "about:")) for request in page.requests)


def test_the_policy_holds(page: Chromium, server: Server) -> None:
    quiet(page, server.url)
    page.evaluate(
        "document.addEventListener('securitypolicyviolation', e => (window.broken ??= []).push(e.effectiveDirective))"
    )
    page.evaluate("fetch('http://127.0.0.1:9/').then(() => { throw Error('it got out'); }, () => 0)")
    page.evaluate("(() => { new Image().src = 'http://127.0.0.1:9/x.png'; })()")
    page.evaluate(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1'; "
        "document.body.append(s); })()"
    )
    page.evaluate("(() => { const d = document.createElement('p'); d.setAttribute('style', 'color: red'); })()")
    page.evaluate("(() => { try { Function('1')(); } catch { window.noEval = 1; } })()")
    page.wait_for("window.broken?.length >= 4")
    assert {"connect-src", "img-src", "script-src-elem", "style-src-attr"} <= set(page.evaluate("window.broken"))
    assert page.evaluate("[window.ran, window.noEval]") == [None, 1]


def test_two_models_side_by_side_in_the_dark(packed: tuple[Path, Path], tmp_path: Path) -> None:
    server = Server(packed[0], "--compare", packed[1])
    page = Chromium(tmp_path / "profile", width=900, height=700, dark=True)
    try:
        page.open(server.url)
        page.wait_for(READY)
        for letter in "people":
            page.touch([key(page, letter)])
        other(page, "space")
        hits = page.evaluate("[...document.querySelectorAll('.hit')].map(e => e.textContent)")
        assert len(hits) == 2
        assert hits[0] == hits[1] != ""
        assert len(page.evaluate(STRIP)) == 6
        assert page.evaluate("document.querySelectorAll('#sizes tr.ours').length") == 2
        background = page.evaluate("getComputedStyle(document.querySelector('.keys button')).backgroundColor")
        assert max(map(int, re.findall(r"\d+", background))) < 128
        page.screenshot(SHOTS / "compared-dark.png")
        quiet(page, server.url)
    finally:
        page.close()
        server.stop()


def test_a_screen_reader_finds_everything(page: Chromium) -> None:
    other(page, "shift")
    found = page.named()
    assert all(name for role, name in found if role in ("button", "slider", "combobox", "checkbox", "image", "group"))
    names = {name for role, name in found if role == "button"}
    assert {*KEYS.upper(), "shift", "space", "backspace", "full stop", "Clear the text", "Erase all of them"} <= names
    assert {"Suggestions", "Letters", "Other keys"} <= {name for role, name in found if role == "group"}
    pressed = page.evaluate("document.querySelector('[aria-label=shift]').getAttribute('aria-pressed')")
    assert json.loads(pressed) is True
