"""Releases: which model devices are to install, signed by the federation.

A release has a version, and versions only go up. So an earlier release that somebody sends again is refused, and going
back to an earlier model is a new release that names it. The release describes each model by its size, its digest and
the digests of its pieces, in which it travels. Its bytes are

    signature (64 bytes) · JSON {"version": 3, "rollout": "…", "choices": [{"model": …, "share": 0.01}, …]}

A release has one model for a share of the devices, or one per arm of an experiment. Each device decides by a keyed hash
of its own secret and the name of the rollout which of the choices is for it, if any (`own_secret.py`). A model keeps
the name of its rollout from release to release, so a larger share includes the devices of the smaller one.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError, InvariantError
from fedgram.deployment.keys import is_signed, sign
from fedgram.deployment.own_secret import keyed_number

PIECE_BYTES = 1 << 20
MAX_MODEL_BYTES = 1 << 28  # as in a packed model's format
MAX_RELEASE_BYTES = 1 << 17
_MAX_VERSION, _MAX_CHOICES, _SIGNATURE_BYTES = 10**12, 16, 64
_PURPOSE = b"fedgram release 1\n"  # so that a signature of a release is one of nothing else


class RefusedReleaseError(FedgramError):
    """A release or a piece that a device does not accept; `reason` is a fixed word for the server."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ReleasedModel:
    """A model as a release describes it: SHA-256 of the file and of each of its pieces, and its size in bytes."""

    digest: str
    size: int
    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 0 < self.size <= MAX_MODEL_BYTES:
            raise InvariantError("a released model must have between 1 byte and 256 MiB")
        if len(self.pieces) != -(-self.size // PIECE_BYTES) or not all(map(is_digest, (self.digest, *self.pieces))):
            raise InvariantError("a released model needs a digest, and one for each of its pieces")

    def piece_size(self, number: int) -> int:
        """Bytes of a piece."""
        return min(PIECE_BYTES, self.size - number * PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class Choice:
    """A model, and the share of the devices that it is for."""

    model: ReleasedModel
    share: float

    def __post_init__(self) -> None:
        if type(self.share) not in (int, float) or not 0 < self.share <= 1:
            raise InvariantError("the share of a release must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Release:
    """A release: its version, the name of its rollout, and models with their shares."""

    version: int
    rollout: str
    choices: tuple[Choice, ...]

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 0 < self.version <= _MAX_VERSION:
            raise InvariantError("the version of a release must be a number from 1")
        if not is_digest(self.rollout) or not 0 < len(self.choices) <= _MAX_CHOICES:
            raise InvariantError("a release needs a rollout and at least one model")
        if sum(choice.share for choice in self.choices) > 1 + 1e-9:
            raise InvariantError("the shares of a release add up to more than 1")

    def choice_of(self, secret: bytes) -> int | None:
        """Which of the choices is for the device with this secret; None if none is."""
        at, end = keyed_number(secret, "share", self.rollout), 0.0
        for number, choice in enumerate(self.choices):
            end += choice.share
            if at < end:
                return number
        return None


def is_digest(text: Any) -> bool:
    """Whether something is a SHA-256 digest in hexadecimal."""
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


def digest_of(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def describe_model(content: bytes) -> ReleasedModel:
    """What a release says of a model's bytes."""
    pieces = tuple(digest_of(content[first : first + PIECE_BYTES]) for first in range(0, len(content), PIECE_BYTES))
    return ReleasedModel(digest_of(content), len(content), pieces)


def sign_release(release: Release, key: Path) -> bytes:
    """The bytes of a release, signed with the federation's key."""
    body = json.dumps(asdict(release), sort_keys=True, separators=(",", ":")).encode()
    return sign(key, _PURPOSE + body) + body


def open_release(signed: bytes, public_key: Path) -> Release:
    """The release of some bytes; they must be signed by the federation."""
    if len(signed) > MAX_RELEASE_BYTES:
        raise RefusedReleaseError("malformed", "the release is too large")
    if not public_key.is_file():
        raise RefusedReleaseError("no key", f"{public_key} is missing; copy it from the server's folder")
    signature, body = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
    if not is_signed(public_key, _PURPOSE + body, signature):
        raise RefusedReleaseError("bad signature", "the release is not signed by the federation")
    try:
        return _release(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvariantError):
        raise RefusedReleaseError("malformed", "the release cannot be read; a newer fedgram may be needed") from None


def _release(fields: Any) -> Release:
    choices = tuple(
        Choice(ReleasedModel(m["digest"], m["size"], tuple(m["pieces"])), choice["share"])
        for choice in fields["choices"]
        for m in [choice["model"]]
    )
    return Release(fields["version"], fields["rollout"], choices)
