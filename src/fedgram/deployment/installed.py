"""The models on a device: the installed one, the one before it, and the pieces of the next one.

    installed.json     which model is installed, from which release, and the highest version accepted
    lm.fgram           a link to the installed model, for the keyboard
    DIGEST.fgram       the installed model and the one before it
    incoming/DIGEST    the pieces of a model that have arrived so far

A model becomes the installed one when `installed.json` is replaced, which happens at once or not at all, after the
model is complete, verified and on disk. So whenever the process is killed, the folder has one whole installed model,
and the next request continues from there. A model that is damaged later is not used: the one before it takes its place
until it has arrived again. If the disk is full, nothing changes.
"""

import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import atomic_write, flush
from fedgram.deployment.releases import (
    PIECE_BYTES,
    RefusedReleaseError,
    Release,
    ReleasedModel,
    digest_of,
    is_digest,
    open_release,
)
from fedgram.fgram.reader import open_model

STATE, LINK, INCOMING, SUFFIX = "installed.json", "lm.fgram", "incoming", ".fgram"
INSTALLED, OUTSIDE, WANTS, REFUSED = "installed", "outside", "wants", "refused"
Content = dict[str, bytes]
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Installed:
    """What a device has: the release it accepted last, and the model that is installed.

    `seen` is the highest version that it accepted, and `release` the digest of that release. `model` and `previous` are
    digests, "" if there is none. `version` is that of the release which asked for the model, `rollout` and `choice` say
    for which share of which rollout, and `time` when the device joined it, in seconds since 1970.
    """

    seen: int = 0
    release: str = ""
    version: int = 0
    model: str = ""
    previous: str = ""
    rollout: str = ""
    choice: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Where a device stands with a release: `installed`, `outside` its shares, or it `wants` a piece of a model."""

    state: str
    model: str = ""
    piece: int = 0


class ModelFolder:
    """A device's folder of models."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def state(self) -> Installed:
        """What is installed; a damaged record is an error, because it says which releases to refuse."""
        path = self.path / STATE
        if not path.is_file():
            return Installed()
        try:
            found = Installed(**json.loads(path.read_text("utf-8")))
            if not _is_sound(found):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            remedy = "restore it, or delete it to accept any release"
            raise InputError(path, "is damaged", remedy=remedy) from None
        return found

    def current(self) -> Path | None:
        """The installed model; if it is damaged, the one before it; None if there is no whole model."""
        try:
            state = self.state()
            known = [digest for digest in (state.model, state.previous) if digest]
        except InputError:
            files = sorted(self.path.glob(f"*{SUFFIX}"), key=lambda path: path.lstat().st_mtime, reverse=True)
            known = [path.stem for path in files if is_digest(path.stem)]
        return next((self._file(digest) for digest in known if self._is_whole(digest)), None)

    def version(self) -> int:
        """The version that is installed, as the server is told; 0 if there is none, or if it is not known."""
        try:
            state = self.state()
        except InputError:
            return 0
        return state.version if state.model and self._file(state.model).is_file() else 0

    def answer(
        self, signed: bytes, public_key: Path, secret: bytes, *, now: float, piece: tuple[int, bytes] | None = None
    ) -> Answer:
        """Accept a release, with a piece of its model if one came along, and say what is needed next.

        Raises `RefusedReleaseError` if the release, the piece or the model is not accepted; the device then keeps what
        it had.
        """
        release = open_release(signed, public_key)
        with self._changing():
            state = self._accept(release, digest_of(signed))
            number = release.choice_of(secret)
            if number is None:
                self._tidy(state)
                return Answer(OUTSIDE)
            model = release.choices[number].model
            state = replace(
                state, version=release.version, rollout=release.rollout, choice=number,
                time=state.time if (state.rollout, state.model) == (release.rollout, model.digest) else now,
            )  # fmt: skip
            if not self._is_whole(model.digest):
                wanted = self._take(model, piece)
                if wanted < len(model.pieces):
                    if whole := self.current():  # the link must not name a model that was damaged
                        self._link(whole.stem)
                    return Answer(WANTS, model.digest, wanted)
                self._complete(model)
            self._commit(state, model.digest)
            return Answer(INSTALLED)

    def _accept(self, release: Release, digest: str) -> Installed:
        """Note the version of a release before anything else, so that earlier ones are refused from now on."""
        state = self.state()
        if release.version < state.seen:
            raise RefusedReleaseError(
                "older", f"release {release.version} is older than {state.seen}, which this device has accepted"
            )
        if release.version == state.seen and digest != state.release:
            raise RefusedReleaseError("older", f"there is another release {release.version} on this device")
        if release.version > state.seen:
            state = replace(state, seen=release.version, release=digest)
            self._write(state)
        return state

    def _take(self, model: ReleasedModel, piece: tuple[int, bytes] | None) -> int:
        """Append a piece if it is the next one; returns the number of the piece that is wanted then."""
        path = self._incoming(model.digest)
        size = path.stat().st_size if path.is_file() else 0
        number = min(size // PIECE_BYTES, len(model.pieces)) if size != model.size else len(model.pieces)
        if piece is None or piece[0] != number or number == len(model.pieces):
            return number
        content = piece[1]
        if len(content) != model.piece_size(number) or digest_of(content) != model.pieces[number]:
            raise RefusedReleaseError("damaged piece", f"piece {number + 1} of the model is damaged or truncated")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in path.parent.iterdir():
            if other != path:
                other.unlink()
        _append(path, number * PIECE_BYTES, content)
        return number + 1

    def _complete(self, model: ReleasedModel) -> None:
        """Verify the model that has arrived, and give it its name."""
        path = self._incoming(model.digest)
        try:
            if _digest_of_file(path) != model.digest:
                raise RefusedReleaseError("damaged model", "the model is damaged; its digest is not the released one")
            try:
                open_model(path)
            except FedgramError:
                why = "the model cannot be read by the fedgram on this device"
                raise RefusedReleaseError("unreadable model", why) from None
        except RefusedReleaseError:
            path.unlink(missing_ok=True)
            raise
        path.replace(self._file(model.digest))
        flush(self.path)

    def _commit(self, state: Installed, model: str) -> None:
        """Make a whole model the installed one, and delete what is no longer needed."""
        before = (digest for digest in (state.model, state.previous) if digest not in ("", model))
        previous = next((digest for digest in before if self._is_whole(digest)), "")
        after = replace(state, model=model, previous=previous)
        if after != self.state():
            self._write(after)
        self._link(model)
        self._tidy(after)

    def _write(self, state: Installed) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(self.path / STATE) as file:
            file.write(json.dumps(asdict(state)).encode())
        flush(self.path)

    def _link(self, model: str) -> None:
        """Let the link name this model; the link is replaced at once."""
        link, made = self.path / LINK, self.path / f".{LINK}.new"
        if link.is_symlink() and link.readlink().name == self._file(model).name:
            return
        made.unlink(missing_ok=True)
        made.symlink_to(self._file(model).name)
        made.replace(link)

    def _tidy(self, state: Installed) -> None:
        """Delete models that are neither installed nor the one before, and files that a killed process left."""
        kept = {self._file(state.model).name, self._file(state.previous).name, STATE, LINK}
        for path in [*self.path.glob("*"), *(self.path / INCOMING).glob("*")]:
            if path.name not in kept and (path.is_symlink() or path.is_file()):
                path.unlink(missing_ok=True)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Turn a failed write into a refusal; on a full disk the pieces so far are deleted, to make room."""
        try:
            yield
        except OSError as error:
            full = error.errno in _FULL
            if full:
                for path in (self.path / INCOMING).glob("*"):
                    path.unlink(missing_ok=True)
            why = "the disk is full" if full else f"the folder cannot be written ({type(error).__name__})"
            raise RefusedReleaseError(
                "disk full" if full else "cannot write", f"{why}; the device keeps the model it has"
            ) from None

    def _file(self, digest: str) -> Path:
        return self.path / f"{digest}{SUFFIX}"

    def _incoming(self, digest: str) -> Path:
        return self.path / INCOMING / digest

    def _is_whole(self, digest: str) -> bool:
        try:
            return _digest_of_file(self._file(digest)) == digest
        except OSError:
            return False


def answer_release(
    models: ModelFolder, public_key: Path | None, secret: bytes, request: Mapping[str, bytes]
) -> Content:
    """A device's answer to a request with a release: its version, and what is wanted next or why nothing is.

    The reason for a refusal is in the device's log as one line; the server is told a fixed word.
    """
    number = request.get("number", b"")
    piece = (int(number), request["piece"]) if number.isdigit() and len(number) < 10 else None
    try:
        if public_key is None:
            raise RefusedReleaseError("no key", "this device has no key of releases; join the federation again")
        found = models.answer(request["release"], public_key, secret, now=time.time(), piece=piece)
        about = {"state": found.state.encode(), "digest": found.model.encode(), "wanted": str(found.piece).encode()}
    except RefusedReleaseError as why:
        print(f"fedgram: {why}", file=sys.stderr, flush=True)
        about = {"state": REFUSED.encode(), "why": why.reason.encode()}
    return {"model": str(models.version()).encode(), **about}


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _append(path: Path, at: int, content: bytes) -> None:
    """Write at a position, in place of whatever a killed process left there, and flush it to disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, at)
        os.lseek(descriptor, at, os.SEEK_SET)
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_sound(state: Installed) -> bool:
    kinds = {"seen": int, "version": int, "choice": int, "time": float}
    values = {f.name: getattr(state, f.name) for f in fields(state)}
    return all(type(value) is kinds.get(name, str) for name, value in values.items()) and all(
        values[name] == "" or is_digest(values[name]) for name in ("release", "model", "previous", "rollout")
    )
