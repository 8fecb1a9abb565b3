"""A secure round in one process: the same machines and the same bytes as over a network, with devices that leave."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedgram.core.arrays import LongArray
from fedgram.core.errors import FedgramError
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.server import SecureServer, SecureSum
from fedgram.federated.secure.settings import SecureSettings

STEPS, MASKED_STEP = 4, 2  # keys, shares, masked vectors, unmasking
NEVER = STEPS


@dataclass(slots=True)
class Traffic:
    """Bytes that devices sent and received, and in how many messages."""

    up: int = 0
    down: int = 0
    messages: int = 0


def sum_securely(
    settings: SecureSettings, length: int, vectors: Mapping[int, Callable[[], LongArray]], *,
    about: bytes = b"", minimum: int = 0, leaving: Mapping[int, int] | None = None, traffic: Traffic | None = None,
    on_failure: Callable[[int, FedgramError], object] = lambda *_: None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> SecureSum:  # fmt: skip
    """The sum of the vectors of devices that stay until theirs is sent; `leaving` has the step not answered any more.

    A device that cannot answer, for instance because its vector is out of range, leaves too. Raises
    `AbandonedRoundError` where too few stay.
    """
    leaving, traffic = leaving or {}, traffic or Traffic()
    server = SecureServer(settings, length, about=about, minimum=minimum, entropy=entropy)
    clients = {
        device: SecureClient(settings, length, vector, about=about, entropy=entropy)
        for device, vector in vectors.items()
    }
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
