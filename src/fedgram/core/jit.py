"""Compiled kernels: the only place that imports numba.

A kernel is a plain function over arrays and scalars. It is compiled on its first call and the machine code is cached
on disk, so that later processes start at once. numba notices a change of a kernel's own file, but not of the files
whose kernels and constants it has built in; so the cache is kept in a folder named by a digest of our sources (all but
those of the layers that have none). `kernel` keeps the function's type, so mypy sees through it.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def _use_own_cache() -> None:
    """Point numba to this version's folder, and remove those of other versions."""
    package = Path(__file__).parents[1]
    sha = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        if source.parent.name not in ("cli", "report", "pipeline", "web"):
            sha.update(source.read_bytes())
    home = package / "__pycache__"
    own = home / f"kernels-{sha.hexdigest()[:16]}"
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # an installation that cannot be written to: numba finds a place of the user's
    for other in home.glob("kernels-*"):
        if other != own:
            shutil.rmtree(other, ignore_errors=True)
    setattr(numba.config, "CACHE_DIR", str(own))  # noqa: B010


if "NUMBA_CACHE_DIR" not in os.environ:
    _use_own_cache()


def kernel(function: F) -> F:
    """Compile `function`; integer overflow wraps, indices are not checked, the interpreter lock is released."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inline_kernel(function: F) -> F:
    """Like `kernel`, for a few lines that other kernels call in their innermost loop."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", inline="always")(function))


def merged_kernel(function: F) -> F:
    """Like `kernel`, but compiled into whatever calls it: no call, and no counting of references to arrays."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function))


@intrinsic
def _popcount(_: Any, __: Any) -> Any:
    """The number of ones in a 64-bit word."""
    return types.int64(types.uint64), lambda _context, builder, _signature, args: builder.ctpop(args[0])


@intrinsic
def _trailing_zeros(_: Any, __: Any) -> Any:
    """The number of zeros below the lowest one of a 64-bit word; 64 for the word 0."""
    no = ir.Constant(ir.IntType(1), 0)
    return types.int64(types.uint64), lambda _context, builder, _signature, args: builder.cttz(args[0], no)


@intrinsic
def _leading_zeros(_: Any, __: Any) -> Any:
    """The number of zeros above the highest one of a 64-bit word; 64 for the word 0."""
    no = ir.Constant(ir.IntType(1), 0)
    return types.int64(types.uint64), lambda _context, builder, _signature, args: builder.ctlz(args[0], no)


# In kernels alone, on 64-bit words.
popcount = cast(Callable[[Any], int], _popcount)
trailing_zeros = cast(Callable[[Any], int], _trailing_zeros)
leading_zeros = cast(Callable[[Any], int], _leading_zeros)
