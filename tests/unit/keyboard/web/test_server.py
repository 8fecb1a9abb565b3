"""The keyboard's server answers when it says so, and ends in order when it is told to."""

import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.fgram.pack import pack
from fedgram.keyboard.web.app import make_app
from fedgram.keyboard.web.server import serve


@pytest.fixture
def ended_by() -> Iterator[list[int]]:
    """The signals that reach the process itself."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_a_signal_right_after_the_announcement_ends_the_server(tmp_path: Path, ended_by: list[int]) -> None:
    pack(NGramModel.train(["we live here"] * 3, order=2, smoothing="witten-bell"), tmp_path / "lm.fgram")
    pages: list[bytes] = []
    asking: list[Thread] = []

    def ask(port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/models.json") as answer:
            pages.append(answer.read())
        signal.raise_signal(signal.SIGTERM)

    def announce(port: int) -> None:
        asking.append(Thread(target=ask, args=(port,)))
        asking[0].start()

    serve(make_app([tmp_path / "lm.fgram"]), "127.0.0.1", 0, announce)
    asking[0].join()
    assert b"lm" in pages[0]
    assert ended_by == [signal.SIGTERM]  # once the server has ended, the process hears of it


def test_nothing_of_the_caller_handles_signals_while_it_serves(tmp_path: Path, ended_by: list[int]) -> None:
    pack(NGramModel.train(["we live here"] * 3, order=2, smoothing="witten-bell"), tmp_path / "lm.fgram")
    handlers = []

    def announce(_: int) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        signal.raise_signal(signal.SIGTERM)
        assert not ended_by

    mine = signal.getsignal(signal.SIGTERM)
    serve(make_app([tmp_path / "lm.fgram"]), "127.0.0.1", 0, announce)
    assert handlers != [mine]
    assert signal.getsignal(signal.SIGTERM) == mine
    assert ended_by == [signal.SIGTERM]


def test_the_port_is_announced_when_the_application_is_ready(ended_by: list[int]) -> None:
    """A page that is asked for before would wait, or never come."""
    order: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "lifespan":
            event = (await receive())["type"]
            order.append(event)
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return

    def announce(_: int) -> None:
        order.append("announced")
        signal.raise_signal(signal.SIGTERM)

    serve(app, "127.0.0.1", 0, announce)
    assert order == ["lifespan.startup", "announced", "lifespan.shutdown"]
    assert ended_by == [signal.SIGTERM]


def test_a_place_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FedgramError, match=rf"cannot listen on 127\.0\.0\.1:{port}; choose another"):
            serve(None, "127.0.0.1", port, lambda _: None)
