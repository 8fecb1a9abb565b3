"""Objects by the name of their module, imported when they are first used.

The front door (`import fedgram`) and methods of data types use this: a method may call a function of a module that
itself builds on the type, without a cycle of imports.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy(place: str) -> Any:
    """The object at `.module:name`, with the module relative to the package.

    >>> lazy(".core.errors:InputError").__name__
    'InputError'
    """
    module, _, name = place.partition(":")
    return getattr(import_module(module, "fedgram"), name)


def callable_package(package: str, place: str) -> None:
    """Make calling a package call the function at `place`.

    A package and a function cannot both be `fedgram.distill`. So the package stands for its main function, and
    `fg.distill(...)` works whether or not a module of the package was imported before.
    """

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **settings: Any) -> Any:
            return lazy(place)(*args, **settings)

    sys.modules[package].__class__ = CallablePackage
