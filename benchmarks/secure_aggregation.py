"""Secure aggregation: seconds of devices and server for a whole round, and bytes per device beside its plain update.

    python -m benchmarks.secure_aggregation [--devices 100] [--length 1400000]

All devices and the server run in one process, one after another, so the seconds are those of one core; CPU seconds are
given too, for machines that do other work meanwhile. A few devices leave at each step. The traffic of 500 devices is
measured with short vectors: what is sent beside the masked vector does not depend on its length. The confirmation is
the step that signatures need beside those of the semi-honest protocol. A plain update is its numbers in single
precision. Signatures are checked once per process in a round; here a device forgets what others have checked, so that
its seconds are those of a device alone.
"""

import argparse
import os
from time import perf_counter, process_time

import numpy as np
from benchmarks.measure import save

from fedgram.federated.secure.admitted_keys import new_credentials
from fedgram.federated.secure.client import SecureClient
from fedgram.federated.secure.identity import is_signed_by
from fedgram.federated.secure.rounds import NEVER, STEPS
from fedgram.federated.secure.server import SecureServer
from fedgram.federated.secure.settings import SecureSettings

SETTINGS = SecureSettings()
CONFIRMATION = 3


def measure(devices: int, length: int, leaving: dict[int, int]) -> dict[str, float]:
    rng = np.random.default_rng(0)
    vector = rng.integers(-(2**40), 2**40, length)
    own = new_credentials(range(devices), os.urandom)
    server = SecureServer(SETTINGS, length, own[0].admitted)
    clients = {d: SecureClient(SETTINGS, length, vector.copy, own[d]) for d in range(devices)}
    on_devices = on_server = confirming = 0.0
    sent, confirmation = dict.fromkeys(clients, 0), dict.fromkeys(clients, 0)
    began, cpu = perf_counter(), process_time()
    requests = server.begin(clients)
    for step in range(STEPS):
        for device, request in requests.items():
            if step >= leaving.get(device, NEVER):
                continue
            is_signed_by.cache_clear()
            t0 = process_time()
            answer = clients[device].answer(request)
            t1 = process_time()
            server.receive(device, answer)
            t2 = process_time()
            on_devices, on_server = on_devices + t1 - t0, on_server + t2 - t1
            sent[device] += len(request) + len(answer)
            if step == CONFIRMATION:
                confirming += t1 - t0
                confirmation[device] = len(request) + len(answer)
        t0 = process_time()
        requests = server.advance()
        on_server += process_time() - t0
    t0 = process_time()
    found = server.total()
    on_server += process_time() - t0
    stayed = [d for d in clients if leaving.get(d, NEVER) > 2]
    assert list(found.devices) == stayed
    assert np.array_equal(found.vector, vector * len(stayed))
    return {
        "seconds": perf_counter() - began, "cpu": process_time() - cpu, "device": on_devices / devices,
        "server": on_server / len(stayed), "most_bytes": max(sent.values()), "reports": len(stayed),
        "confirming": 1e3 * confirming / len(stayed), "confirmation": max(confirmation.values()),
    }  # fmt: skip


def signing(devices: int) -> float:
    """Milliseconds that a device spends on signatures, its own three and the others', if everybody finishes a round."""
    own = new_credentials(range(devices), os.urandom)
    k, q, content = SETTINGS.degree(devices), SETTINGS.quorum(devices), os.urandom(32)
    signed = [(each.identity.public, each.identity.sign(content)) for each in own.values()]
    began = process_time()
    for _ in range(3):
        own[0].identity.sign(content)
    for some in (signed[:k], signed[:k], signed[:q]):  # of keys, of who shared, and of who survived
        is_signed_by.cache_clear()
        assert all(is_signed_by(public, content, signature) for public, signature in some)
    return 1e3 * (process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--length", type=int, default=1_400_000)
    options = parser.parse_args()
    n, length = options.devices, options.length
    leaving = {0: 0, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2, 6: 3, 7: 3}
    cost = measure(n, length, leaving)
    rows: list[dict[str, object]] = [
        {"what": f"a round of {n} devices × {length:,} entries, {len(leaving)} leave", "figure": cost["seconds"],
         "unit": "s on the clock", "goal": "≤ 60"},
        {"what": "the same", "figure": cost["cpu"], "unit": "s of one core"},
        {"what": f"a device, with {SETTINGS.degree(n - 1)} neighbours", "figure": cost["device"], "unit": "s of CPU"},
        *({"what": f"… of which for signatures, in a cohort of {m}", "figure": signing(m), "unit": "ms of CPU"}
          for m in (100, 500)),
        {"what": "the server, a report", "figure": cost["server"], "unit": "s of CPU"},
    ]  # fmt: skip
    short, many = 1000, 500
    small, large = measure(n, short, {}), measure(many, short, {})
    for m, cohort in ((n, small), (many, large)):
        rows += [
            {"what": f"the confirmation, in a cohort of {m}", "figure": cohort["confirming"], "unit": "ms of CPU"},
            {
                "what": f"the confirmation, in a cohort of {m}, both ways",
                "figure": int(cohort["confirmation"]),
                "unit": "bytes",
            },
        ]
    rows.append(
        {"what": f"a device in a cohort of {n}, beside the masked vector", "unit": "bytes",
         "figure": int(small["most_bytes"] - SETTINGS.width(n) * short)}
    )  # fmt: skip
    beside = large["most_bytes"] - SETTINGS.width(many) * short
    whole = beside + SETTINGS.width(many) * length
    rows += [
        {"what": f"bytes of a device in a cohort of {many}, both ways", "figure": int(whole), "unit": "bytes"},
        {"what": "… of which beside the masked vector", "figure": int(beside), "unit": "bytes"},
        {"what": "… against the plain update", "figure": whole / (4 * length), "unit": "times", "goal": "≤ 2"},
    ]  # fmt: skip
    save("secure_aggregation", rows)


if __name__ == "__main__":
    main()
