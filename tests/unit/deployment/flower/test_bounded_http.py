"""The first lines of a request: no more and no longer than a server needs to judge it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("httptools")

import uvicorn

from fedgram.deployment.flower import bounded_http
from fedgram.deployment.flower.bounded_http import HEAD_BYTES, BoundedProtocol
from fedgram.deployment.keys import free_port

GOOD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def served() -> Iterator[int]:
    port = free_port()
    config = uvicorn.Config(answer, port=port, http=BoundedProtocol, ws="none", log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join()


def ends(connection: socket.socket, chunk: bytes, most: int) -> bool:
    """Whether the server ends a connection before it has been sent so many bytes."""
    try:
        for _ in range(most // len(chunk)):
            connection.sendall(chunk)
        connection.settimeout(5)
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("chunk", [b"x" * 4096, b"a: b\r\n" * 500])
def test_first_lines_without_end_are_not_read(chunk: bytes) -> None:
    """One endless line, and endless lines: both once stayed in the server's memory, without a key."""
    with served() as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nlong: ")
            assert ends(connection, chunk, 400 * HEAD_BYTES)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for _ in range(3):  # the limit is that of one request
                connection.sendall(GOOD.replace(b"x", b"x" * (HEAD_BYTES // 2)))
                heard = b""
                while not heard.endswith(b"ok") and (part := connection.recv(1 << 16)):
                    heard += part
                assert heard.endswith(b"ok")


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begun", "chunk"),
    [(b"0\r\n", b"a: b\r\n" * 500), (b"0\r\na: ", b"x" * 4096), (b"1;", b"x" * 4096), (b"", b"1\r\nx\r\n" * 500)],
    ids=["lines after the body", "one long line after the body", "a chunk's long extension", "many small chunks"],
)
def test_what_surrounds_the_chunks_of_a_body_has_an_end(begun: bytes, chunk: bytes) -> None:
    """Uvicorn keeps the lines after a body, which a limit on bodies does not see."""
    with served() as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(CHUNKED + begun)
            assert ends(connection, chunk, 400 * HEAD_BYTES)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for _ in range(3):
                connection.sendall(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (3 * HEAD_BYTES, b"x" * 3 * HEAD_BYTES))
                heard = b""
                while not heard.endswith(b"ok") and (part := connection.recv(1 << 16)):
                    heard += part
                assert heard.endswith(b"ok")


def test_a_connection_must_say_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 0.3)
    with served() as port:
        for said in (b"", b"GET / HT", GOOD[:-2], GOOD + GOOD[:5]):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(said)
                connection.settimeout(5)
                heard = b""
                try:
                    while part := connection.recv(1 << 16):
                        heard += part
                except ConnectionResetError:
                    pass
                assert heard.endswith(b"ok") == said.startswith(GOOD)
