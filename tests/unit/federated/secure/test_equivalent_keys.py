"""A colluding device takes a key that agrees with everybody on the same secrets as the key of an honest device.

X25519 has several public keys for each secret, and anybody can compute them: two encodings of one number, and numbers
that differ by a point of small order. All pass for different keys. When the mask of a pair depended on the secret
alone, the mask with such a device cancelled the mask with the honest one, so a lying server with less than a third of
the devices read a vector.
"""

from collections.abc import Callable

import pytest
from tests.unit.federated.secure.stepped_round import SETTINGS, Round

from fedgram.federated.secure import messages
from fedgram.federated.secure.checks import KEYS_OF_ROUND
from fedgram.federated.secure.identity import statement
from fedgram.federated.secure.primitives import KEY_BYTES, KeyPair, add_mask, derive, pair_mask_key, signed, unpack
from fedgram.federated.secure.ring import drawn_order

P = 2**255 - 19


def other_encoding(key: bytes) -> bytes:
    """The same number with its highest bit set, which X25519 ignores."""
    return key[:-1] + bytes([key[-1] ^ 128])


def other_point(key: bytes) -> bytes:
    """The point plus the point (0, 0), whose order is two: its number is the inverse."""
    return pow(int.from_bytes(key, "little"), -1, P).to_bytes(KEY_BYTES, "little")


@pytest.mark.parametrize("equivalent", [other_encoding, other_point])
def test_other_keys_agree_on_the_same_secret(equivalent: Callable[[bytes], bytes]) -> None:
    one, other = KeyPair(b"\1" * 32), KeyPair(b"\2" * 32)
    assert equivalent(other.public) != other.public
    assert one.agree(equivalent(other.public)) == one.agree(other.public)


@pytest.mark.parametrize("equivalent", [other_encoding, other_point])
def test_a_vector_stays_masked_beside_a_device_with_an_equivalent_key(equivalent: Callable[[bytes], bytes]) -> None:
    """Four devices by place: one that colludes, the victim, an honest one, and one that leaves after it shared."""
    going = Round(SETTINGS, 4)
    context = going.requests[0][6:38]
    place_of = {going.credentials[device].index: device for device in range(4)}
    colluding, victim, honest, leaving = (place_of[index] for index in drawn_order(context, place_of))  # type: ignore[arg-type]
    answers = going.answers()
    liar = going.clients[colluding]
    liar._masking.public = equivalent(going.clients[honest]._masking.public)
    own = liar._sealing.public + liar._masking.public
    signature = going.credentials[colluding].identity.sign(statement(KEYS_OF_ROUND, context, own))
    answers[colluding] = messages.keys(context, going.credentials[colluding].index or 0, own + signature)
    for device in (honest, victim, leaving, colluding):
        going.server.receive(device, answers[device])
    going.requests = going.server.advance()
    going.step()
    del going.requests[leaving]
    answers, ring = going.answers(), going.requests[victim][6:38]
    for device, answer in answers.items():
        going.server.receive(device, answer)
    going.requests = going.server.advance()
    going.step()
    going.step()
    width = SETTINGS.width(4)
    words = unpack(messages.read_masked(answers[victim], ring, 2 * width)[1], width).copy()
    add_mask(words, derive(going.server._secret(1), ring, b"self mask"), -1)
    gone = KeyPair(going.server._secret(3))
    add_mask(words, pair_mask_key(gone.agree(going.clients[victim]._masking.public), ring, 1, 3), -1)
    assert signed(words, width).tolist() != going.vectors[victim].tolist()
