"""`fedgram phone keyboard` in Chromium without a window, on a phone's screen: tapped, glided and looked at.

Screenshots are left in `build/screenshots`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from tests.chromium import CHROMIUM, Chromium

from tests.keyboard_page import KEYS, KINDS, PLACES, READY, SHOTS, STRIP, TEXT, WORDS, Server  # isort: skip
from tests.keyboard_page import choose, key, other, pack_languages, quiet, random_events, tap  # isort: skip

pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
PAIR = ["the scary vampire bit her", "a scary vampire", "a good value", "good value for money"] * 30


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """English and Portuguese; the paper's two words are among the English."""
    return pack_languages(tmp_path_factory.mktemp("models"), PAIR)


@pytest.fixture(scope="module")
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


def glide(page: Chromium, *letters: str) -> None:
    """Along the line through the letters of a word, or through the middle of two words' lines."""
    lines = []
    for word in letters:
        places = np.array([key(page, letter) for letter in word])
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(places, axis=0).T))])
        at = np.linspace(0.0, along[-1], 40)
        lines.append(np.stack([np.interp(at, along, places[:, axis]) for axis in range(2)], axis=1))
    page.touch([(float(x), float(y)) for x, y in np.mean(lines, axis=0)])


def test_a_sentence_is_tapped_and_glided(page: Chromium, server: Server) -> None:
    for letter in "people":
        page.click(*key(page, letter))
    tap(page, " think,")
    assert page.evaluate(TEXT) == "People think,"
    other(page, "space")
    glide(page, "weather")
    assert page.evaluate(TEXT) == "People think, weather "
    tap(page, ".")
    assert page.evaluate(TEXT) == "People think, weather. "
    page.wait_for("document.querySelector('#speed').textContent.startsWith('1')")
    assert page.evaluate(WORDS) == []  # common words are nobody's own
    page.touch([page.centre("#clear")])
    for before, meant in (("scary", "vampire"), ("good", "value")):  # the paper's example
        page.touch([page.centre("#clear")])
        tap(page, before + " ")
        glide(page, "vampire", "value")
        assert page.evaluate(TEXT).lower() == f"{before} {meant} "
    choose(page, "vampire")
    assert page.evaluate(TEXT).lower() == "good vampire "
    quiet(page, server.url)


def test_an_unknown_word_is_kept_learned_and_predicted(page: Chromium, server: Server) -> None:
    tap(page, "call zulexa")
    assert page.evaluate(TEXT) == "Call zulexa"
    choose(page, "zulexa")  # what was typed is on the left
    assert page.evaluate(TEXT) == "Call zulexa "
    page.wait_for(f"{WORDS}.join() === 'zulexa'")
    tap(page, ".zul")
    assert "Zulexa" in page.evaluate(STRIP)
    tap(page, "exa ")
    assert page.evaluate(TEXT) == "Call zulexa. Zulexa "
    for _ in range(20):
        page.press(*"call", "Space", *"zulexa", ".", "Space")
    page.press(*"call", "Space")
    assert "zulexa" in [word.lower() for word in page.evaluate(STRIP)]
    assert "zulexa" in page.evaluate("localStorage.getItem('fedgram-personal')")
    page.touch([page.centre("#personal [aria-label='Forget zulexa']")])
    page.wait_for(f"{WORDS}.length === 0")
    assert "zulexa" not in page.evaluate("localStorage.getItem('fedgram-personal')")
    quiet(page, server.url)


def test_backspace_undoes_a_correction(page: Chromium, server: Server) -> None:
    tap(page, "the weathrr")
    assert page.evaluate(KINDS)[:2] == ["literal", "best"]
    assert page.evaluate(STRIP)[:2] == ["weathrr", "weather"]
    page.screenshot(SHOTS / "correction.png")
    other(page, "space")
    assert page.evaluate(TEXT) == "The weather "
    other(page, "backspace")
    assert page.evaluate(TEXT) == "The weathrr "
    page.wait_for(f"{WORDS}.join() === 'weathrr'")
    tap(page, "the weathrr ")
    assert page.evaluate(TEXT) == "The weathrr the weathrr "
    page.press("Backspace", "Backspace")
    assert page.evaluate(TEXT) == "The weathrr the weathr"
    quiet(page, server.url)


def test_every_key_of_a_phone(page: Chromium, server: Server) -> None:
    """Comma, digits, apostrophe, accents by long press, Enter, Shift and caps lock."""
    other(page, "digits and symbols")
    page.screenshot(SHOTS / "symbols.png")
    for character in "25":
        page.touch([page.centre(f".symbols-layer [aria-label='{character}']")])
    other(page, "digits and symbols")
    tap(page, ", ")
    assert page.evaluate(TEXT) == "25, "
    tap(page, "caf")
    x, y = key(page, "e")
    page.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    page.wait_for("!document.querySelector('.popup').hidden")
    page.screenshot(SHOTS / "long-press.png")
    accent = page.evaluate(
        "(() => { const e = [...document.querySelectorAll('.popup span')].find(s => s.textContent === 'é'); "
        "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y]; })()"
    )
    page.send("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": accent[0], "y": accent[1]}])
    page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert page.evaluate(TEXT) == "25, café"
    other(page, "enter")
    assert page.evaluate(TEXT) == "25, café\n"
    tap(page, "it")
    page.hold(*page.centre(".others [aria-label='comma']"), 0.6)
    tap(page, "s ")
    assert page.evaluate(TEXT).endswith("\nIt's ")
    assert page.evaluate("document.querySelector('.letters').textContent.replace(/\\d/g, '')") == KEYS
    other(page, "shift")
    assert page.evaluate("document.querySelector('.letters').textContent.replace(/\\d/g, '')") == KEYS.upper()
    tap(page, "good ")
    page.evaluate("(b => { b.click(); b.click(); })(document.querySelector('.others [aria-label=shift]'))")  # caps lock
    tap(page, "good ")
    other(page, "shift")
    tap(page, "good")
    assert page.evaluate(TEXT).endswith(" Good GOOD good")
    quiet(page, server.url)


def test_real_keys_type_whatever_was_clicked(page: Chromium, server: Server) -> None:
    page.press(*"good", "Space")
    page.touch([page.centre("#clear")])
    page.click(*page.centre("#clear"))
    page.press(*"good", "Space", *"good", "Enter", *"good", "Space")
    assert page.evaluate(TEXT) == "Good good\nGood "
    page.click(*page.centre("#autocorrect"))
    page.press(*"thr", "Space", *"go", "Space")
    assert page.evaluate(TEXT) == "Good good\nGood thr go "
    assert page.evaluate("document.querySelector('#autocorrect').checked") is False
    page.evaluate("document.querySelector('#clear').focus()")
    page.press("Space", *"good", "Enter")
    assert page.evaluate(TEXT).startswith("Good good")
    page.press("Tab")  # after Tab, and only then, Enter presses what has the focus
    assert page.evaluate("document.activeElement.closest('.strip') !== null")
    first = page.evaluate("document.activeElement.textContent")
    page.press("Enter")
    assert page.evaluate(TEXT).endswith(f"\n{first} ")
    page.evaluate("document.querySelector('.letters button').focus()")
    page.press("Tab", "ArrowRight")
    page.press(*"of", "Backspace", "f", "é")
    assert page.evaluate(TEXT).endswith(f"\n{first} ofé")
    quiet(page, server.url)


def test_nothing_moves_by_a_pixel(page: Chromium) -> None:
    places = page.evaluate(PLACES)
    for n in range(12):
        for word in ["the", "weather", "is", "good", "today", "and", "we", "should", "go", "to", "the", "beach"]:
            page.press(*word, "Space")
        page.press("Enter" if n % 4 == 3 else "Space")
        assert page.evaluate(PLACES) == places
    tap(page, "w")
    other(page, "shift")
    assert page.evaluate(PLACES) == places
    x, y = key(page, "e")
    page.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    page.wait_for("!document.querySelector('.popup').hidden")
    assert page.evaluate(PLACES) == places
    page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    glide(page, "weather")
    page.press(*["Backspace"] * 40)
    assert page.evaluate(PLACES) == places
    screen = "document.querySelector('.screen')"
    assert page.evaluate(f"{screen}.scrollHeight > {screen}.clientHeight")
    page.screenshot(SHOTS / "long-text.png")


CONSISTENT = """import('/static/page.js').then(async ({ phones: [{ session }] }) => {
  const { MultilingualKeyboard } = await import('/static/typing.js');
  const { Session } = await import('/static/session.js');
  const { Languages } = await import('/static/languages.js');
  const { models } = session.board.languages;
  const fresh = new Session(new MultilingualKeyboard(new Languages(models), session.board.layout), session.personal);
  const words = ['the', 'weather', 'is'].map((_, i, all) => all.slice(0, i));
  const asked = words.flatMap((context) => [models[0].predict(context, 5), fresh.board.decode(fresh.board.layout.typed('there'), context)]);
  for (const name of ['autocorrect', 'before', 'letters', 'others', 'shift', '_isReopened', '_isLowered']) fresh[name] = session[name];
  fresh.reread();
  const shown = [...document.querySelectorAll('.strip button')].map((b) => b.textContent).filter(Boolean);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return { text: session.text, asked: JSON.stringify(asked), shown, expected: fresh.suggestions().map(({ word }) => word),
           same: localStorage.getItem('fedgram-personal') === session.personal.toJSON() };
})"""  # noqa: E501


@pytest.mark.parametrize("events", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_random_events(page: Chromium, server: Server, events: int) -> None:
    """The page shows the session, the model is what it was, and keys are handled as fast at the end as at the start."""
    before = page.evaluate(CONSISTENT)
    page.begin_trace()
    page.send_all(random_events(page, events, np.random.default_rng(3)))
    handled = page.end_trace("keydown", "pointerdown", "pointerup", "click")
    after = page.evaluate(CONSISTENT)
    assert after["text"] == page.evaluate(TEXT)
    assert after["text"]
    assert after["asked"] == before["asked"]
    assert after["shown"] == after["expected"]
    assert after["same"]
    quiet(page, server.url)
    assert len(handled) > events
    start, end = np.median(handled[: events // 5]), np.median(handled[-events // 5 :])
    assert end <= 4 * start  # on the processor, with the layout; `benchmarks/keyboard_page.py` has milliseconds


def test_words_move_between_browsers(page: Chromium, server: Server, tmp_path: Path) -> None:
    page.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "down"))
    tap(page, "zulexa")
    choose(page, "zulexa") if "zulexa" in page.evaluate(STRIP) else choose(page, "Zulexa")
    page.wait_for(f"{WORDS}.length === 1")
    (word,) = page.evaluate(WORDS)
    page.click(*page.centre("#export"))
    saved = tmp_path / "down" / "fedgram-words.json"
    for _ in range(100):
        if saved.is_file():
            break
        sleep(0.1)
    assert json.loads(saved.read_text())["words"] == {word: 1}
    page.click(*page.centre("#erase"))
    page.wait_for(f"{WORDS}.length === 0")
    node = page.send("Runtime.evaluate", expression="document.querySelector('#file')")["result"]["objectId"]
    page.send("DOM.setFileInputFiles", files=[str(saved)], objectId=node)
    page.wait_for(f"{WORDS}.join() === '{word}'")
    (tmp_path / "bad.json").write_text("{}")
    page.send("DOM.setFileInputFiles", files=[str(tmp_path / "bad.json")], objectId=node)
    page.wait_for("document.querySelector('#personal-status').textContent.startsWith('This file holds no words')")
    assert page.evaluate(WORDS) == [word]
    quiet(page, server.url)


def test_only_simulated_fingers_miss(page: Chromium, server: Server) -> None:
    tap(page, "weather")
    assert page.evaluate(TEXT) == "Weather"
    page.evaluate(
        "(() => { let s = 7; Math.random = () => (s = (Math.imul(s, 1103515245) + 12345) & 0x7fffffff) / 2 ** 31; })()"
    )
    page.click(*page.centre("#simulate"))
    said = page.wait_for("document.querySelector('#simulated-result').textContent")
    read, of, hit = map(int, re.findall(r"\d+", said))
    assert hit < of
    assert read >= of - 2
    page.screenshot(SHOTS / "simulation.png")
    quiet(page, server.url)


def test_the_page_works_without_its_server(packed: tuple[Path, Path], tmp_path: Path) -> None:
    server, page = Server(packed[0]), Chromium(tmp_path / "profile")
    try:
        page.open(server.url)
        page.wait_for(READY)
        page.wait_for("navigator.serviceWorker.ready.then(() => navigator.serviceWorker.controller !== null)")
        server.stop()
        page.open("about:blank")
        page.open(server.url)
        page.wait_for(READY)
        tap(page, "good ")
        assert page.evaluate(TEXT) == "Good "
        page.drain()
        assert all(request.startswith((server.url, "about:")) for request in page.requests)
    finally:
        page.close()
        server.stop()


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


def test_a_screen_reader_finds_everything(page: Chromium) -> None:
    found = page.named()
    named = ("button", "slider", "combobox", "switch", "image", "group", "textbox")
    assert all(name for role, name in found if role in named)
    names = {name for role, name in found if role == "button"}
    assert {*KEYS.upper(), "shift", "space", "backspace", "comma", "full stop", "enter", "Clear the text"} <= names
    assert {"Suggestions", "Letters", "Other keys"} <= {name for role, name in found if role == "group"}
    pressed = page.evaluate("document.querySelector('.others [aria-label=shift]').getAttribute('aria-pressed')")
    assert json.loads(pressed) is True  # a sentence begins


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, False), (1280, True)])
def test_two_languages_in_one_keyboard(packed: tuple[Path, Path], tmp_path: Path, width: int, dark: bool) -> None:
    server = Server(*packed)
    page = Chromium(tmp_path / "profile", width=width, height=844, dark=dark)
    languages = "[...document.querySelectorAll('.space b, .space i')].map(e => e.textContent)"
    try:
        page.open(server.url)
        page.wait_for(READY)
        page.screenshot(SHOTS / f"first-screen-{width}-{'dark' if dark else 'light'}.png")
        page.press(*"I", "Space", *"think", "Space", *"the", "Space", *"weather", "Space", *"is", "Space", *"good")
        assert float(page.evaluate(languages)[0].split()[1]) > 90
        page.press(".", "Space", *"voce", "Space", *"pode", "Space", *"me", "Space", *"ligar", "Space")
        assert float(page.evaluate(languages)[1].split()[1]) > 90
        assert "você" in page.evaluate(TEXT).lower()
        page.screenshot(SHOTS / f"two-languages-{width}-{'dark' if dark else 'light'}.png")
        background = page.evaluate("getComputedStyle(document.querySelector('.letters button')).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", background))) < 128) == dark
        quiet(page, server.url)
    finally:
        page.close()
        server.stop()


def test_two_models_side_by_side(packed: tuple[Path, Path], tmp_path: Path) -> None:
    server = Server(packed[0], "--compare", packed[1])
    page = Chromium(tmp_path / "profile", width=900, height=700, dark=True)
    try:
        page.open(server.url)
        page.wait_for(READY)
        tap(page, "people ")
        texts = page.evaluate("[...document.querySelectorAll('.before')].map(e => e.textContent)")
        assert len(texts) == 2
        assert len(page.evaluate(STRIP)) == 6
        assert page.evaluate("document.querySelectorAll('#sizes tr.ours').length") == 2
        page.screenshot(SHOTS / "compared-dark.png")
        quiet(page, server.url)
    finally:
        page.close()
        server.stop()
