"""Probabilities in fixed point: whole numbers of 2⁻³⁴, whose sums do not depend on the order of adding.

A number in single precision, times 2³⁴ and rounded, is a whole number that single precision holds: beyond 2²⁴ the
product is whole already. So devices may keep fixed-point probabilities in 32 bits, and need wider numbers for sums
alone.
"""

BITS = 34
SCALE = 2.0**BITS
