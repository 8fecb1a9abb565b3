"""Long-term keys of devices, and what they sign: ECDSA over P-256 with SHA-256, with the keys that Flower knows too.

A public key is its compressed point (33 bytes) and a signature is r and s (64 bytes). Only statements are signed: the
digest of a purpose, the context of one round and what is said about it, so that a signature is valid for nothing else.
"""

import hashlib
from functools import cache, lru_cache
from typing import Any, NamedTuple

from fedgram.core.errors import MissingDependencyError

PUBLIC_BYTES, SIGNATURE_BYTES = 33, 64
_HALF = SIGNATURE_BYTES // 2
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_REMEMBERED = 1 << 14  # checked signatures and read keys; a simulation has all devices of a round in one process


class _Package(NamedTuple):
    ec: Any
    curve: Any
    scheme: Any
    encode: Any
    decode: Any
    point: tuple[Any, Any]
    invalid: type[Exception]


@cache
def _package() -> _Package:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    except ImportError:
        raise MissingDependencyError("secure aggregation", "secure") from None
    point = Encoding.X962, PublicFormat.CompressedPoint
    return _Package(
        ec, ec.SECP256R1(), ec.ECDSA(SHA256()), encode_dss_signature, decode_dss_signature, point, InvalidSignature
    )


class Identity:
    """A device's long-term key; `secret` is its number, from 1 up to the order of the curve."""

    __slots__ = ("_key", "public")

    def __init__(self, secret: int) -> None:
        package = _package()
        self._key = package.ec.derive_private_key(secret, package.curve)
        self.public: bytes = self._key.public_key().public_bytes(*package.point)

    @classmethod
    def from_entropy(cls, drawn: bytes) -> "Identity":
        """The key of some random bytes, at least 40 of them."""
        return cls(int.from_bytes(drawn, "big") % (_ORDER - 1) + 1)

    def sign(self, content: bytes) -> bytes:
        """The signature of a statement."""
        package = _package()
        r, s = package.decode(self._key.sign(content, package.scheme))
        return bytes(r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big"))

    def __repr__(self) -> str:
        return "Identity()"


def statement(purpose: bytes, context: bytes, *parts: bytes) -> bytes:
    """What is signed: a digest of the purpose, the context of the round, and parts of any length."""
    sha = hashlib.sha256(b"fedgram signs " + purpose + b"\n" + context)
    for part in parts:
        sha.update(len(part).to_bytes(8, "little") + part)
    return sha.digest()


def is_public_key(public: bytes) -> bool:
    """Whether some bytes are a point of the curve, compressed."""
    return _read(public) is not None


@lru_cache(_REMEMBERED)
def _read(public: bytes) -> Any:
    package = _package()
    try:
        return package.ec.EllipticCurvePublicKey.from_encoded_point(package.curve, public) if public else None
    except ValueError:
        return None


@lru_cache(_REMEMBERED)
def is_signed_by(public: bytes, content: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key signed a statement."""
    package, key = _package(), _read(public)
    if key is None or len(signature) != SIGNATURE_BYTES:
        return False
    r, s = (int.from_bytes(part, "big") for part in (signature[:_HALF], signature[_HALF:]))
    try:
        key.verify(package.encode(r, s), content, package.scheme)
    except package.invalid:
        return False
    return True
