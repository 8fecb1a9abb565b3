"""Decimal numbers in text, for kernels that read and write millions of them."""

import numpy as np

from fedgram.core.arrays import ByteArray
from fedgram.core.jit import kernel

DECIMALS = 7
MAX_NUMBER_BYTES = 24


@kernel
def parse_number(text: ByteArray, begin: int, end: int) -> float:
    """The decimal number `text[begin:end]`, accurate to a few units in the last place; NaN if it is not a number.

    `-inf` is read as −99, the smallest log10 probability in ARPA files.
    """
    i, sign = begin, 1.0
    if i < end and (text[i] == 45 or text[i] == 43):
        sign = -1.0 if text[i] == 45 else 1.0
        i += 1
    if sign < 0 and end - i == 3 and text[i] == 105 and text[i + 1] == 110 and text[i + 2] == 102:
        return -99.0
    mantissa, exponent, digits, point = 0.0, 0, 0, False
    while i < end:
        c = text[i]
        if 48 <= c <= 57:
            mantissa = mantissa * 10.0 + (c - 48)
            digits += 1
            exponent -= point
        elif c == 46 and not point:
            point = True
        else:
            break
        i += 1
    if digits == 0:
        return np.nan
    if i < end and (text[i] == 101 or text[i] == 69):
        i += 1
        negative = i < end and text[i] == 45
        i += i < end and (text[i] == 45 or text[i] == 43)
        power, first = 0, i
        while i < end and 48 <= text[i] <= 57 and power < 10000:
            power = power * 10 + (text[i] - 48)
            i += 1
        if i == first:
            return np.nan
        exponent += -power if negative else power
    if i < end:
        return np.nan
    return sign * (mantissa / 10.0**-exponent if exponent < 0 else mantissa * 10.0**exponent)


@kernel
def write_number(value: float, out: ByteArray, position: int) -> int:
    """Write `value` with at most 7 decimals and without trailing zeros; returns the position after it."""
    scaled = np.int64(np.rint(abs(value) * 10.0**DECIMALS))
    if value < 0 and scaled:
        out[position] = 45
        position += 1
    position = write_integer(scaled // 10**DECIMALS, out, position)
    fraction = scaled % 10**DECIMALS
    if fraction == 0:
        return position
    out[position] = 46
    position += 1
    unit = 10 ** (DECIMALS - 1)
    while fraction:
        out[position] = 48 + fraction // unit
        fraction %= unit
        unit //= 10
        position += 1
    return position


@kernel
def write_integer(value: int, out: ByteArray, position: int) -> int:
    """Write an integer ≥ 0; returns the position after it."""
    unit = 1
    while value // unit >= 10:
        unit *= 10
    while unit:
        out[position] = 48 + value // unit
        value %= unit
        unit //= 10
        position += 1
    return position
