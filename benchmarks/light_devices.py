"""Devices that are threads: they speak a SuperNode's protocol, with its own functions, and do the work themselves."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from fedgram.deployment.flower.grid_transport import from_records, to_records
from fedgram.deployment.folder import Folder

Answer = Callable[[str, dict[str, bytes]], Mapping[str, bytes]]


def _give_up(*_: object) -> None:
    """In place of Flower's exit, which would end all devices of the process."""
    raise ConnectionError


class LightDevice(threading.Thread):
    """A device that answers until `stop` is set; `latencies` has the seconds that each reply took to hand over."""

    def __init__(self, folder: Folder, keys: Any, answer: Answer, stop: threading.Event, poll: float = 1.0) -> None:
        super().__init__(daemon=True)
        self._folder, self._keys, self._answer, self._stopping, self._poll = folder, keys, answer, stop, poll
        self.latencies: list[float] = []
        self.failures = 0

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._serve()
            except BaseException:  # the server is away, and with it the connection: begin again
                self.failures += 1
                self._stopping.wait(1.0)

    def _serve(self) -> None:
        from flwr.supernode import fleet_http_connection

        http_request_response = fleet_http_connection.http_request_response
        setattr(fleet_http_connection, "flwr_exit", _give_up)  # noqa: B010
        for module in (fleet_http_connection, import_module("flwr.supercore.heartbeat")):
            setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", self._folder.heartbeat)  # noqa: B010
        tls = self._folder.config.tls
        certificates = self._folder.authority.read_bytes() if tls else None
        with ExitStack() as stack:
            connection = stack.enter_context(
                http_request_response(self._folder.address, not tls, certificates, self._keys)
            )
            while not self._stopping.is_set():
                if not self._one(connection):
                    self._stopping.wait(self._poll)

    def _one(self, connection: Any) -> bool:
        """Answer a message, if there is one."""
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            iterate_object_tree,
        )
        from flwr.supercore.inflatable.inflatable_utils import (
            ObjectPullError,
            inflate_object_from_contents,
            pull_objects,
        )

        _, receive, send, _, _, pull_object, push_object, confirm = connection
        found = receive()
        if found is None:
            return False
        about, tree = found
        run, name = about.metadata.run_id, about.metadata.message_id
        try:
            parts = [part.object_id for part in iterate_object_tree(tree)]
            contents = pull_objects(parts, lambda part: pull_object(run, part))
        except ObjectPullError:  # the server died before it had sent all
            return False
        confirm(run, name)
        request: Any = inflate_object_from_contents(name, contents)
        request.metadata.__dict__["_message_id"] = name
        made = self._answer(request.metadata.message_type, from_records(request.content))
        reply: Any = Message(to_records(made), reply_to=request)
        began = time.perf_counter()
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        for object_id in wanted:
            push_object(run, session, object_id, objects[object_id].deflate())
        self.latencies.append(time.perf_counter() - began)
        return True
