"""The arm of a device: train, dev or test, decided on the device once, and kept.

The federation's settings have the shares of the dev and the test arm. A device finds its arm by a keyed hash of its own
secret, so the server knows how many devices to expect in an arm, but neither chooses nor computes which. The arm is
written to the device's folder before its first answer. It never changes, whatever becomes of the shares or the secret:
a device that has trained must never test.

A device answers only jobs of its own arm: train devices count and train, dev and test devices only evaluate. A server
that watches for long which jobs a device answers can tell its arm from that.

As a device is in one arm for ever, what one arm spends of its privacy costs devices of other arms nothing. So each arm
has a ledger of its own.
"""

from dataclasses import dataclass
from pathlib import Path

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import atomic_write, flush
from fedgram.deployment.own_secret import keyed_number, read_own_secret
from fedgram.privacy.ledger import LEDGER_FILE
from fedgram.text.messages import SPLITS

TRAIN, DEV, TEST = SPLITS
ARM = "arm"  # the name of its file
LEDGERS = {TRAIN: LEDGER_FILE, DEV: "privacy-dev.json", TEST: "privacy-test.json"}  # in the server's folder


@dataclass(frozen=True, slots=True)
class ArmShares:
    """The shares of devices in the dev and the test arm; the others are in the train arm."""

    dev: float = 0.0
    test: float = 0.0

    def __post_init__(self) -> None:
        if not (self.dev >= 0 and self.test >= 0 and self.dev + self.test <= 1):
            raise FedgramError("dev_share and test_share must be at least 0, and at most 1 together")

    def of(self, name: str) -> float:
        """The share of an arm."""
        return {TRAIN: 1.0 - self.dev - self.test, DEV: self.dev, TEST: self.test}[name]

    def arm(self, secret: bytes) -> str:
        """The arm of the device with this secret."""
        number = keyed_number(secret, "arm")
        if number < self.dev:
            return DEV
        return TEST if number < self.dev + self.test else TRAIN


def arm_of(folder: Path, shares: ArmShares, *, is_new: bool) -> str:
    """The arm of the device with this folder; the first time, it is decided and written.

    A device that is not new when it is first asked was sent jobs before there were arms, and may have trained: it is in
    the train arm.
    """
    path = folder / ARM
    try:
        known = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        arm = shares.arm(read_own_secret(folder)) if is_new else TRAIN
        with atomic_write(path) as file:
            file.write(arm.encode())
        flush(folder)
        return arm
    if known not in SPLITS:
        remedy = "restore it from a backup; until then the device takes part in no job"
        raise InputError(path, "is damaged", remedy=remedy)
    return known


def wanted_arm(task: object) -> str:
    """The arm whose devices a task asks: what its attribute `arm` says, or else train."""
    return str(getattr(task, "arm", TRAIN))
