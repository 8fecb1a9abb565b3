"""Updates and broadcasts survive a round trip through bytes, and damage is detected."""

from collections.abc import Callable

import numpy as np
import pytest

from fedgram.core.errors import FedgramError
from fedgram.core.storage import Artefact, Record, artefact_to_bytes
from fedgram.federated.task import Total, Update
from fedgram.federated.validation import UpdateBounds
from fedgram.federated.wire import record_from_bytes, record_to_bytes, update_from_bytes, update_to_bytes

UPDATE = Update(
    {"a": 5, "b": 1}, {"a": np.array([1, 4]), "b": np.array([0])}, {"a": np.array([0.5, -2.0]), "b": np.ones(1)}, 3.0
)


def test_there_and_back() -> None:
    back = update_from_bytes(update_to_bytes(UPDATE))
    assert back.weight == 3.0
    for name in UPDATE.size:
        assert np.array_equal(back.array(name), UPDATE.array(name))
    full = Update.dense({"a": np.array([0.5, -2.0, 0.0]), "b": np.ones(1)}, 2.0)
    back = update_from_bytes(update_to_bytes(full))
    assert back.array("a").tolist() == [0.5, -2.0, 0.0]
    assert back.index["a"].tolist() == [0, 1, 2]
    assert update_from_bytes(update_to_bytes(Update.zero({"a": 3}))).array("a").tolist() == [0, 0, 0]


BROADCAST = Record({"round": 3}, {"w": np.array([[0.5, -0.0]], np.float32), "none": np.zeros(0, np.int64)})


def test_a_broadcast_there_and_back() -> None:
    back = record_from_bytes(record_to_bytes(BROADCAST))
    assert back.fields == {"round": 3}
    for name, array in BROADCAST.arrays.items():
        assert (back.arrays[name].dtype, back.arrays[name].shape) == (array.dtype, array.shape)
        assert back.arrays[name].tobytes() == array.tobytes()
    assert record_to_bytes(back) == record_to_bytes(BROADCAST)  # so that both sides compute the same digest
    with pytest.raises(FedgramError, match="not a 'broadcast'"):
        record_from_bytes(update_to_bytes(UPDATE))
    with pytest.raises(FedgramError, match="not a 'update'"):
        update_from_bytes(record_to_bytes(BROADCAST))


@pytest.mark.parametrize(
    ("content", "read"),
    [(update_to_bytes(UPDATE), update_from_bytes), (record_to_bytes(BROADCAST), record_from_bytes)],
)
def test_damage_is_refused(content: bytes, read: Callable[[bytes], object]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[int(rng.integers(len(damaged)))] ^= 1 << int(rng.integers(8))
        with pytest.raises(FedgramError):
            read(bytes(damaged))
    for length in range(0, len(content), 7):
        with pytest.raises(FedgramError):
            read(content[:length])


@pytest.mark.parametrize(
    ("fields", "arrays"),
    [
        ({"size": {"a": 2}, "weight": 1}, {}),
        ({"size": 3, "weight": 1}, {}),
        ({"size": {}}, {}),
        ({"size": {"a": 2}, "weight": 1}, {"values.a": np.zeros(3)}),
        ({"size": {"a": 10**15}, "weight": 1}, {"values.a": np.zeros(3)}),
        ({"size": {"a": 2}, "weight": 1}, {"index.a": np.zeros(1), "values.a": np.zeros(1)}),
        ({"size": {"a": 2}, "weight": 1}, {"values.a": np.zeros(2, np.float32)}),
        ({"size": {"a": 2}, "weight": 1}, {"values.a": np.zeros(2, np.int64)}),
    ],
)
def test_other_content_is_refused(fields: dict[str, object], arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(FedgramError):
        update_from_bytes(artefact_to_bytes(Artefact("update", 1, fields, arrays)))


def test_what_is_out_of_place_does_not_enter_a_sum() -> None:
    bad = Update({"a": 2}, {"a": np.array([5])}, {"a": np.ones(1)}, 1.0)
    with pytest.raises(FedgramError):
        Total.zero({"a": 2}, 24).add(update_from_bytes(update_to_bytes(bad)), UpdateBounds())
