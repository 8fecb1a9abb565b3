"""Compiled kernels: the only place that imports numba.

A kernel is a plain function over arrays and scalars. It is compiled on its first call and the machine code is cached
on disk, so that later processes start at once. `kernel` keeps the function's type, so mypy sees through it.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile `function`; integer overflow wraps, indices are not checked, the interpreter lock is released."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inline_kernel(function: F) -> F:
    """Like `kernel`, for a few lines that other kernels call in their innermost loop."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")(function))
