"""Shared by the tests of all importers: files of messages, a text that must never be shown, and refusals."""

import traceback
from pathlib import Path
from typing import Any

import pytest

from fedgram.core.errors import InputError
from fedgram.text.importers import ImportOptions, ImportReport, read_messages

SECRET = "zanzibar"


def write(path: Path, text: str) -> Path:
    """Write a text file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def read(source: Path, **options: Any) -> tuple[list[tuple[str, str]], ImportReport]:
    """All messages of a source as (user, text), and the report."""
    messages, report = read_messages([source], ImportOptions(**options))
    return [(message.user, message.text) for message in messages], report


def refused(source: Path, **options: Any) -> InputError:
    """The error of a source that must be refused: one line, without the text that must never be shown."""
    with pytest.raises(InputError) as caught:
        read(source, **options)
    assert "\n" not in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value
