"""The web keyboard: what is served, what is not, and what the page may do."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.fgram_vectors import models

from fedgram.core.errors import FedgramError, InputError
from fedgram.fgram.pack import pack
from fedgram.keyboard.web.app import HEADERS, make_app

testclient = pytest.importorskip("starlette.testclient", reason="starlette is not installed")
STATIC = Path(str(files("fedgram.keyboard.web") / "static"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("web") / "en.fgram"
    pack(models()["en_us"], path)
    return path


def client_of(paths: Sequence[Path]) -> Any:
    return testclient.TestClient(make_app(paths), base_url="http://127.0.0.1:8000")


def test_the_page_its_modules_and_the_models_are_served(packed: Path) -> None:
    client = testclient.TestClient(make_app([packed, packed], compare=packed), base_url="http://127.0.0.1:8000")
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    listed = client.get("/models.json").json()
    assert [row["name"] for row in listed] == ["en.fgram"] * 3
    assert [row["keyboard"] for row in listed] == [0, 0, 1]
    for row in listed:
        assert client.get("/" + row["url"]).content == packed.read_bytes()
        assert row["bytes"] == packed.stat().st_size
    worker = client.get("/worker.js")
    listed_files = re.findall(r'"(static/[^"]+)"', worker.text)
    listed_files += [f"static/{name}.js" for name in re.findall(r'"(\w+)"', worker.text.split("[")[1].split("]")[0])]
    kept_apart = {"index.html", "worker.js"}
    assert sorted(listed_files) == sorted(
        f"static/{path.name}" for path in STATIC.iterdir() if path.name not in kept_apart
    )
    for name in listed_files:
        answer = client.get("/" + name)
        assert answer.status_code == 200
        assert re.search("javascript|css|svg", answer.headers["content-type"])
    for answer in (page, worker, client.get("/models.json"), client.get("/models/0.fgram")):
        assert all(answer.headers[name] == value for name, value in HEADERS.items())


def test_models_of_the_same_name_are_told_apart(packed: Path, tmp_path: Path) -> None:
    paths = [tmp_path / folder / "lm.fgram" for folder in "AB"]
    for path in paths:
        path.parent.mkdir()
        shutil.copyfile(packed, path)
    for models_, names in ((paths, ["A/lm.fgram", "B/lm.fgram"]), ([packed, paths[0]], ["en.fgram", "lm.fgram"])):
        listed = client_of(models_).get("/models.json").json()
        assert [row["name"] for row in listed] == names


def test_nothing_else_is_served(packed: Path) -> None:
    client = client_of([packed])
    for path in (
        "/static/index.html",
        "/static/..%2fapp.py",
        "/static/../app.py",
        "/models/1.fgram",
        "/models/x.fgram",
        "/x",
    ):
        assert client.get(path).status_code == 404
    assert client.post("/", content="text").status_code == 405
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "connect-src 'self';" in policy
    assert "http" not in policy


def test_requests_to_another_host_are_refused(packed: Path) -> None:
    """A site whose name leads to this machine (DNS rebinding) reads neither the page nor the models."""
    app = make_app([packed], "keyboard.lan")
    for host, status in (
        ("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:8000", 200), ("192.168.1.7:8000", 200),
        ("Keyboard.lan:8000", 200), ("evil.example:8000", 421), ("127.0.0.1.evil.example", 421), ("", 421),
        ("localhost.evil.example", 421), ("[evil.example]", 421), ("evil.example:8000:1", 421),
    ):  # fmt: skip
        client = testclient.TestClient(app, base_url="http://127.0.0.1:8000")
        for path in ("/", "/models.json", "/models/0.fgram"):
            assert client.get(path, headers={"Host": host}).status_code == status, host
    with testclient.TestClient(app, base_url="http://127.0.0.1:8000") as client:
        two = [("Host", "127.0.0.1"), ("Host", "evil.example")]
        assert client.get("/", headers=two).status_code == 421


def test_models_are_checked_before_serving(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.fgram").write_bytes(packed.read_bytes()[:-8])
    with pytest.raises(InputError):
        make_app([tmp_path / "bad.fgram"])
    with pytest.raises(FedgramError, match="one model per language"):
        make_app([packed] * 4)


def test_the_page_asks_nobody_else() -> None:
    for path in STATIC.iterdir():
        text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|//[a-z]+\.|eval\(|innerHTML|document\.write|WebSocket|sendBeacon", text)
    for path in STATIC.glob("*.js"):
        assert len(path.read_text().splitlines()) <= 400
        for target in re.findall(r'^(?:import|export) .* from "([^"]+)";$', path.read_text(), re.MULTILINE):
            assert target.startswith("./")
            assert (STATIC / target).is_file()


def test_the_page_can_be_read_aloud() -> None:
    """Every control has a name, every id that scripts use exists, and headings have an order."""

    class Page(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[tuple[str, dict[str, str | None]]] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.tags.append((tag, dict(attrs)))

    page = Page()
    page.feed((STATIC / "index.html").read_text())
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert next(attributes["lang"] for tag, attributes in page.tags if tag == "html") == "en"
    for tag, attributes in page.tags:
        assert tag != "input" or attributes.get("aria-label") or attributes["type"] == "checkbox"  # inside a label
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
        if attributes.get("role") in ("img", "group"):
            assert attributes["aria-label"]
    scripts = "".join(path.read_text() for path in STATIC.glob("*.js"))
    used = set(re.findall(r'(?:find\("#|input\(")([\w-]+)', scripts))
    assert used
    assert used <= ids
    classes = {c for _, attributes in page.tags for c in (attributes.get("class") or "").split()}
    assert set(re.findall(r'find\("\.([\w-]+)', scripts)) <= classes


@pytest.mark.skipif(not shutil.which("node"), reason="Node is not installed")
def test_a_sentence_is_typed_in_javascript(packed: Path) -> None:
    script = Path(__file__).parents[3] / "conformance" / "check_session.mjs"
    done = subprocess.run(["node", script, packed], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    for path in STATIC.glob("*.js"):
        subprocess.run(["node", "--input-type=module", "--check"], input=path.read_bytes(), check=True)


def test_the_command_refuses_what_is_no_model(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "x.fgram").write_text("no model")
    assert "is not an lm.fgram file" in refused("phone", "keyboard", tmp_path / "x.fgram")
