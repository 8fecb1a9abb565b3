"""Sending a release to devices, piece by piece, over a transport.

Every node that appears is sent the release, and answers what it has: the model, or the number of the piece that it
wants, or that it is outside the release's share. It is then sent that piece, until it has the model. Requests for the
same piece share its bytes. A device that is away, busy or killed goes on with the same piece when it is back.

The ServerApp does this for `federation publish`, and between the rounds of a run, so that devices that come later get
the release as well.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedgram.deployment.attempt import problem_of
from fedgram.deployment.installed import INSTALLED, OUTSIDE, REFUSED, WANTS
from fedgram.deployment.published import DeviceVersions, Published, Releases
from fedgram.deployment.releases import PIECE_BYTES
from fedgram.deployment.roster import device_number, may_speak_for
from fedgram.deployment.transport import Content, Reply, Request, Transport

_LOOK_SECONDS = 1.0  # between looks at the list of nodes
_EXPIRED = 600.0  # after which a request is no longer waited for
_RETRY = {"not ready": 30.0, REFUSED: 600.0, "failed": 60.0}  # seconds until such a device is asked again
_REASONS = (
    "bad signature", "older", "damaged piece", "damaged model", "unreadable model", "disk full", "cannot write",
    "no key", "malformed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """How far a release has come with the devices that are online: how many are in which state."""

    version: int = 0
    online: int = 0
    installed: int = 0
    outside: int = 0
    waiting: int = 0
    not_ready: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    bytes_sent: int = 0

    @property
    def settled(self) -> int:
        """Devices that need nothing more for now."""
        return self.online - self.waiting


@dataclass(slots=True)
class _Node:
    """Where a node stands, and when it is to be asked again."""

    state: str = ""
    why: str = ""
    next: float = 0.0


class Rollout:
    """Sends the latest release to every node that lacks it; `refresh` is called again and again."""

    def __init__(
        self, transport: Transport, releases: Releases, versions: DeviceVersions, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._transport, self._releases, self._versions, self._clock = transport, releases, versions, clock
        self._release: Published | None = None
        self._models: dict[str, bytes] = {}
        self._nodes: dict[int, _Node] = {}
        self._online: Mapping[int, str] = {}
        self._waiting: dict[str, tuple[int, float]] = {}
        self._sent, self._looked = 0, float("-inf")

    @property
    def is_waiting(self) -> bool:
        """Whether replies are awaited."""
        return bool(self._waiting)

    def refresh(self) -> RolloutProgress:
        """Read the replies that have come, and send the release to the nodes that need it or a piece of it."""
        now = self._clock()
        self._find_release()
        if self._release is None:
            return RolloutProgress()
        wanted: dict[tuple[str, int], list[int]] = {}
        for reply in self._transport.poll(list(self._waiting)):
            if reply.request in self._waiting:
                node, _ = self._waiting.pop(reply.request)
                if (want := self._hear(node, reply, now)) is not None:
                    wanted.setdefault(want, []).append(node)
        self._waiting = {name: w for name, w in self._waiting.items() if now <= w[1]}
        for (digest, number), nodes in wanted.items():
            self._send(nodes, self._piece(digest, number), now)
        if now - self._looked >= _LOOK_SECONDS or not self._online:
            self._online, self._looked = dict(self._transport.nodes()), now
            self._nodes = {node: known for node, known in self._nodes.items() if node in self._online}
            busy = {node for node, _ in self._waiting.values()}
            fresh = [n for n in sorted(self._online) if n not in busy and self._is_due(n, now)]
            self._send(fresh, {"release": self._release.content}, now)
        self._versions.save()
        return self.progress()

    def progress(self) -> RolloutProgress:
        """How many of the nodes that are online are in which state."""
        states = Counter(self._nodes[n].state if n in self._nodes else "" for n in self._online)
        refused = Counter(self._nodes[n].why for n in self._online if n in self._nodes and self._nodes[n].why)
        settled = states[INSTALLED] + states[OUTSIDE] + states["not ready"] + states[REFUSED] + states["failed"]
        return RolloutProgress(
            self._release.version if self._release else 0, len(self._online), states[INSTALLED], states[OUTSIDE],
            len(self._online) - settled, states["not ready"], dict(refused), self._sent,
        )  # fmt: skip

    def _find_release(self) -> None:
        """Begin again with a new release if one was published meanwhile."""
        latest = self._releases.latest()
        if latest is None or (self._release and latest.version == self._release.version):
            return
        self._release, self._models = latest, {digest: self._releases.model(digest) for digest in latest.models}
        self._nodes, self._waiting, self._looked = {}, {}, float("-inf")

    def _is_due(self, node: int, now: float) -> bool:
        return now >= self._nodes[node].next if node in self._nodes else True

    def _piece(self, digest: str, number: int) -> Content:
        assert self._release is not None
        first = number * PIECE_BYTES
        content = self._models[digest][first : first + PIECE_BYTES]
        return {"release": self._release.content, "number": str(number).encode(), "piece": content}

    def _send(self, nodes: list[int], shared: Content, now: float) -> None:
        if not nodes:
            return
        requests = [Request(node, "release", {}, shared) for node in nodes]
        names = self._transport.send(requests, seconds=_EXPIRED)
        for node, name, request in zip(nodes, names, requests, strict=True):
            known = self._nodes.setdefault(node, _Node())
            known.next = now + (_EXPIRED if name else _RETRY["failed"])
            if name:
                self._waiting[name] = (node, now + _EXPIRED)
                self._sent += request.size

    def _hear(self, node: int, reply: Reply, now: float) -> tuple[str, int] | None:
        """Note a node's answer; returns the piece that it wants, if it wants one."""
        content, known = reply.content or {}, self._nodes.setdefault(node, _Node())
        state, known.why = content.get("state", b"").decode("ascii", "replace"), ""
        self._note_version(node, content)
        if problem_of(reply) is not None or state not in (INSTALLED, OUTSIDE, WANTS, REFUSED, "not ready"):
            known.state, known.why, known.next = "failed", "failed", now + _RETRY["failed"]
            return None
        known.state, known.next = state, now + _RETRY.get(state, float("inf"))
        if state == REFUSED:
            why = content.get("why", b"").decode("ascii", "replace")
            known.why = why if why in _REASONS else "malformed"
        want = self._wanted(content) if state == WANTS else None
        if state == WANTS and want is None:
            known.state, known.why, known.next = "failed", "malformed", now + _RETRY["failed"]
        return want

    def _wanted(self, content: Content) -> tuple[str, int] | None:
        """The model and the number of a piece, if this release has them."""
        digest, number = content.get("digest", b"").decode("ascii", "replace"), content.get("wanted", b"")
        if digest not in self._models or not number.isdigit() or len(number) > 6:
            return None
        return (digest, int(number)) if int(number) * PIECE_BYTES < len(self._models[digest]) else None

    def _note_version(self, node: int, content: Content) -> None:
        """Note which version a device has; a node that is registered as a device speaks for that one only."""
        device = device_number(content.get("device", b""))
        if node in self._online and may_speak_for(device, self._online[node]):
            self._versions.heard(device, content.get("model", b""))
