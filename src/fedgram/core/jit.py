"""Compiled kernels: the only place that imports numba.

A kernel is a plain function over arrays and scalars. It is compiled on its first call. The machine code is cached on
disk, so later processes start at once; see `core.kernel_cache`. `kernel` keeps the function's type, so mypy checks the
callers.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedgram.core.kernel_cache import prepare_cache

F = TypeVar("F", bound=Callable[..., Any])
_NO_COUNTS: dict[str, Any] = {"_nrt": False}  # no reference counting, a flag of numba without a type

# Without a folder of ours, numba caches where the environment says or in the user's own cache folder.
if "NUMBA_CACHE_DIR" not in os.environ and (_folder := prepare_cache(Path(__file__).parents[1])):
    setattr(numba.config, "CACHE_DIR", str(_folder))  # noqa: B010


def kernel(function: F) -> F:
    """Compile `function`: integer overflow wraps, indices are not checked, and the interpreter lock is released."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inline_kernel(function: F) -> F:
    """Like `kernel`, for short functions that other kernels call in their innermost loop."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")(function))


def lean_kernel(function: F) -> F:
    """Like `kernel`, without reference counting of arrays, for functions that make and return no arrays."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", **_NO_COUNTS)(function))


def merged_kernel(function: F) -> F:
    """Like `lean_kernel`, but compiled into its callers, so that there is no call."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True, **_NO_COUNTS)(function))


@intrinsic
def _popcount(_: Any, __: Any) -> Any:
    """The number of one bits in a 64-bit word."""
    return types.int64(types.uint64), lambda _context, builder, _signature, args: builder.ctpop(args[0])


@intrinsic
def _trailing_zeros(_: Any, __: Any) -> Any:
    """The number of zero bits below the lowest one bit of a 64-bit word; 64 for the word 0."""
    no = ir.Constant(ir.IntType(1), 0)
    return types.int64(types.uint64), lambda _context, builder, _signature, args: builder.cttz(args[0], no)


@intrinsic
def _leading_zeros(_: Any, __: Any) -> Any:
    """The number of zero bits above the highest one bit of a 64-bit word; 64 for the word 0."""
    no = ir.Constant(ir.IntType(1), 0)
    return types.int64(types.uint64), lambda _context, builder, _signature, args: builder.ctlz(args[0], no)


# Only for use in kernels, on 64-bit words.
popcount = cast(Callable[[Any], int], _popcount)
trailing_zeros = cast(Callable[[Any], int], _trailing_zeros)
leading_zeros = cast(Callable[[Any], int], _leading_zeros)
