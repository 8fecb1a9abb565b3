"""What a device masks, each refusal alone, and what is left of its secrets when the round is over for it."""

import json

import numpy as np
import pytest
from tests.unit.federated.secure.stepped_round import STEPS, Round

from fedgram.federated.secure import messages
from fedgram.federated.secure.checks import KEYS_OF_ROUND
from fedgram.federated.secure.identity import statement
from fedgram.federated.secure.primitives import KeyPair
from fedgram.federated.secure.settings import RefusedMessageError
from fedgram.federated.validation import Reason, RefusedUpdateError

LIMIT = 1 << 45


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (np.array([LIMIT - 1, 1 - LIMIT]), None),
        (np.array([LIMIT, 0]), Reason.TOO_LARGE),
        (np.array([0, -LIMIT]), Reason.TOO_LARGE),
        (np.array([1, 2], np.int32), Reason.SHAPE),
        (np.array([1.0, 2.0]), Reason.SHAPE),
        (np.array([1, 2, 3]), Reason.SHAPE),
        (np.array([[1, 2]]), Reason.SHAPE),
    ],
)
def test_each_vector_that_does_not_fit_is_not_masked(vector: np.ndarray, reason: Reason | None) -> None:
    taking_part = Round().before(2)
    client = taking_part.clients[1]
    client._vector = lambda: vector
    if reason is None:
        assert client.answer(taking_part.requests[1])
        return
    with pytest.raises(RefusedUpdateError) as error:
        client.answer(taking_part.requests[1])
    assert error.value.reason == reason


def test_a_device_keeps_no_shares_of_others_after_it_has_opened_some() -> None:
    taking_part = Round().before(STEPS - 1)
    client = taking_part.clients[1]
    assert json.loads(client.save())[3][1]
    client.answer(taking_part.requests[1])
    assert not json.loads(client.save())[3][1]


def test_an_admitted_key_takes_one_place_on_the_ring() -> None:
    """Another device answers with fresh keys, signed with the long-term key of the first."""
    taking_part = Round()
    taking_part.clients[1] = taking_part.client(1, credentials=taking_part.credentials[0])
    answers = taking_part.answers()
    taking_part.server.receive(0, answers[0])
    with pytest.raises(RefusedMessageError, match="a key twice, or the key of another device"):
        taking_part.server.receive(1, answers[1])


def test_sealing_and_masking_have_keys_of_their_own() -> None:
    taking_part = Round()
    client = taking_part.clients[0]
    answer = client.answer(taking_part.requests[0])
    one = KeyPair(taking_part.entropy(32)).public
    signature = taking_part.credentials[0].identity.sign(statement(KEYS_OF_ROUND, answer[6:38], one + one))
    forged = messages.keys(answer[6:38], taking_part.credentials[0].index or 0, one + one + signature)
    with pytest.raises(RefusedMessageError, match="a key twice, or the key of another device"):
        taking_part.server.receive(0, forged)
    taking_part.server.receive(0, answer)
