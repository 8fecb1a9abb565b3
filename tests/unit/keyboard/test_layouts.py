"""Layouts of many languages, the same in Python and in JavaScript."""

import json
import re
from importlib.resources import files

import pytest

from fedgram.core.errors import FedgramError
from fedgram.keyboard.layout import LAYOUTS, ROW_HEIGHT, load_layout


def test_every_key_is_where_it_is_tapped() -> None:
    assert len(LAYOUTS) >= 10
    for name in LAYOUTS:
        layout = load_layout(name)
        assert layout.nearest(layout.centres) == layout.keys
        assert len(set(layout.keys)) == len(layout.keys)


def test_javascript_has_the_same_layouts() -> None:
    script = files("fedgram.keyboard.web").joinpath("static", "layout.js").read_text("utf-8")
    rows = {name: json.loads(value) for name, value in re.findall(r"^  (\w+): (\[\[.*\]\]),$", script, re.MULTILINE)}
    assert rows.keys() == set(LAYOUTS)
    for name, found in rows.items():
        layout = load_layout(name)
        assert "".join(letters for letters, _ in found) == layout.keys
        centres = [[x + i + 0.5, (y + 0.5) * ROW_HEIGHT] for y, (keys, x) in enumerate(found) for i in range(len(keys))]
        assert layout.centres.tolist() == centres


@pytest.mark.parametrize("name", ["he_il", "ar", "fa-IR"])
def test_right_to_left_layouts_are_refused(name: str) -> None:
    with pytest.raises(FedgramError, match="right-to-left"):
        load_layout(name)
