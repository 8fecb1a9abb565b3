"""A secure round that a test advances step by step, and messages with changed bodies."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedgram.federated.secure import messages
from fedgram.federated.secure.admitted_keys import new_credentials
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.messages import Terms
from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.secure.vectors import round_digest

SETTINGS = SecureSettings(min_devices=3)
ABOUT = round_digest("job", 7, "broadcast")
STEPS = 5


class Round:
    """A round of five devices with the vectors (d, −d), step by step."""

    def __init__(self, settings: SecureSettings = SETTINGS, devices: int = 5, length: int = 2, seed: int = 0) -> None:
        self.entropy = np.random.default_rng(seed).bytes
        self.credentials = new_credentials(range(devices + 2), self.entropy)  # two more than take part
        self.admitted = self.credentials[0].admitted
        self.server = SecureServer(settings, length, self.admitted, about=ABOUT, entropy=self.entropy)
        self.vectors = {d: np.resize(np.array([d, -d], np.int64), length) for d in range(devices)}
        self.terms = Terms(settings, length, self.admitted, ABOUT)
        self.clients = {d: self.client(d) for d in self.vectors}
        self.requests = self.server.begin(self.clients)

    def client(self, device: int, **changed: Any) -> SecureClient:
        """A device, or one that differs from the others in some way."""
        settings, length = changed.get("settings", self.terms.settings), changed.get("length", self.terms.length)
        credentials, about = changed.get("credentials", self.credentials[device]), changed.get("about", ABOUT)
        vector = np.resize(self.vectors[device], length) if "length" in changed else self.vectors[device]
        return SecureClient(settings, length, vector.copy, credentials, about=about, entropy=self.entropy)

    def answers(self) -> dict[int, bytes]:
        return {d: self.clients[d].answer(request) for d, request in self.requests.items()}

    def step(self) -> None:
        for device, answer in self.answers().items():
            self.server.receive(device, answer)
        self.requests = self.server.advance()

    def before(self, step: int) -> "Round":
        for _ in range(step):
            self.step()
        return self


def reframed(message: bytes, body: Callable[[bytearray], object]) -> bytes:
    """The message with a changed body and a valid checksum."""
    content = bytearray(message[38:-32])
    body(content)
    return messages.frame(messages.Kind(message[5]), message[6:38], bytes(content))
