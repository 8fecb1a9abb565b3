"""The port at which a SuperNode's worker asks for work belongs to the SuperNode, from before the worker starts."""

import gc
import socket

import pytest

pytest.importorskip("flwr")

from fedgram.deployment.flower.supernode import hold_port
from fedgram.deployment.keys import free_port


def takes(port: int) -> bool:
    """Whether somebody else can listen on a port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_nobody_else_gets_the_port_after_the_server_on_it_has_ended() -> None:
    """Whoever answers there tells the worker what to run; Flower's server ends before its process does."""
    port = free_port()
    assert takes(port)
    listening = hold_port("127.0.0.1", port)
    assert not takes(port)
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    listening.dup().close()  # as the server does
    listening.close()  # as Python does before the process ends
    del listening
    gc.collect()
    assert not takes(port)


def test_a_port_in_use_is_refused_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SystemExit, match=f"^fedgram: cannot listen on 127.0.0.1:{port} "):
            hold_port("127.0.0.1", port)
