"""What a device checks of what the server tells it. Each lie of a server is refused by one of these.

    an invented device, or too few admitted ones         own_index, check_ring
    an order or neighbours that the server chose         check_ring, check_neighbours
    a key that the server put in place of a device's     check_neighbours
    another list of who shared than the neighbours saw   check_sharing, check_signatures
    two lists of survivors                               check_survivors, check_quorum, check_signatures

None of them depends on secrets.
"""

from collections.abc import Collection, Mapping

from fedgram.federated.secure.admitted_keys import AdmittedKeys, Credentials
from fedgram.federated.secure.identity import is_signed_by, statement
from fedgram.federated.secure.messages import Terms
from fedgram.federated.secure.primitives import KEY_BYTES
from fedgram.federated.secure.ring import Ring, drawn_order, keys_digest
from fedgram.federated.secure.settings import RefusedMessageError, SecureSettings

KEYS_OF_ROUND, SHARED, CONFIRMS = b"round keys", b"who shared", b"who survived"


def own_index(credentials: Credentials, settings: SecureSettings) -> int:
    """The device's place in its list of admitted keys, which must have as many keys as a sum needs devices."""
    admitted, index = len(credentials.admitted.keys), credentials.index
    if index is None:
        raise RefusedMessageError("this device is not on the list of admitted keys")
    if admitted < settings.min_devices:
        raise RefusedMessageError(f"{admitted} keys are admitted; at least {settings.min_devices} are needed")
    return index


def check_ring(
    number: int, ring: Ring, own_keys: bytes, terms: Terms, credentials: Credentials, context: bytes
) -> None:
    """The ring has enough admitted devices, each once, in the order that the round draws, and this device's keys."""
    least = terms.settings.min_devices
    if len(ring) < least:
        raise RefusedMessageError(f"{len(ring)} devices take part; at least {least} are needed")
    if max(ring.indices) >= len(terms.admitted.keys):
        raise RefusedMessageError("a device on the ring is not admitted")
    if len(set(ring.indices)) < len(ring):
        raise RefusedMessageError("a device is on the ring twice")
    if (ring.indices[number], ring.digests[number]) != (credentials.index, keys_digest(own_keys)):
        raise RefusedMessageError("the ring does not have this device's keys at its place")
    if list(ring.indices) != drawn_order(context, ring.indices):
        raise RefusedMessageError("the ring is not in the order that the round draws")


def check_neighbours(
    number: int, ring: Ring, signed: Mapping[int, bytes], own_keys: bytes, terms: Terms, context: bytes
) -> None:
    """The keys are those of this device's neighbours on the ring, signed by them."""
    if tuple(signed) != terms.settings.ring(number, len(ring)):
        raise RefusedMessageError("the neighbours are not those of the ring")
    pairs = [own_keys, *(row[: 2 * KEY_BYTES] for row in signed.values())]
    halves = [half for pair in pairs for half in (pair[:KEY_BYTES], pair[KEY_BYTES:])]
    if len(set(halves)) != len(halves):
        raise RefusedMessageError("two devices have the same key")
    for j, row in signed.items():
        keys, signature = row[: 2 * KEY_BYTES], row[2 * KEY_BYTES :]
        if ring.digests[j] != keys_digest(keys):
            raise RefusedMessageError("a neighbour's keys are not those on the ring")
        check_keys(terms.admitted.keys[ring.indices[j]], keys, signature, context)


def check_keys(public: bytes, keys: bytes, signature: bytes, context: bytes) -> None:
    """A device's keys of a round are signed with its long-term key."""
    if not is_signed_by(public, statement(KEYS_OF_ROUND, context, keys), signature):
        raise RefusedMessageError("the keys of a device are not signed by it")


def check_sharing(
    number: int, sharing: Collection[int], senders: Collection[int], settings: SecureSettings, devices: int
) -> None:
    """Enough devices shared, this one among them, and all its neighbours' shares on the list are delivered."""
    if number not in sharing:
        raise RefusedMessageError("the list of devices that shared leaves this device out")
    if len(sharing) < settings.min_devices:
        least = settings.min_devices
        raise RefusedMessageError(f"{len(sharing)} devices shared their secrets; at least {least} are needed")
    if set(senders) != {j for j in settings.ring(number, devices) if j in sharing}:
        raise RefusedMessageError("the shares are not those of the neighbours that shared")


def check_opened(opened: int, threshold: int) -> None:
    """Enough neighbours shared their secrets with this device, with the keys of this round."""
    if opened < threshold:
        raise RefusedMessageError(f"{opened} neighbours shared their secrets; at least {threshold} are needed")


def check_survivors(
    number: int, reported: Collection[int], sharing: Collection[int], settings: SecureSettings, devices: int
) -> None:
    """The list of survivors has this device, none that did not share, and enough of all and of the neighbours."""
    if number not in reported:
        raise RefusedMessageError("the list of survivors leaves this device out")
    if not set(reported) <= set(sharing):
        raise RefusedMessageError("the list of survivors has devices that did not share their secrets")
    if len(reported) < max(settings.min_devices, settings.quorum(devices)):
        raise RefusedMessageError("too few devices reported for their sum to be unmasked")
    if sum(j in reported for j in settings.ring(number, devices)) < settings.threshold(devices):
        raise RefusedMessageError("too few neighbours reported for the sum to be unmasked")


def check_quorum(signers: Collection[int], reported: Collection[int], quorum: int) -> None:
    """Enough survivors signed."""
    if not set(signers) <= set(reported):
        raise RefusedMessageError("a device that did not report signed the list of survivors")
    if len(signers) < quorum:
        raise RefusedMessageError(f"{len(signers)} devices signed the list of survivors; {quorum} are needed")


def check_signatures(
    signatures: Mapping[int, bytes], signers: Collection[int], content: bytes, admitted: AdmittedKeys, ring: Ring,
    what: str,
) -> None:  # fmt: skip
    """Exactly these devices signed a statement."""
    if signatures.keys() != set(signers):
        raise RefusedMessageError(f"signatures of the list of {what} are missing")
    for place, signature in signatures.items():
        if not is_signed_by(admitted.keys[ring.indices[place]], content, signature):
            raise RefusedMessageError(f"a device was sent another list of {what}, or did not sign it")
