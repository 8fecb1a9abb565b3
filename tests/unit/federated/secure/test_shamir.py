"""Shares: enough of them recover the secret, fewer reveal nothing, and a few wrong ones are detected."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import secure_aggregation as reference

from fedgram.federated.secure import shamir


@given(
    st.binary(min_size=32, max_size=32), st.integers(1, 12), st.integers(0, 6), st.integers(0, 2**32), st.data()
)  # fmt: skip
def test_any_t_shares_give_the_secret(secret: bytes, t: int, more: int, seed: int, data: st.DataObject) -> None:
    places = list(range(3, 3 + 2 * (t + more), 2))
    shares = shamir.split(secret, places, t, np.random.default_rng(seed).bytes)
    chosen = data.draw(st.permutations(places))[:t]
    some = {x: shares[x] for x in chosen}
    assert shamir.combine(some) == secret
    assert reference.secret_of(some, shamir.P) == int.from_bytes(secret, "big")


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(2, 8), st.integers(0, 99))
def test_fewer_shares_fit_any_secret(secret: bytes, other: bytes, t: int, seed: int) -> None:
    """For any other secret, some polynomial passes through t − 1 shares of the first and has that secret at 0."""
    shares = shamir.split(secret, range(1, t + 1), t, np.random.default_rng(seed).bytes)
    known = {x: shares[x] for x in list(shares)[: t - 1]}
    forged = {0: int.from_bytes(other, "big"), **known}
    assert _at(forged, t, shamir.P) < shamir.P
    assert shamir.combine({**known, t: _at(forged, t, shamir.P)}) == other


def _at(points: dict[int, int], x: int, p: int) -> int:
    total = 0
    for i, y in points.items():
        for j in points:
            if j != i:
                y = y * (x - j) * pow(i - j, -1, p) % p
        total += y
    return total % p


def test_wrong_shares_are_worked_around() -> None:
    secret = bytes(range(32))
    shares = shamir.split(secret, range(1, 10), 5, np.random.default_rng(0).bytes)
    for wrong in (0, 1, 2):
        lies = {x: (y + 1) % shamir.P if x <= wrong else y for x, y in shares.items()}
        assert shamir.recover(lies, 5, secret.__eq__) == secret
    assert shamir.recover(dict(list(shares.items())[:4]), 5, secret.__eq__) is None
    assert shamir.recover({x: y + 1 for x, y in shares.items()}, 5, secret.__eq__) is None


def test_the_field_is_a_field() -> None:
    """Miller and Rabin's test, with many bases."""
    p, rng = shamir.P, np.random.default_rng(0)
    d, s = p - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for _ in range(40):
        x = pow(int.from_bytes(rng.bytes(32), "big") % (p - 3) + 2, d, p)
        powers = [x] + [pow(x, 2**k, p) for k in range(1, s)]
        assert x == 1 or p - 1 in powers
    for length, place in ((31, 1), (32, 0)):
        with pytest.raises(ValueError, match="secret"):
            shamir.split(bytes(length), [place], 1, rng.bytes)


def test_one_share_fewer_than_the_threshold_opens_nothing() -> None:
    """Through t − 1 shares, the polynomial of degree t − 2 has another value at 0, for every threshold."""
    entropy = np.random.default_rng(3).bytes
    for t in range(2, 9):
        secret = entropy(32)
        shares = shamir.split(secret, range(1, 10), t, entropy)
        for first in range(9 - t + 2):
            some = {x: shares[x] for x in list(shares)[first : first + t - 1]}
            assert shamir.combine(some) != secret
            assert shamir.recover(some, t, lambda _: True) is None


@pytest.mark.parametrize(
    ("secret", "places", "threshold"),
    [
        (bytes(31), [1, 2], 2),
        (bytes(33), [1, 2], 2),
        (bytes(32), [1, 2], 3),
        (bytes(32), [1, 2], 0),
        (bytes(32), [1, 1], 1),
    ],
)
def test_each_wrong_argument_of_a_split_is_refused(secret: bytes, places: list[int], threshold: int) -> None:
    with pytest.raises(ValueError, match="32 bytes, and at least as many distinct places"):
        shamir.split(secret, places, threshold, np.random.default_rng(0).bytes)


@pytest.mark.parametrize("place", [0, shamir.P])
def test_no_share_is_the_secret_itself(place: int) -> None:
    with pytest.raises(ValueError, match="place 0 would reveal the secret"):
        shamir.split(bytes(32), [1, place], 2, np.random.default_rng(0).bytes)
