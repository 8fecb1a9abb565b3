"""The releases of a federation, in its server's folder; and which version each device has.

    server/releases/000003.json        a release: its signed bytes, and what it was made from
    server/releases/DIGEST.fgram       the models
    server/releases/devices.json       the version that each device reported last

Versions are the numbers of these files. A release that goes back to an earlier model is a new file.
"""

import base64
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.locks import locked
from fedgram.core.storage import atomic_write
from fedgram.deployment.folder import Folder
from fedgram.deployment.keys import write_release_key
from fedgram.deployment.releases import MAX_MODEL_BYTES, Choice, Release, describe_model, open_release, sign_release
from fedgram.fgram.reader import open_model

RELEASES, DEVICES = "releases", "devices.json"
_LOCK_SECONDS = 10.0
Kind = Literal["publish", "rollback", "experiment"]


@dataclass(frozen=True, slots=True)
class Published:
    """A release as the server keeps it: what kind it is, of which files, when; digests and shares of its models."""

    version: int
    kind: Kind
    names: tuple[str, ...]
    models: tuple[str, ...]
    shares: tuple[float, ...]
    rollout: str
    time: float
    signed: str

    @property
    def content(self) -> bytes:
        """The signed bytes."""
        return base64.b64decode(self.signed)


class Releases:
    """The releases of a federation."""

    def __init__(self, server: Path) -> None:
        self.path = server / RELEASES

    def all(self) -> list[Published]:
        """Every release, in order."""
        return [self._read(path) for path in sorted(self.path.glob("[0-9]*.json"))]

    def latest(self) -> Published | None:
        """The release that devices should have now, if there is any."""
        paths = sorted(self.path.glob("[0-9]*.json"))
        return self._read(paths[-1]) if paths else None

    def model(self, digest: str) -> bytes:
        """The bytes of a released model."""
        return (self.path / f"{digest}.fgram").read_bytes()

    def _read(self, path: Path) -> Published:
        try:
            fields = json.loads(path.read_text("utf-8"))
            lists = {name: tuple(fields[name]) for name in ("names", "models", "shares")}
            return Published(**(fields | lists))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(path, f"is not a release ({type(error).__name__})", remedy="restore it") from None

    def before(self) -> str:
        """The digest of the model to go back to: the one that was published before the present one.

        Going back twice goes back two models. An experiment is ended by going back to the model before it.
        """
        stack: list[str] = []
        releases = self.all()
        for release in releases:
            if release.kind == "rollback":
                while stack and stack[-1] != release.models[0]:
                    stack.pop()
            elif release.kind == "publish" and (not stack or stack[-1] != release.models[0]):
                stack.append(release.models[0])
        if not releases or releases[-1].kind != "experiment":
            stack = stack[:-1]
        if not stack:
            raise FedgramError("there is no earlier model to go back to; publish one first")
        return stack[-1]

    def name_of(self, digest: str) -> str:
        """The file name under which a model was published."""
        known = {m: n for release in self.all() for m, n in zip(release.models, release.names, strict=True)}
        return known.get(digest, "")


def read_publishable(path: str | Path) -> bytes:
    """The bytes of a packed model; anything else is refused."""
    if Path(path).suffix != ".fgram":
        remedy = "pack it first: fedgram phone pack MODEL -o lm.fgram"
        raise InputError(path, "is not a packed model (.fgram)", remedy=remedy)
    open_model(path)
    content = Path(path).read_bytes()
    if len(content) > MAX_MODEL_BYTES:
        raise InputError(path, "is larger than 256 MiB", remedy="prune it")
    return content


def publish(
    folder: Folder,
    models: Sequence[tuple[str, bytes]],
    shares: tuple[float, ...],
    kind: Kind,
    rollout: str | None = None,
) -> Published:
    """Sign a release of these models, each with a name and for a share of the devices, as the next version.

    By default the rollout is named after the model, so that a larger share includes the devices of a smaller one.
    """
    releases = Releases(folder.server)
    _prepare(folder, releases)
    with locked(releases.path, seconds=_LOCK_SECONDS, taken=f"another command publishes in {releases.path}"):
        return _publish(folder, releases, models, shares, kind, rollout)


def _publish(
    folder: Folder, releases: Releases, models: Sequence[tuple[str, bytes]], shares: tuple[float, ...], kind: Kind,
    rollout: str | None,
) -> Published:  # fmt: skip
    choices = tuple(Choice(describe_model(c), share) for (_, c), share in zip(models, shares, strict=True))
    latest = releases.latest()
    version = latest.version + 1 if latest else 1
    release = Release(version, rollout or choices[0].model.digest, choices)
    digests = tuple(choice.model.digest for choice in choices)
    for digest, content in zip(digests, (content for _, content in models), strict=True):
        if not (releases.path / f"{digest}.fgram").is_file():
            with atomic_write(releases.path / f"{digest}.fgram") as file:
                file.write(content)
    signed = sign_release(release, folder.server / "release.key")
    open_release(signed, folder.release_key)  # as a device will: the two keys must be a pair
    made = Published(
        version,
        kind,
        tuple(name for name, _ in models),
        digests,
        shares,
        release.rollout,
        time.time(),
        base64.b64encode(signed).decode(),
    )
    with atomic_write(releases.path / f"{version:06d}.json") as file:
        file.write(json.dumps(asdict(made)).encode())
    return made


def _prepare(folder: Folder, releases: Releases) -> None:
    if not folder.server.is_dir():
        raise InputError(folder.path, "is a device's folder", remedy="publish on the server's machine")
    if not (folder.server / "release.key").is_file():  # a federation of an earlier version
        if folder.release_key.is_file():
            remedy = "restore it from a backup, or delete release.pub and give devices the new one"
            raise InputError(folder.server / "release.key", "is missing", remedy=remedy)
        write_release_key(folder.server / "release.key", folder.release_key)
    releases.path.mkdir(exist_ok=True, mode=0o700)


class DeviceVersions:
    """The version that each device reported last, in a file; only the ServerApp writes it."""

    def __init__(self, server: Path) -> None:
        self._path = server / RELEASES / DEVICES
        self._known = read_device_versions(server)
        self._changed = False

    def heard(self, device: int, version: bytes) -> None:
        """Note what a device said; anything but a number is ignored."""
        if version.isdigit() and len(version) < 13 and self._known.get(str(device)) != int(version):
            self._known[str(device)] = int(version)
            self._changed = True

    def save(self) -> None:
        """Write the file, if something has changed and the federation has releases."""
        if self._changed and self._path.parent.is_dir():
            with atomic_write(self._path, durable=False) as file:
                file.write(json.dumps(self._known).encode())
            self._changed = False


def read_device_versions(server: Path) -> dict[str, int]:
    """The version that each device reported last, by its number; 0 means no model."""
    try:
        found = json.loads((server / RELEASES / DEVICES).read_text("utf-8"))
        return {str(device): int(version) for device, version in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def models_on_devices(server: Path) -> list[dict[str, Any]]:
    """How many devices have which model, the newest first; version 0 means none. Nothing if nothing was published."""
    releases = {release.version: release for release in Releases(server).all()}
    if not releases:
        return []
    counts = Counter(read_device_versions(server).values())
    counts[max(releases)] += 0  # shown even if no device has it yet
    found = []
    for version, devices in sorted(counts.items(), reverse=True):
        release = releases.get(version)
        about: dict[str, Any] = {"version": version, "devices": devices}
        if release is not None:
            about |= {"models": list(release.names), "kind": release.kind, "shares": list(release.shares)}
        found.append(about)
    return found
