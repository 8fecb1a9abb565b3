"""Files by the suffixes of their names: one line says what is wrong and what to do."""

from pathlib import Path
from typing import Any

import pytest

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError, InputError
from fedgram.files import load, pack, save
from fedgram.formats.models import read_model

MODEL = NGramModel.train(["see you there", "you see"], order=2)


def test_a_model_is_saved_packed_and_loaded(tmp_path: Path) -> None:
    save(MODEL, tmp_path / "a.arpa")
    assert repr(load(tmp_path / "a.arpa")) == repr(MODEL)
    assert repr(pack(MODEL, tmp_path / "lm.fgram")) == repr(load(tmp_path / "lm.fgram"))


@pytest.mark.parametrize("use", [read_model, lambda path: save(MODEL, path)])
def test_a_packed_model_is_no_format_of_models(use: Any, tmp_path: Path) -> None:
    path = tmp_path / "lm.fgram"
    pattern = r"is a name for a packed model; use \.arpa .*\.ngram, or pack the model: fedgram phone pack, fg\.pack$"
    with pytest.raises(InputError, match=pattern):
        use(path)
    assert not path.exists()


def test_only_models_are_packed(tmp_path: Path) -> None:
    line = "only n-gram models can be packed, not a value of type str; read files with fg.load first"
    with pytest.raises(FedgramError, match=line):
        pack("model.arpa", tmp_path / "lm.fgram")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"use one of \.fgram"):
        pack(MODEL, tmp_path / "lm.bin")
