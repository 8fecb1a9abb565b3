"""Keys and certificates of a federation: its own authority, the server's certificate, and one key per device.

A further key (`release.key`) signs the models that the server publishes; every device has its public part from the
beginning (`release.pub`). It is an Ed25519 key, whose signatures are the same bytes for the same content.
"""

import datetime
import ipaddress
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.federated.secure.identity import Identity

_YEARS, _AUTHORITY_YEARS = 2, 10
_PUBLIC_KEY = "use the key.pub that `fedgram federation join` created"
LOCAL = ("localhost", "127.0.0.1", "::1")


def write_authority(folder: Path, name: str) -> None:
    """Create `ca.key` and `ca.crt`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
    certificate = (
        _builder(subject, subject, key, _AUTHORITY_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_secret(folder / "ca.key", _pem(key))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_server_certificate(pair: Path, name: str, hosts: Iterable[str], ca_key: Path | None = None) -> None:
    """Write a new key of the server, and its certificate for these names and addresses, to one file, in one step.

    The authority of the file's folder signs it. Its key, `ca.key`, is needed for this only, and may be kept elsewhere.
    """
    signer, issuer = _authority(pair.parent, ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, issuer.subject, key, _YEARS)
        .add_extension(x509.SubjectAlternativeName([_alternative(h) for h in dict.fromkeys([*LOCAL, *hosts])]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    with atomic_write(pair, private=True) as file:
        file.write(_pem(key) + certificate.public_bytes(serialization.Encoding.PEM))


def _authority(folder: Path, ca_key: Path | None) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The key and the certificate of a folder's authority."""
    path = ca_key or folder / "ca.key"
    if not path.is_file():
        raise InputError(path, "is missing", remedy="name the authority's key with --ca-key, if it is kept elsewhere")
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    try:
        signer = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        signer = None
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise InputError(path, "is not the key of the federation's authority")
    return signer, issuer


def revoke_certificate(pair: Path, revoked: Path, ca_key: Path | None = None) -> None:
    """Add the server's certificate to a list of revoked ones, which the authority of its folder signs."""
    signer, issuer = _authority(pair.parent, ca_key)
    now = datetime.datetime.now(datetime.UTC)
    earlier = x509.load_pem_x509_crl(revoked.read_bytes()) if revoked.is_file() else None
    number = earlier.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number if earlier else 0
    builder = x509.CertificateRevocationListBuilder(issuer.subject, now, now + _days(_AUTHORITY_YEARS))
    for entry in earlier or ():
        builder = builder.add_revoked_certificate(entry)
    own = x509.load_pem_x509_certificate(pair.read_bytes())
    entry = x509.RevokedCertificateBuilder(own.serial_number, now).build()
    signed = builder.add_revoked_certificate(entry).add_extension(x509.CRLNumber(number + 1), False)
    with atomic_write(revoked) as file:
        file.write(signed.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def write_device_key(folder: Path) -> None:
    """Create `key` and `key.pub`, which identify a device to the server; an existing key is kept."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (folder / "key").exists():
        key, _ = read_private_key(folder / "key")
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        write_secret(folder / "key", private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "key.pub").write_bytes(public + b"\n")


def read_public_key(path: Path) -> bytes:
    """A device's public key in PEM, as Flower expects it."""
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(path, "is not a public key", remedy=_PUBLIC_KEY) from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(path, "is not an elliptic-curve key", remedy=_PUBLIC_KEY)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def ssh_public_key(pem: bytes) -> bytes:
    """A public key in PEM, in the format of SSH."""
    key = serialization.load_pem_public_key(pem)
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"


def read_private_key(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """A device's key pair."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, UnsupportedAlgorithm):
        remedy = "restore it, or delete it to get a new one, which the server must admit"
        raise InputError(path, "is not a private key", remedy=remedy) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(path, "is not an elliptic-curve key")
    return key, key.public_key()


def compressed_key(pem: bytes) -> bytes:
    """A device's public key in PEM as a compressed point, which names the device in masked rounds."""
    key = serialization.load_pem_public_key(pem)
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)


def read_identity(path: Path) -> Identity:
    """A device's key, for what it signs in masked rounds."""
    key, _ = read_private_key(path)
    return Identity(key.private_numbers().private_value)


def write_release_key(secret: Path, public: Path) -> None:
    """Create the key that signs releases of models, and its public part for devices; an existing key is kept."""
    if secret.is_file():
        key = _release_key(secret)
    else:
        key = ed25519.Ed25519PrivateKey.generate()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_secret(secret, pem)
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )  # fmt: skip


def sign(secret: Path, content: bytes) -> bytes:
    """The signature of some bytes, 64 bytes long."""
    return _release_key(secret).sign(content)


def is_signed(public: Path, content: bytes, signature: bytes) -> bool:
    """Whether some bytes were signed with the key of which this is the public part."""
    try:
        key = serialization.load_pem_public_key(public.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InputError(public, "is not the key of releases", remedy="copy it from the server's folder")
    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _release_key(path: Path) -> ed25519.Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InputError(path, "is not the key that signs releases", remedy="restore it from a backup")
    return key


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that no other user may read."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, years: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _days(years))
    )


def _days(years: int) -> datetime.timedelta:
    return datetime.timedelta(days=365 * years)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=sign_certificates, crl_sign=sign_certificates,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def free_port() -> int:
    """A port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
