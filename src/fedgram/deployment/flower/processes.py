"""Starting Flower's two processes, the SuperLink and SuperNodes, with settings that suit a federation.

Telemetry and the look for updates are off, nothing is installed while running, and Flower's home is in the
federation's folder. Both are started through modules of ours (`superlink.py`, `supernode.py`), which tighten them.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import fedgram
from fedgram.core.errors import FedgramError, InputError, MissingDependencyError
from fedgram.deployment.folder import Folder
from fedgram.deployment.store import DeviceStore


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's processes."""
    programs, sources = str(Path(sys.executable).parent), str(Path(fedgram.__file__).parents[1])
    return {
        **os.environ,
        "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [sources, os.environ.get("PYTHONPATH", "")])),
    }  # fmt: skip


def require_flower() -> None:
    """Say in one line what to install."""
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise MissingDependencyError("a federation", "flower")


def start_superlink(folder: Folder, *, host: str, log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start the server's SuperLink; `host` is the address to listen on."""
    require_flower()
    secret = folder.server
    if folder.config.tls:
        files = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.crt", "--ssl-keyfile": "server.key"}
        for name in files.values():
            if not (secret / name).is_file():
                raise InputError(secret / name, "is missing", remedy="serve where `federation init` was run")
        safety = [part for option, name in files.items() for part in (option, str(secret / name))]
        safety.append("--enable-supernode-auth")
    else:
        safety = ["--insecure"]
    database = ":flwr-in-memory:" if folder.config.in_memory else str(secret / "superlink.db")
    env = environment(secret / "flwr")
    if folder.config.in_memory:
        env |= {"FEDGRAM_ADMITTED": str(secret), "FEDGRAM_HEARTBEAT": str(folder.heartbeat)}
    command = [
        sys.executable, "-m", "fedgram.deployment.flower.superlink", *safety,
        "--host", host, "--port", str(folder.config.port), "--database", database,
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    secret.mkdir(mode=0o700, exist_ok=True)
    return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def start_supernode(
    folder: Folder, store: DeviceStore, *, port: int, min_messages: int = 1, hooks: str = "",
    log: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start a device's SuperNode; `port` is one of this machine's, for the device's own processes."""
    require_flower()
    home = folder.node(store.number)
    safety = ["--insecure"]
    if folder.config.tls:
        if not folder.authority.is_file():
            raise InputError(folder.authority, "is missing", remedy="copy it from the server's folder")
        safety = ["--root-certificates", str(folder.authority), "--auth-supernode-private-key", str(home / "key")]
    pins = ",".join(folder.config.pins or ())
    values = {"data": str(store.path.resolve()), "jobs": str(home / "jobs"), "hooks": hooks, "pins": pins}
    config = " ".join(f'{name}="{value}"' for name, value in values.items()) + f" min-messages={min_messages}"
    config += f" masked-with={folder.config.masked_with} participations={folder.config.participations}"
    if any(mark in value for value in values.values() for mark in '"\\\n'):
        raise FedgramError("a device's paths may not hold quotes or backslashes")
    command = [
        sys.executable, "-m", "fedgram.deployment.flower.supernode", *safety, "--superlink", folder.address,
        "--host", "127.0.0.1", "--port", str(port), "--isolation", "process", "--node-config", config,
    ]  # fmt: skip
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    env = {**environment(home / "flwr"), "FEDGRAM_APP": str(folder.app), "FEDGRAM_POLL": str(folder.config.poll)}
    env["FEDGRAM_HEARTBEAT"] = str(folder.heartbeat)
    return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def end(process: subprocess.Popen[bytes], *, seconds: float = 10.0) -> None:
    """End a process that was started here, and those it started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # its own session: nobody else is in the group
    process.wait()


def wait_until_served(folder: Folder, process: subprocess.Popen[bytes] | None = None, *, seconds: float = 60.0) -> None:
    """Wait until the SuperLink answers."""
    from fedgram.deployment.flower.control import is_up

    end_time = time.monotonic() + seconds
    while not is_up(folder):
        if process is not None and process.poll() is not None:
            raise FedgramError(f"the server ended with code {process.returncode}; is port {folder.config.port} taken?")
        if time.monotonic() > end_time:
            raise FedgramError(f"no server answers at {folder.address}; start it with `fedgram federation serve`")
        time.sleep(0.2)
