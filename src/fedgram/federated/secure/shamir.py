"""Shamir's secret sharing (1979): a secret is f(0) of a random polynomial of degree t − 1, a share is one f(x).

Any t shares determine the polynomial; fewer reveal nothing about f(0). The field has p = 2²⁵⁶ + 297 elements, so every
256-bit secret is an element; a share takes 33 bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from random import Random

P = 2**256 + 297
SECRET_BYTES, SHARE_BYTES = 32, 33
_TRIES = 64


def split(secret: bytes, places: Sequence[int], threshold: int, entropy: Callable[[int], bytes]) -> dict[int, int]:
    """One share per place, of which `threshold` recover the secret; places must be distinct and not 0."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(places) or len(set(places)) < len(places):
        raise ValueError("a secret must have 32 bytes, and at least as many distinct places as the threshold")
    # 64 random bytes modulo p are uniform up to 2⁻²⁵⁵
    f = [int.from_bytes(secret, "big"), *(int.from_bytes(entropy(64), "big") % P for _ in range(threshold - 1))]
    return {x: _value(f, x) for x in places}


def _value(f: Sequence[int], x: int) -> int:
    if x % P == 0:
        raise ValueError("place 0 would reveal the secret")
    y = 0
    for coefficient in reversed(f):
        y = (y * x + coefficient) % P
    return y


def combine(shares: Mapping[int, int]) -> bytes | None:
    """f(0) of the polynomial through all of these shares; None if it does not fit into 32 bytes."""
    # f(0) = Σ_i y_i Π_{j≠i} x_j / (x_j − x_i); with one denominator, so that only one inversion is needed
    top, bottom = 0, 1
    for xi, yi in shares.items():
        above, below = yi, 1
        for xj in shares:
            if xj != xi:
                above = above * xj % P
                below = below * (xj - xi) % P
        top, bottom = (top * below + above * bottom) % P, bottom * below % P
    secret = top * pow(bottom, -1, P) % P
    return secret.to_bytes(SECRET_BYTES, "big") if secret < 1 << 8 * SECRET_BYTES else None


def recover(shares: Mapping[int, int], threshold: int, is_right: Callable[[bytes], bool]) -> bytes | None:
    """The secret that `is_right` accepts, from any `threshold` of the shares; tolerates a few wrong shares."""
    if len(shares) < threshold:
        return None
    for places in islice(_choices(sorted(shares), threshold), _TRIES):
        secret = combine({x: shares[x] for x in places})
        if secret is not None and is_right(secret):
            return secret
    return None


def _choices(places: list[int], count: int) -> Iterable[list[int]]:
    """The first `count` places, then, if there are more, random choices."""
    yield places[:count]
    rng = Random(0)
    while count < len(places):
        yield rng.sample(places, count)
