"""Masked vectors: they follow the protocol's algebra and look like uniform noise, and no secret is printed."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.reference import secure_aggregation as reference
from tests.unit.federated.secure.stepped_round import SETTINGS, Round

from fedgram.core.arrays import LongArray
from fedgram.core.errors import MissingDependencyError
from fedgram.federated.secure import messages, primitives
from fedgram.federated.secure.admitted_keys import AdmittedKeys
from fedgram.federated.secure.identity import SIGNATURE_BYTES
from fedgram.federated.secure.primitives import KEY_BYTES, add_mask, derive, pack, pair_mask_key, signed, unpack
from fedgram.federated.secure.server import SecureServer


def test_masked_vectors_are_those_of_the_algebra() -> None:
    going = Round(devices=6, length=11).before(2)
    context, width = going.requests[0][6:38], SETTINGS.width(6)  # the ring's context
    for device, answer in going.answers().items():
        client = going.clients[device]
        pairs = {
            j: pair_mask_key(client._masking.agree(keys[KEY_BYTES:]), context, client._number, j)
            for j, keys in client._neighbours.items()
        }
        own = derive(client._seed, context, b"self mask")
        assert {len(key) for key in (own, *pairs.values())} == {32}
        expected = reference.masked(going.vectors[device].tolist(), client._number, own, pairs, 8 * width)
        _, sent = messages.read_masked(answer, context, 11 * width)
        assert [int.from_bytes(sent[k : k + width], "little") for k in range(0, len(sent), width)] == expected


def test_every_bit_of_a_key_changes_the_whole_mask() -> None:
    key, length = bytes(range(32)), 20_000  # several blocks
    whole = mask_of(key, length)
    assert whole[:40].tolist() == reference.chacha20_words(key, 40)
    assert whole[16384:16390].tolist() == reference.chacha20_words(key, 16390)[16384:]
    for bit in range(256):
        other = bytearray(key)
        other[bit // 8] ^= 1 << bit % 8
        assert not (mask_of(bytes(other), 50) == whole[:50]).any()


def mask_of(key: bytes, length: int) -> Any:
    words = np.zeros(length, np.uint64)
    add_mask(words, key, 1)
    return words


def looks_uniform(octets: Any) -> bool:
    """Chi-square test of the byte values, and autocorrelation at several lags, at a level of one in a million."""
    counts = np.bincount(octets, minlength=256)
    chance = float(stats.chisquare(counts).pvalue)
    centred = (octets - 127.5) / 73.9
    lags = (1, 2, 6, 7, 8, 14, 64)
    correlation = max(abs(float(np.mean(centred[lag:] * centred[:-lag]))) for lag in lags) * np.sqrt(len(octets))
    return 1e-6 < chance < 1 - 1e-6 and bool(correlation < 5.5)


def masked_bytes(vector: LongArray, seed: int) -> Any:
    """What the server sees of device 0."""
    going = Round(length=len(vector), seed=seed)
    going.vectors[0][:] = vector
    going.before(2)
    return np.frombuffer(going.answers()[0][38 + SIGNATURE_BYTES : -32], np.uint8)


def test_a_masked_vector_looks_like_noise() -> None:
    rng = np.random.default_rng(0)
    for vector in (
        np.zeros(40_000, np.int64), np.full(40_000, 2**44), np.arange(40_000), rng.integers(-(2**44), 2**44, 40_000)
    ):  # fmt: skip
        seen = masked_bytes(vector, seed=3)
        assert looks_uniform(seen)
        assert all(looks_uniform(seen[k::7]) for k in range(7))
        again = masked_bytes(vector, seed=4)
        assert looks_uniform(seen ^ again)
        assert not looks_uniform(np.frombuffer(pack(vector.view(np.uint64), 7), np.uint8))  # the check can fail


@given(st.integers(1, 8), st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_packing_keeps_the_low_bytes(width: int, numbers: list[int]) -> None:
    half = 1 << 8 * width - 1
    values = np.array([n % (2 * half) - half for n in numbers], np.int64)
    assert signed(unpack(pack(values.view(np.uint64), width), width), width).tolist() == values.tolist()


def test_nothing_secret_shows() -> None:
    going = Round().before(1)
    for thing in (going.clients[0], going.clients[0]._masking, going.server):
        assert going.clients[0]._seed.hex() not in repr(thing)
        assert len(repr(thing)) < 60


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    primitives._package.cache_clear()
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(MissingDependencyError, match=r"fedgram\[secure\]"):
        SecureServer(SETTINGS, 1, AdmittedKeys(1, ()))
