"""The server's certificate: renewed while the server runs, revoked, and signed by a key that is kept elsewhere."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509

from fedgram.core.errors import FedgramError
from fedgram.deployment.checks import refuse_revoked
from fedgram.deployment.flower.internals_http import reloading
from fedgram.deployment.folder import FederationConfig, Folder, make_folder, renew_certificate
from fedgram.deployment.keys import write_authority


@pytest.fixture
def home(tmp_path: Path) -> Folder:
    return make_folder(tmp_path / "fed", FederationConfig())


@contextmanager
def served(home: Folder) -> Iterator[int]:
    """A server that shakes hands with the federation's certificate, and takes a new one when it changes."""
    certificate, key = home.server / "server.crt", home.server / "server.key"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    threading.Thread(target=reloading(context, certificate, key, seconds=0.01), daemon=True).start()
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


def serial(home: Folder, port: int, *, revoked: Path | None = None) -> int:
    """The serial number of the certificate that a device is shown, if it accepts it."""
    context = ssl.create_default_context(cafile=home.authority)
    refuse_revoked(context, revoked or home.path / "none")
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as safe,
    ):
        shown = safe.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def own_serial(home: Folder) -> int:
    return x509.load_pem_x509_certificate((home.server / "server.crt").read_bytes()).serial_number


def test_a_running_server_takes_a_new_certificate(home: Folder) -> None:
    with served(home) as port:
        before = own_serial(home)
        assert serial(home, port) == before
        assert renew_certificate(home, ("10.0.0.5",), ca_key=None, revoke=False) is None
        assert own_serial(home) != before
        now = before
        for _ in range(1000):
            with suppress(ssl.SSLError):  # between the new certificate and its key, a handshake may fail
                now = serial(home, port)
            if now != before:
                break
        assert serial(home, port) == own_serial(home)
    assert not home.revoked.exists()


def test_a_revoked_certificate_is_refused(home: Folder, tmp_path: Path) -> None:
    """Whoever has stolen the server's key cannot be the server for devices that have the list."""
    stolen = make_folder(tmp_path / "copy", FederationConfig())
    for name in ("ca.crt", "server.crt", "server.key"):
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
