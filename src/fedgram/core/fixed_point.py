"""Probabilities in fixed point: integer multiples of 2⁻³⁴, whose sums do not depend on the order of addition.

A single-precision number times 2³⁴, rounded to an integer, fits into single precision without loss: above 2²⁴ the
product is already an integer. So a GPU can keep fixed-point probabilities in 32 bits; only sums need wider numbers.
"""

BITS = 34
SCALE = 2.0**BITS
