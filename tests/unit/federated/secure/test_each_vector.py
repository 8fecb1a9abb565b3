"""What a device masks, each refusal alone, and what is left of its secrets when the round is over for it."""

import json

import numpy as np
import pytest
from tests.unit.federated.secure.stepped_round import STEPS, Round

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
