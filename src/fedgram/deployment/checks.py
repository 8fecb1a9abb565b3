"""Checks before a server or a device is started, each of which says in one line what is wrong."""

import errno
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedgram.core.errors import FedgramError, InputError
from fedgram.deployment.folder import CONFIG, Folder

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
_RETRY_SECONDS = 1.0


class UnreachableError(FedgramError):
    """No server answers."""


def is_up(folder: Folder) -> bool:
    """Whether the federation's server answers on this machine."""
    import httpx

    try:
        return get_health(folder, folder.local_address, seconds=5.0).is_success
    except httpx.HTTPError:
        return False


def get_health(folder: Folder, address: str, *, seconds: float) -> "httpx.Response":
    """The answer of the server at an address to a health check; raises `httpx.HTTPError` if there is none."""
    import httpx

    verify: ssl.SSLContext | bool = False
    if folder.config.tls:
        try:
            verify = ssl.create_default_context(cafile=folder.authority)
        except ssl.SSLError:
            raise not_a_certificate(folder) from None
        refuse_revoked(verify, folder.revoked)
    return httpx.get(f"{'https' if folder.config.tls else 'http'}://{address}/health", verify=verify, timeout=seconds)


def refuse_revoked(context: ssl.SSLContext, revoked: Path) -> None:
    """Let a context refuse certificates that are on a list of revoked ones; nothing happens if there is no list."""
    if not revoked.is_file():
        return
    try:
        context.load_verify_locations(revoked)
    except ssl.SSLError:
        remedy = "copy it from the server's folder"
        raise InputError(revoked, "is not a list of revoked certificates", remedy=remedy) from None
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def check_reachable(folder: Folder, *, seconds: float = 10.0) -> None:
    """Refuse a server that a device cannot reach."""
    import httpx

    if folder.config.tls and not folder.authority.is_file():
        raise InputError(folder.authority, "is missing", remedy="copy it from the server's folder")
    try:
        get_health(folder, folder.address, seconds=seconds)
    except httpx.ConnectError as error:
        if "certificate revoked" in str(error):
            raise FedgramError(f"the server at {folder.address} has a certificate that was revoked") from None
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise FedgramError(wrong_authority(folder)) from None
        if "SSL" in str(error):
            raise FedgramError(f"the server at {folder.address} does not use TLS") from None
        remedy = "start it with `fedgram federation serve`"
        raise UnreachableError(f"no server answers at {folder.address}; {remedy}") from None
    except httpx.RemoteProtocolError:
        raise FedgramError(f"the server at {folder.address} answers over TLS only") from None
    except httpx.HTTPError as error:
        raise UnreachableError(f"no server answers at {folder.address} ({type(error).__name__})") from None


def once_reachable(
    act: Callable[[], T], seconds: float, *, clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> T:  # fmt: skip
    """Act as soon as the server answers; after so many seconds without an answer, raise what the last try did."""
    end, is_said = clock() + seconds, False
    while True:
        try:
            return act()
        except UnreachableError as error:
            if clock() >= end:
                raise
            if not is_said:
                print(f"fedgram: {error}; waiting for it", file=sys.stderr)
            is_said = True
            sleep(_RETRY_SECONDS)


def check_ready_to_serve(folder: Folder, host: str) -> None:
    """Refuse to start a server without its keys, or on an address or port that it cannot have."""
    if folder.config.tls:
        own = folder.server_pair
        if not own.is_file():
            raise InputError(own, "is missing", remedy="serve on the machine where `federation init` was run")
        try:
            ssl.create_default_context().load_cert_chain(own)
        except ssl.SSLError:
            remedy = "make them again with `fedgram federation renew`"
            raise InputError(own, "does not hold a key and its certificate", remedy=remedy) from None
    check_free(host, folder.config.port, f"change it in {folder.path / CONFIG}")


def check_free(host: str, port: int, remedy: str) -> None:
    """Refuse a port that is in use, and an address that is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise FedgramError(f"port {port} is in use; end the program that listens there, or {remedy}") from None
            raise FedgramError(f"cannot listen on {host}:{port} ({error.strerror or error})") from None


def not_a_certificate(folder: Folder) -> InputError:
    """The error for an authority that cannot be read."""
    return InputError(folder.authority, "is not a certificate", remedy="copy it from the server's folder")


def wrong_authority(folder: Folder) -> str:
    """What to say of a server whose certificate is of another authority."""
    return f"the server at {folder.address} has a certificate of another authority than {folder.authority}"
