"""Small packed models, a federation that signs them, and what a device makes of them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedgram.automata.model import NGramModel
from fedgram.deployment import installed, releases, rollout
from fedgram.deployment.folder import FederationConfig, Folder, make_folder
from fedgram.deployment.installed import Answer, ModelFolder
from fedgram.deployment.releases import Choice, Release, describe_model, sign_release
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model

PIECE = 512  # bytes, so that even a small model has several pieces
SECRET = bytes(range(32))
WORDS = ("there", "soon", "here", "later")


@cache
def packed(number: int) -> bytes:
    """A small packed model; after "see you", each has a word of its own."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lm.fgram"
        lines = [f"we will see you {WORDS[number]}", "you will see us", "they see"]
        pack(NGramModel.train(lines, order=3, smoothing="witten-bell"), path)
        return path.read_bytes()


def predicted(models: ModelFolder) -> str | None:
    """What the installed model predicts; None without a model."""
    path = models.current()
    return open_model(path).predict("see you", 1)[0].word if path else None


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models travel in many pieces."""
    for module in (installed, releases, rollout):
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)


def federation(path: Path) -> Folder:
    """A federation's folder, with its keys."""
    return make_folder(path, FederationConfig(masked_with=0))


def signed_release(
    home: Folder, version: int, models: Sequence[bytes], shares: Sequence[float] = (1.0,), rollout: str = ""
) -> bytes:
    """The bytes of a release."""
    choices = tuple(Choice(describe_model(m), share) for m, share in zip(models, shares, strict=True))
    release = Release(version, rollout or choices[0].model.digest, choices)
    return sign_release(release, home.server / "release.key")


def install(
    models: ModelFolder, home: Folder, signed: bytes, content: bytes, *, now: float = 0.0, secret: bytes = SECRET
) -> Answer:
    """Send a release and the pieces that the device wants, until it wants none."""
    answer = models.answer(signed, home.release_key, secret, now=now)
    size = releases.PIECE_BYTES
    while answer.state == "wants":
        piece = answer.piece, content[answer.piece * size : (answer.piece + 1) * size]
        answer = models.answer(signed, home.release_key, secret, now=now, piece=piece)
    return answer
