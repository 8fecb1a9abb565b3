"""A secure round in one process: the same state machines and bytes as over a network, with devices that drop out."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.federated.secure.admitted_keys import AdmittedKeys, Credentials, new_credentials
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.server import SecureServer, SecureSum
from fedgram.federated.secure.settings import SecureSettings

STEPS, MASKED_STEP = 5, 2  # keys, shares, masked vectors, confirmations, unmasking
NEVER = STEPS


@dataclass(slots=True)
class Traffic:
    """Bytes that devices sent (`up`) and received (`down`), and the number of messages."""

    up: int = 0
    down: int = 0
    messages: int = 0


@dataclass(frozen=True, slots=True)
class SecureRound:
    """What both sides of a round know: its settings, the vectors' length, and a digest of what it computes (`about`).

    With fewer than `minimum` vectors nothing is unmasked.
    """

    settings: SecureSettings
    length: int
    about: bytes = b""
    minimum: int = 0
    entropy: Callable[[int], bytes] = os.urandom

    def server(self, admitted: AdmittedKeys) -> SecureServer:
        """The server of this round."""
        return SecureServer(
            self.settings, self.length, admitted, about=self.about, minimum=self.minimum, entropy=self.entropy
        )  # fmt: skip

    def client(self, vector: Callable[[], LongArray], credentials: Credentials) -> SecureClient:
        """A device of this round."""
        return SecureClient(
            self.settings, self.length, vector, credentials, about=self.about, entropy=self.entropy
        )  # fmt: skip


def sum_securely(
    secure_round: SecureRound,
    vectors: Mapping[int, Callable[[], LongArray]],
    *,
    leaving: Mapping[int, int] | None = None,
    traffic: Traffic | None = None,
    on_failure: Callable[[int, FedgramError], object] = lambda *_: None,
) -> SecureSum:
    """The sum of the vectors of the devices that stay until they have sent theirs; each has a new long-term key.

    `leaving` has, for each device that drops out, the first step that it does not answer. A device that cannot answer,
    for instance because its vector is out of range, drops out too. Raises `AbandonedRoundError` if too few stay.
    """
    leaving, traffic = leaving or {}, traffic or Traffic()
    own = new_credentials(vectors, secure_round.entropy)
    admitted = next((each.admitted for each in own.values()), AdmittedKeys(1, ()))
    server = secure_round.server(admitted)
    clients = {device: secure_round.client(vector, own[device]) for device, vector in vectors.items()}
    requests = server.begin(clients)
    for step in range(STEPS):
        for device, request in requests.items():
            traffic.down += len(request)
            traffic.messages += 1
            if step >= leaving.get(device, NEVER):
                continue
            try:
                answer = clients[device].answer(request)
            except FedgramError as error:
                on_failure(device, error)
                continue
            traffic.up += len(answer)
            traffic.messages += 1
            server.receive(device, answer)
        requests = server.advance()
    return server.total()
