"""Planting a fault in modules that are imported already, by replacing the code of the functions that it changes.

This spares a trial the imports. It is possible if the fault changes only code inside functions that are not compiled:
constants, defaults, decorators and kernels are read when a module is imported, and then the trial imports it anew.
"""

import sys
from collections.abc import Iterator
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any


def patch(module: str, old: str, new: str) -> bool:
    """Change the functions of an imported module from the old source to the new one, if that is possible."""
    targets = _targets(module, old, new)
    for function, code in targets:
        function.__code__ = code
    return bool(targets)


def can_patch(module: str, old: str, new: str) -> bool:
    """Whether `patch` is possible."""
    return bool(_targets(module, old, new))


def _targets(module: str, old: str, new: str) -> list[tuple[Any, CodeType]]:
    """The functions to change with their new code; none if that is not enough."""
    loaded = sys.modules.get(module)
    before, after = (compile(source, module, "exec") for source in (old, new))
    if loaded is None or _shape(before) != _shape(after):
        return []
    changed = [(path, other) for path, one, other in _functions(before, after) if not _same(one, other)]
    targets = [(_function(loaded, path), code) for path, code in changed]
    return [] if any(function is None or not _fits(function, code) for function, code in targets) else targets


def _fits(function: Any, code: CodeType) -> bool:
    return len(function.__code__.co_freevars) == len(code.co_freevars)


def _functions(
    before: CodeType, after: CodeType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], CodeType, CodeType]]:
    """The functions of both, by the names of their classes and themselves; those inside functions belong to them."""
    for one, other in zip(_inner(before), _inner(after), strict=True):
        own = (*path, one.co_name)
        if one.co_flags & 2:  # CO_NEWLOCALS: a function, not the body of a class
            yield own, one, other
        else:
            yield from _functions(one, other, own)


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _shape(code: CodeType) -> Any:
    """What a module or a class does besides defining functions."""
    inner = [(one.co_name, None if one.co_flags & 2 else _shape(one)) for one in _inner(code)]
    return _content(code), inner


def _same(one: CodeType, other: CodeType) -> bool:
    inner = _inner(one), _inner(other)
    return (
        _content(one) == _content(other)
        and len(inner[0]) == len(inner[1])
        and all(_same(a, b) for a, b in zip(*inner, strict=True))
    )


def _content(code: CodeType) -> Any:
    """All of a code object but its line numbers and the code inside it."""
    constants = [repr(constant) for constant in code.co_consts if not isinstance(constant, CodeType)]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars


def _function(owner: Any, path: tuple[str, ...]) -> Any:
    """The function with this path, out of a property or another wrapper; None if there is none that can be changed.

    A kernel cannot be: its machine code, and that of its callers, is cached under the old source.
    """
    for name in path:
        owner = vars(owner).get(name) if hasattr(owner, "__dict__") else None
    seen: Any = owner
    for _ in range(5):
        if hasattr(seen, "py_func"):
            return None
        if isinstance(seen, FunctionType) and not hasattr(seen, "__wrapped__"):
            return seen
        if isinstance(seen, property):
            seen = seen.fget
        elif isinstance(seen, cached_property):
            seen = seen.func
        else:
            seen = getattr(seen, "__func__", None) or getattr(seen, "__wrapped__", None)
    return None
