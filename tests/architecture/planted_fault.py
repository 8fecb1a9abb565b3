"""A pytest plugin that breaks one function, class or table of fedgram, to see whether a test notices.

    FEDGRAM_PLANTED_FAULT=fedgram.automata.merge.merge pytest -p tests.architecture.planted_fault tests/…::test_…

The fault is planted when all tests are collected, in every module that has imported the object.
"""

import importlib
import os
import sys
from typing import Any

VARIABLE = "FEDGRAM_PLANTED_FAULT"


class PlantedFault(Exception):
    """What a broken function raises."""


def pytest_collection_finish() -> None:
    """Break what the environment names."""
    plant(os.environ[VARIABLE])


def plant(name: str) -> None:
    """Make a function raise, a class refuse to make objects, or a table empty."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)

    def broken(*_: Any, **__: Any) -> Any:
        raise PlantedFault(name)

    if isinstance(found, type):
        found.__init__ = broken  # type: ignore[misc]
    elif callable(found):
        for holder in list(sys.modules.values()):
            for alias, value in list(getattr(holder, "__dict__", {}).items()):
                if value is found:
                    setattr(holder, alias, broken)
    else:
        found.clear()
