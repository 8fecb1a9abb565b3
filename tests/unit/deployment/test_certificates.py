"""The server's certificate: renewed while the server runs, revoked, and signed by a key that is kept elsewhere."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from fedgram.core.errors import FedgramError
from fedgram.deployment.checks import refuse_revoked
from fedgram.deployment.flower.current_certificate import CurrentCertificate
from fedgram.deployment.folder import FederationConfig, Folder, make_folder, renew_certificate
from fedgram.deployment.keys import write_authority


@pytest.fixture
def home(tmp_path: Path) -> Folder:
    return make_folder(tmp_path / "fed", FederationConfig())


@contextmanager
def served(home: Folder, while_it_starts: Callable[[], object] = lambda: None) -> Iterator[int]:
    """A server that shakes hands with the federation's certificate, and takes a new one when it changes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home.server_pair)
    while_it_starts()
    CurrentCertificate(context, home.server_pair, seconds=0.001).watch()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    caller, _ = listening.accept()
                except OSError:
                    return
                try:
                    context.wrap_socket(caller, server_side=True).close()
                except OSError:
                    caller.close()

        threading.Thread(target=answer, daemon=True).start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)


def serial(home: Folder, port: int, *, revoked: Path | None = None, host: str = "127.0.0.1") -> int:
    """The serial number of the certificate that a device is shown, if it accepts it; only a name is told the server."""
    context = ssl.create_default_context(cafile=home.authority)
    refuse_revoked(context, revoked or home.path / "none")
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname=host) as safe,
    ):
        shown = safe.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def own_serial(home: Folder) -> int:
    return x509.load_pem_x509_certificate(home.server_pair.read_bytes()).serial_number


def test_a_running_server_takes_a_new_certificate(home: Folder) -> None:
    with served(home) as port:
        before = own_serial(home)
        assert serial(home, port) == before
        assert renew_certificate(home, ("10.0.0.5",), ca_key=None, revoke=False) is None
        assert own_serial(home) != before
        for _ in range(1000):
            if serial(home, port) != before:
                break
        assert serial(home, port) == serial(home, port, host="localhost") == own_serial(home)
    assert not home.revoked.exists()


def test_a_certificate_that_is_replaced_while_the_server_starts_is_shown(home: Folder) -> None:
    before = own_serial(home)
    with served(home, lambda: renew_certificate(home, (), ca_key=None, revoke=False)) as port:
        for _ in range(1000):
            if serial(home, port) != before:
                break
        assert serial(home, port) == own_serial(home) != before


def test_a_certificate_that_has_not_changed_is_loaded_once(home: Folder) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home.server_pair)
    shown = CurrentCertificate(context, home.server_pair)
    shown.load()
    loaded = shown._current
    shown.load()
    assert shown._current is loaded is not context


def test_no_handshake_fails_while_the_certificate_is_replaced(home: Folder) -> None:
    """Each shows one of the certificates that there were; a key never meets the certificate of another."""
    ended, known = threading.Event(), {own_serial(home)}

    def renew() -> None:
        for _ in range(60):
            renew_certificate(home, (), ca_key=None, revoke=False)
            known.add(own_serial(home))
        ended.set()

    with served(home) as port:
        renewing, seen = threading.Thread(target=renew), set[int]()
        renewing.start()
        while not ended.is_set():
            seen.add(serial(home, port))
        renewing.join()
    assert len(seen) > 1
    assert seen <= known


def test_a_damaged_certificate_is_not_taken(home: Folder, tmp_path: Path) -> None:
    """Neither half a file nor a key with another certificate: the server goes on with the one it has."""
    before, whole = own_serial(home), home.server_pair.read_bytes()
    other = make_folder(tmp_path / "other", FederationConfig()).server_pair.read_bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home.server_pair)
    shown = CurrentCertificate(context, home.server_pair)
    end = whole.index(b"-----BEGIN CERTIFICATE")
    for damaged in (whole[: end // 2], whole[:end], other[: other.index(b"-----BEGIN CERTIFICATE")] + whole[end:], b""):
        home.server_pair.write_bytes(damaged)
        shown.load()
        assert shown._current is context
    home.server_pair.unlink()
    shown.load()
    assert shown._current is context
    home.server_pair.write_bytes(whole)
    shown.load()
    assert shown._current is not context
    assert own_serial(home) == before


def test_a_revoked_certificate_is_refused(home: Folder, tmp_path: Path) -> None:
    """Whoever has stolen the server's key cannot be the server for devices that have the list."""
    stolen = make_folder(tmp_path / "copy", FederationConfig())
    for name in ("ca.crt", "server.pem"):
        (stolen.server / name).write_bytes((home.server / name).read_bytes())
    assert renew_certificate(home, (), ca_key=None, revoke=True) == home.revoked
    with served(stolen) as port:
        assert serial(home, port) == own_serial(stolen)  # a device without the list
        with pytest.raises(ssl.SSLError, match="certificate revoked"):
            serial(home, port, revoked=home.revoked)
    with served(home) as port:
        assert serial(home, port, revoked=home.revoked) == own_serial(home)
    first = own_serial(home)
    renew_certificate(home, (), ca_key=None, revoke=True)
    listed = x509.load_pem_x509_crl(home.revoked.read_bytes())
    assert {entry.serial_number for entry in listed} == {own_serial(stolen), first}
    assert listed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 2
    home.revoked.write_text("junk")
    with pytest.raises(FedgramError, match=r"ca\.crl: is not a list of revoked certificates"):
        refuse_revoked(ssl.create_default_context(), home.revoked)


def test_the_authoritys_key_may_be_kept_elsewhere(home: Folder, tmp_path: Path) -> None:
    away = tmp_path / "safe.key"
    (home.server / "ca.key").rename(away)
    before = own_serial(home)
    with pytest.raises(FedgramError, match=r"ca\.key: is missing; name the authority's key with --ca-key"):
        renew_certificate(home, (), ca_key=None, revoke=True)
    (tmp_path / "other").mkdir()
    write_authority(tmp_path / "other", "other")
    with pytest.raises(FedgramError, match="is not the key of the federation's authority"):
        renew_certificate(home, (), ca_key=tmp_path / "other" / "ca.key", revoke=False)
    assert own_serial(home) == before
    renew_certificate(home, (), ca_key=away, revoke=False)
    assert own_serial(home) != before
    with pytest.raises(FedgramError, match="has no server's certificate"):
        renew_certificate(make_folder(tmp_path / "plain", FederationConfig(tls=False)), (), ca_key=None, revoke=False)
