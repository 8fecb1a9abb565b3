"""Starts Flower's two processes, the SuperLink and SuperNodes, with settings that suit a federation.

Both are started through modules of ours (`superlink.py`, `supernode.py`), which restrict them. A SuperLink gets a new
token whenever it starts, in a file that only its user can read: who can read it may give it commands.
"""

import os
import secrets
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO

from fedgram.core.errors import FedgramError, InputError
from fedgram.deployment.checks import is_up
from fedgram.deployment.flower import internals
from fedgram.deployment.flower.programs import environment, module_command, require_flower
from fedgram.deployment.folder import Folder
from fedgram.deployment.keys import write_secret
from fedgram.deployment.store import DeviceStore

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_POLL_SECONDS = 0.2


def start_superlink(folder: Folder, *, host: str, log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start the server's SuperLink; `host` is the address to listen on.

    Without Flower's private modules it listens on this machine only, and keeps its state on disk, as nothing could
    restore the admitted devices in memory.
    """
    require_flower()
    if host not in LOOPBACK:
        internals.require(f"serving other machines, on {host},")
    secret = folder.server
    guarded = internals.are_enabled()
    in_memory = folder.config.in_memory and guarded
    secret.mkdir(mode=0o700, exist_ok=True)
    write_secret(folder.token, secrets.token_hex(32).encode())
    env = environment(secret / "flwr") | {
        "FEDGRAM_SERVER": str(secret), "FEDGRAM_APP": str(folder.app), "FEDGRAM_TOKEN": str(folder.token),
        "FEDGRAM_ADDRESS": folder.local_address, "FEDGRAM_REPLY_MB": str(folder.config.reply_mb),
        "FEDGRAM_AUTHORITY": str(folder.authority) if folder.config.tls else "",
    }  # fmt: skip
    if in_memory:
        env |= {"FEDGRAM_ADMITTED": str(secret), "FEDGRAM_HEARTBEAT": str(folder.heartbeat)}
    command = [
        *module_command("fedgram.deployment.flower.superlink"), *_server_tls(folder),
        "--host", host, "--port", str(folder.config.port),
        "--database", ":flwr-in-memory:" if in_memory else str(secret / "superlink.db"),
        "--disable-runtime-dependency-installation",
        "--isolation", "process" if guarded else "subprocess",
    ]  # fmt: skip
    return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def _server_tls(folder: Folder) -> list[str]:
    """The options of a SuperLink that encrypts and admits registered devices only; or that does neither."""
    if not folder.config.tls:
        return ["--insecure"]
    pair, authority = folder.server_pair, folder.server / "ca.crt"
    for path in (pair, authority):
        if not path.is_file():
            raise InputError(path, "is missing", remedy="serve on the machine where `federation init` was run")
    files = {"--ssl-ca-certfile": authority, "--ssl-certfile": pair, "--ssl-keyfile": pair}
    options = [part for option, path in files.items() for part in (option, str(path))]
    return [*options, "--enable-supernode-auth"]


def start_supernode(
    folder: Folder, store: DeviceStore, *, port: int, min_messages: int = 1, hooks: str = "",
    log: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start a device's SuperNode; `port` is a local one, for the device's own processes.

    Without Flower's private modules the server must be on this machine: nothing would stop the device from running
    whatever app the server sends.
    """
    require_flower()
    if folder.config.host not in LOOPBACK:
        internals.require(f"joining a server on another machine, {folder.config.host},")
    home = folder.node(store.number)
    safety = ["--insecure"]
    if folder.config.tls:
        if not folder.authority.is_file():
            raise InputError(folder.authority, "is missing", remedy="copy it from the server's folder")
        safety = ["--root-certificates", str(folder.authority), "--auth-supernode-private-key", str(home / "key")]
    command = [
        *module_command("fedgram.deployment.flower.supernode"), *safety, "--superlink", folder.address,
        "--host", "127.0.0.1", "--port", str(port),
        "--isolation", "process" if internals.are_enabled() else "subprocess",
        "--node-config", _node_config(folder, store, min_messages, hooks),
    ]  # fmt: skip
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    env = {**environment(home / "flwr"), "FEDGRAM_APP": str(folder.app), "FEDGRAM_POLL": str(folder.config.poll)}
    env |= {"FEDGRAM_HEARTBEAT": str(folder.heartbeat), "FEDGRAM_REVOKED": str(folder.revoked)}
    return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def _node_config(folder: Folder, store: DeviceStore, min_messages: int, hooks: str) -> str:
    """What `client_app.py` reads to open the device."""
    pins, jobs = ",".join(folder.config.pins or ()), folder.node(store.number) / "jobs"
    values = {"data": str(store.path.resolve()), "jobs": str(jobs), "hooks": hooks, "pins": pins}
    values["release-key"] = str(folder.release_key)
    if any(mark in value for value in values.values() for mark in '"\\\n'):
        raise FedgramError("the paths of a device must not contain quotes, backslashes or line breaks")
    config = " ".join(f'{name}="{value}"' for name, value in values.items()) + f" min-messages={min_messages}"
    config += f" masked-with={folder.config.masked_with} participations={folder.config.participations}"
    config += f" majority={folder.config.majority} value-bits={folder.config.value_bits}"
    config += f" neighbours={folder.config.neighbours or 0}"
    return config + f" dev-share={folder.config.dev_share} test-share={folder.config.test_share}"


def end(process: subprocess.Popen[bytes], *, seconds: float = 10.0) -> None:
    """End a process that was started here, and those it started."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # its own session: the group holds only its processes
    process.wait()


def wait_until_served(folder: Folder, process: subprocess.Popen[bytes] | None = None, *, seconds: float = 60.0) -> None:
    """Wait until the SuperLink answers."""
    deadline = time.monotonic() + seconds
    while not is_up(folder):
        if process is not None and process.poll() is not None:
            code, port = process.returncode, folder.config.port
            raise FedgramError(f"the server ended with code {code}; check that port {port} is free")
        if time.monotonic() > deadline:
            raise FedgramError(f"no server answers at {folder.address}; start it with `fedgram federation serve`")
        time.sleep(_POLL_SECONDS)
