"""The algebra of secure aggregation in plain Python: ChaCha20 (RFC 8439), Shamir's shares, masks, and who can unmask.

    y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)   (mod 2^bits)

Pair masks cancel in a sum over all, since each is added once and taken away once. What is left are the self masks of
those who reported and the pair masks towards those who did not.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction


def chacha20_words(key: bytes, count: int) -> list[int]:
    """The first numbers of 64 bits of a key's stream, nonce and counter 0."""
    stream = b"".join(_block(key, counter) for counter in range((8 * count + 63) // 64))
    return [int.from_bytes(stream[8 * k : 8 * k + 8], "little") for k in range(count)]


def _block(key: bytes, counter: int) -> bytes:
    words = [int.from_bytes(part, "little") for part in (b"expa", b"nd 3", b"2-by", b"te k")]
    words += [int.from_bytes(key[4 * k : 4 * k + 4], "little") for k in range(8)] + [counter, 0, 0, 0]
    state = list(words)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) % 2**32
            mixed = state[z] ^ state[x]
            state[z] = (mixed << turn | mixed >> 32 - turn) % 2**32

    for _ in range(10):
        for k in range(4):
            quarter(k, 4 + k, 8 + k, 12 + k)
        for k in range(4):
            quarter(k, 4 + (k + 1) % 4, 8 + (k + 2) % 4, 12 + (k + 3) % 4)
    return b"".join(((s + w) % 2**32).to_bytes(4, "little") for s, w in zip(state, words, strict=True))


def masked(x: Sequence[int], number: int, self_key: bytes, pair_keys: Mapping[int, bytes], bits: int) -> list[int]:
    """What device `number` sends; pair keys by the neighbour's number."""
    y = [a + b for a, b in zip(x, chacha20_words(self_key, len(x)), strict=True)]
    for j, key in pair_keys.items():
        sign = 1 if number < j else -1
        y = [a + sign * m for a, m in zip(y, chacha20_words(key, len(x)), strict=True)]
    return [a % 2**bits for a in y]


def secret_of(shares: Mapping[int, int], prime: int) -> int:
    """f(0) by Lagrange's formula, in fractions, brought into the field at the end."""
    total = 0
    for i, y in shares.items():
        part = Fraction(1)
        for j in shares:
            if j != i:
                part *= Fraction(-j, i - j)
        total += y * part.numerator * pow(part.denominator, -1, prime)
    return total % prime


def everybody_completes(threshold: int, quorum: int, least: int, answered: Sequence[int]) -> bool:
    """Whether a round in which all are neighbours has a sum; so many answered each of the five steps."""
    keys, shares, vectors, confirmations, unmaskings = answered
    return (
        min(keys, shares, vectors) >= least
        and min(shares, vectors, confirmations) >= quorum
        and min(shares, vectors, confirmations, unmaskings) >= threshold + 1
    )
