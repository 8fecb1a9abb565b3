"""Keeping Flower's processes up: one that ends is started again, after a while, until it is told to end."""

import errno
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgram.core.errors import FedgramError, InputError
from fedgram.deployment.folder import CONFIG, Folder
from fedgram.deployment.locks import locked

_STEADY = 30.0  # seconds after which a process is taken to have worked
_ATTEMPTS = 5
_KNOCK = 10.0


class ComeBack(FedgramError):
    """A reason for which a process ended that may pass."""


def keep(start: Callable[[], "subprocess.Popen[bytes]"], explain: Callable[[], FedgramError | None], log: Path) -> None:
    """Run a process, again and again; give up if it keeps ending at once, or if `explain` knows why it must."""
    from fedgram.deployment.flower.processes import end

    failures = 0
    while True:
        began = time.monotonic()
        process = start()
        try:
            code = process.wait()
        finally:
            end(process)
        why = explain()
        if isinstance(why, ComeBack):
            print(f"fedgram: {why}; trying again", file=sys.stderr)
            time.sleep(_KNOCK)
            continue
        if why:
            raise why
        failures = 0 if time.monotonic() - began > _STEADY else failures + 1
        if failures >= _ATTEMPTS:
            raise FedgramError(f"it ended {failures} times at once, with code {code}; see {log}")
        print(f"fedgram: ended with code {code}; starting again", file=sys.stderr)
        time.sleep(min(2.0**failures, 30.0))


def why_refused(folder: Folder, number: int) -> FedgramError | None:
    """What a SuperNode's log says of why the server did not let it in; None if it says nothing of the kind."""
    log = folder.node(number) / "log"
    text = log.read_text("utf-8", "replace")[-20_000:] if log.is_file() else ""
    text = text[text.rfind("Starting Flower SuperNode") :]
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return FedgramError(
            f"the server at {folder.address} has a certificate of another authority than {folder.authority}"
        )
    if "[code: 2004]" in text:  # also for a minute after a node was cut off, until the server has noticed
        how = f"fedgram federation admit DIR {number} key.pub"
        return ComeBack(f"the server does not let device {number} in; if it is new, run there: {how}")
    return None


def check_reachable(folder: Folder, *, seconds: float = 10.0) -> None:
    """Say in one line what is wrong with the way to the server, before anything is started."""
    import httpx

    scheme = "https" if folder.config.tls else "http"
    if folder.config.tls and not folder.authority.is_file():
        raise InputError(folder.authority, "is missing", remedy="copy it from the server's folder")
    try:
        verify = ssl.create_default_context(cafile=folder.authority) if folder.config.tls else False
    except ssl.SSLError:
        raise not_a_certificate(folder) from None
    try:
        httpx.get(f"{scheme}://{folder.address}/health", verify=verify, timeout=seconds)
    except httpx.ConnectError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise FedgramError(
                f"the server at {folder.address} has a certificate of another authority than {folder.authority}"
            ) from None
        if "SSL" in str(error):
            raise FedgramError(f"the server at {folder.address} does not speak TLS") from None
        raise FedgramError(f"no server answers at {folder.address}; is it started?") from None
    except httpx.RemoteProtocolError:
        raise FedgramError(f"the server at {folder.address} answers over TLS alone") from None
    except httpx.HTTPError as error:
        raise FedgramError(f"no server answers at {folder.address} ({type(error).__name__})") from None


def check_ready_to_serve(folder: Folder, host: str) -> None:
    """Say in one line why a server could not be started here."""
    if folder.config.tls:
        own = folder.server / "server.crt", folder.server / "server.key"
        for path in own:
            if not path.is_file():
                raise InputError(path, "is missing", remedy="serve where `federation init` was run")
        try:
            ssl.create_default_context().load_cert_chain(*own)
        except ssl.SSLError:
            remedy = "restore both, or make a new federation"
            raise InputError(own[1], "is not the key of server.crt, or damaged", remedy=remedy) from None
    check_free(host, folder.config.port, f"change it in {folder.path / CONFIG}")


def check_free(host: str, port: int, remedy: str) -> None:
    """Refuse a port that somebody listens on, and an address that is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise FedgramError(f"port {port} is taken; end what listens there, or {remedy}") from None
            raise FedgramError(f"cannot listen on {host}:{port} ({error.strerror or error})") from None


@contextmanager
def alone(home: Path, what: str) -> Iterator[None]:
    """Be the only one to keep the process of a folder up."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(home, seconds=0, taken=f"{what} already, by another process on this machine", name=".kept"):
        yield


def not_a_certificate(folder: Folder) -> InputError:
    """What to say of an authority that cannot be read."""
    return InputError(folder.authority, "is not a certificate", remedy="copy it from the server's folder")


def log_of(path: Path) -> Path:
    """A log's path, with its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
