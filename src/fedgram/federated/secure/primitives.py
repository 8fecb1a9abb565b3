"""The cryptography of secure aggregation, all from the package `cryptography`.

X25519 agrees on a secret, HKDF-SHA-256 derives a 256-bit key from it for each purpose and round, ChaCha20 expands a key
to a mask, and ChaCha20-Poly1305 encrypts and authenticates shares. Every key is used once, so nonces may be 0.
"""

import hashlib
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgram.core.errors import MissingDependencyError
from fedgram.federated.secure.settings import RefusedMessageError

Words = NDArray[np.uint64]
KEY_BYTES, TAG_BYTES = 32, 16
_BLOCK = 1 << 14  # words of a mask generated at a time; they fit the processor's cache
_ZEROS = bytes(8 * _BLOCK)


class _Package(NamedTuple):
    sha256: Any
    private_key: Any
    public_key: Any
    cipher: Any
    chacha20: Any
    chacha20_poly1305: Any
    hkdf: Any


@cache
def _package() -> _Package:
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise MissingDependencyError("secure aggregation", "secure") from None
    return _Package(SHA256(), X25519PrivateKey, X25519PublicKey, Cipher, ChaCha20, ChaCha20Poly1305, HKDF)


class KeyPair:
    """An X25519 key pair: 32 secret bytes and 32 public bytes."""

    __slots__ = ("_key", "public", "secret")

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self._key = _package().private_key.from_private_bytes(secret)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret shared with the owner of a public key."""
        try:
            agreed: bytes = self._key.exchange(_package().public_key.from_public_bytes(public))
        except ValueError:  # a point of small order gives no secret
            raise RefusedMessageError("a device's public key is not valid") from None
        return agreed

    def __repr__(self) -> str:
        return "KeyPair()"


def derive(secret: bytes, context: bytes, purpose: bytes) -> bytes:
    """A 256-bit key for one purpose in one round."""
    package = _package()
    key: bytes = package.hkdf(package.sha256, KEY_BYTES, salt=context, info=b"fedgram " + purpose).derive(secret)
    return key


def pair_mask_key(agreed: bytes, context: bytes, one: int, other: int) -> bytes:
    """The key of the mask that two places share, from the secret that they agree on.

    Several public keys agree on the same secret with any other key (RFC 7748, section 7). So a device could take a key
    that is equivalent to that of another one. Masks of different pairs differ even then, and none cancels another.
    """
    low, high = sorted((one, other))
    return derive(agreed, context, b"pair mask" + low.to_bytes(4, "little") + high.to_bytes(4, "little"))


def commitment(seed: bytes, context: bytes) -> bytes:
    """A device's commitment to its seed, with which the server checks the seed it recovers."""
    return hashlib.sha256(b"fedgram seed" + context + seed).digest()


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate; the key must not be used again."""
    sealed: bytes = _package().chacha20_poly1305(key).encrypt(bytes(12), content, about)
    return sealed


def unseal(key: bytes, content: bytes, about: bytes) -> bytes | None:
    """The content that was sealed; None if it was changed or sealed with another key."""
    from cryptography.exceptions import InvalidTag

    try:
        opened: bytes = _package().chacha20_poly1305(key).decrypt(bytes(12), content, about)
    except InvalidTag:
        return None
    return opened


def add_mask(total: Words, key: bytes, sign: int) -> None:
    """Add the key's mask, or subtract it if `sign` is negative, modulo 2⁶⁴, in place."""
    package = _package()
    stream = package.cipher(package.chacha20(key, bytes(16)), None).encryptor()
    block = np.empty(min(_BLOCK, len(total)), "<u8")
    raw, zeros = block.data.cast("B"), memoryview(_ZEROS)
    change = np.add if sign > 0 else np.subtract
    for first in range(0, len(total), _BLOCK):
        part = total[first : first + _BLOCK]
        stream.update_into(zeros[: 8 * len(part)], raw)
        change(part, block[: len(part)], out=part)


def pack(words: Words, width: int) -> memoryview:
    """The lowest `width` bytes of each word."""
    octets = words.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(octets[:, :width]).reshape(-1).data


def unpack(data: memoryview, width: int) -> Words:
    """Words with these lowest bytes; their other bytes are arbitrary."""
    octets = np.zeros(len(data) + 8, np.uint8)
    octets[: len(data)] = data
    return np.ndarray(len(data) // width, "<u8", buffer=octets.data, strides=(width,))  # the words overlap


def signed(words: Words, width: int) -> NDArray[np.int64]:
    """The lowest `width` bytes of each word, read as a signed number."""
    shift = 64 - 8 * width
    return (words << np.uint64(shift)).astype(np.uint64, copy=False).view(np.int64) >> shift
