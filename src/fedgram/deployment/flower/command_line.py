"""The SuperLink's control interface through Flower's command line (`flwr`), its public way.

Each call starts a process and takes seconds. The command line does not tell nodes' names and keys: they are read from
the list of admitted devices, and nodes that registered themselves, as without TLS, have none.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError
from fedgram.deployment.flower.admitted import read_admitted
from fedgram.deployment.flower.internals import Node
from fedgram.deployment.flower.programs import environment
from fedgram.deployment.folder import Folder
from fedgram.deployment.keys import ssh_public_key

_SECONDS = 120.0


class FlwrError(FedgramError):
    """A command of `flwr` failed."""


class CommandLine:
    """What `internals.ControlClient` does, for the SuperLink of a federation's folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def close(self) -> None:
        """Nothing to close."""

    def nodes(self) -> list[Node]:
        """All nodes that were ever registered."""
        known = {device.node: device for device in read_admitted(self._folder.server)}
        found = []
        for node in self._flwr("supernode", "list")["nodes"]:
            device = known.get(int(node["node-id"]))
            name, key = (device.name, device.key) if device else ("", None)
            found.append(Node(int(node["node-id"]), name, str(node["status"]), key))
        return found

    def register(self, public_key: bytes, name: str) -> int | None:
        """Register a node; None if its key is registered already."""
        with tempfile.TemporaryDirectory(prefix="fedgram-key-") as folder:
            path = Path(folder) / "key.pub"
            path.write_bytes(ssh_public_key(public_key))
            try:
                return int(self._flwr("supernode", "register", str(path), "--name", name)["node-id"])
            except FlwrError as error:
                if "in use" in str(error).lower():
                    return None
                raise

    def unregister(self, node: int) -> None:
        """Refuse a node from now on."""
        self._flwr("supernode", "unregister", str(node))

    def start_run(self, app: Path, config: Mapping[str, str]) -> int:
        """Start a run of an app with this configuration; returns the run's number."""
        settings = [part for name, value in config.items() for part in ("-c", f"{name}={json.dumps(value)}")]
        return int(self._flwr("run", str(app), *settings)["run-id"])

    def run_status(self, run: int) -> str:
        """The status of a run, or how it ended; "unknown" to a server that was started after it."""
        try:
            (found,) = self._flwr("list", "--run-id", str(run))["runs"]
        except (FlwrError, ValueError):
            return "unknown"
        return str(found["status"]).rpartition(":")[2]

    def stop_run(self, run: int) -> None:
        """End a run."""
        self._flwr("stop", str(run))

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """What a command prints as JSON."""
        command = ["flwr", *arguments, "--format", "json"]
        try:
            done = subprocess.run(
                command, env={**environment(self._folder.server / "flwr"), "COLUMNS": "200", "NO_COLOR": "1"},
                capture_output=True, text=True, timeout=_SECONDS, check=False,
            )  # fmt: skip
            found: dict[str, Any] = json.loads("{" + done.stdout.partition("{")[2])
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise FlwrError(f"`flwr {arguments[0]}` failed ({type(error).__name__})") from None
        if not found.get("success"):
            lines = [line.strip() for line in str(found.get("error-message", "")).splitlines() if line.strip()]
            raise FlwrError(f"`flwr {arguments[0]}` failed: {lines[-1] if lines else 'no reason given'}")
        return found
