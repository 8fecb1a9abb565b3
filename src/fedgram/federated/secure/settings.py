"""The settings that devices and the server agree on before a secure round, and the two errors of a round.

Devices stand on a ring in random order, and each shares masks and secrets with its k nearest neighbours (Bell et al.
2020). The cost per device then grows with log n instead of n. With k ≥ n − 1 all devices are neighbours, which is the
protocol of Bonawitz et al. 2017.
"""

from dataclasses import dataclass
from math import ceil, floor, log2

from fedgram.core.errors import FedgramError

MAX_DEVICES = 1 << 16
VALUE_BITS = 45
MAJORITY = 2 / 3  # no two lists can be signed while fewer than a third of the devices sign both


class AbandonedRoundError(FedgramError):
    """A round that has no sum; nothing of it may be used. `reason` says why, without the words around it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the round is abandoned: {reason}")
        self.reason = reason


class RefusedMessageError(FedgramError):
    """A message that is damaged, out of turn or not allowed; the state of its recipient does not change."""


class OtherKeysError(RefusedMessageError):
    """A round with another list of admitted keys than the device holds. The server knows this error by its name."""


@dataclass(frozen=True, slots=True)
class SecureSettings:
    """How the updates of a cohort are masked; devices refuse a server with other settings.

    Guarantees: recovering a secret takes the shares of at least `threshold(n)` neighbours, which are more than half of
    them; shares are given out only after `quorum(n)` of n devices have signed the same list of survivors; a sum of n
    vectors whose entries are below 2^value_bits in absolute value does not overflow.
    """

    min_devices: int = 2
    neighbours: int | None = None
    majority: float = MAJORITY
    value_bits: int = VALUE_BITS

    def __post_init__(self) -> None:
        if not 2 <= self.min_devices <= MAX_DEVICES:
            raise FedgramError(f"a secure sum needs between 2 and {MAX_DEVICES} devices, not {self.min_devices}")
        if self.neighbours is not None and not 1 <= self.neighbours < MAX_DEVICES:
            raise FedgramError(f"a device needs between 1 and {MAX_DEVICES - 1} neighbours, not {self.neighbours}")
        if not 0.5 <= self.majority < 1.0:
            raise FedgramError(f"the share of devices that must agree must be in [0.5, 1), not {self.majority}")
        if not 1 <= self.value_bits <= 62:
            raise FedgramError(f"entries need between 1 and 62 bits, not {self.value_bits}")

    def degree(self, devices: int) -> int:
        """k: the number of neighbours per device, in a round of this many devices; even, or all others.

        >>> [SecureSettings().degree(n) for n in (2, 10, 100, 500, 10_000)]
        [1, 9, 48, 64, 94]
        """
        k = self.neighbours if self.neighbours is not None else 2 * ceil(3.5 * log2(devices))
        return min(devices - 1, k + k % 2)

    def threshold(self, devices: int) -> int:
        """t: the number of a device's k neighbours that can recover its secrets.

        It is more than half of them, so that no two sets of t neighbours are disjoint.

        >>> [SecureSettings().threshold(n) for n in (2, 10, 100, 500, 10_000)]
        [1, 5, 25, 33, 48]
        """
        return self.degree(devices) // 2 + 1

    def quorum(self, devices: int) -> int:
        """q: the number of devices, out of all on the ring, that must sign a list of survivors; more than `majority`.

        >>> [SecureSettings().quorum(n) for n in (2, 3, 10, 100, 500)]
        [2, 3, 7, 67, 334]
        """
        return floor(self.majority * devices + 1e-9) + 1

    def width(self, devices: int) -> int:
        """Bytes per masked entry: a sign bit, and enough bits for the sum over all devices.

        >>> [SecureSettings().width(n) for n in (100, 1024, 1025)]
        [7, 7, 8]
        """
        width = (self.value_bits + 1 + (devices - 1).bit_length() + 7) // 8
        if not 2 <= devices <= MAX_DEVICES or width > 8:
            raise FedgramError(f"the sum of {devices} entries of {self.value_bits} bits does not fit into 64 bits")
        return width

    def ring(self, number: int, devices: int) -> tuple[int, ...]:
        """The neighbours of a place on the ring, in increasing order.

        >>> SecureSettings(neighbours=4).ring(0, 7)
        (1, 2, 5, 6)
        """
        k = self.degree(devices)
        if k == devices - 1:
            return tuple(j for j in range(devices) if j != number)
        return tuple(sorted((number + d) % devices for d in range(-k // 2, k // 2 + 1) if d))
