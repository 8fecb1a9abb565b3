"""A third language from public text, end to end, in one command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.reference.aosp_dict import read_dict

from fedgram.fgram.reader import open_model
from fedgram.keyboard.decoder import Keyboard
from fedgram.keyboard.layout import load_layout

WHO, DOES, WHAT = (
    ["Jag", "Du", "Hunden", "Anna", "Min bror"],
    ["äter", "köper", "söker", "ser", "gillar"],
    ["en gul båt", "två röda äpplen", "den gamla bilen", "mjölk på ön", "ingenting här"],
)


def swedish(count: int) -> str:
    rng = np.random.default_rng(3)
    return "".join(
        f"{number}\tswe\t{WHO[a]} {DOES[b]} {WHAT[c]}.\n"
        for number, (a, b, c) in enumerate(rng.integers(0, 5, (count, 3)).tolist(), 1)
    )


def test_a_language_in_one_command(tmp_path: Path, fedgram: Callable[..., Any], refused: Callable[..., str]) -> None:
    source, folder = tmp_path / "swe_sentences.tsv", tmp_path / "svenska"
    source.write_text(swedish(3000))
    result = fedgram("phone", "build", source, "--locale", "sv_SE", "-o", folder, "--json")
    assert result["sentences"] == 3000
    assert result["held_out_oov"] == 0
    assert result["held_out_perplexity"] < 5
    packed = open_model(folder / "lm.fgram")
    assert packed.predict("Hunden köper den gamla", k=1)[0].word == "bilen"
    about, words, following = read_dict(folder / "main_sv_se.dict")
    assert about["locale"] == "sv_SE"
    assert {"äpplen", "båt", "ön", "Anna"} <= words.keys()
    assert [word for word, _ in following["gamla"]] == ["bilen"]
    board = Keyboard(packed, load_layout("sv_se"))
    taps = board.layout.typed("applen")
    assert board.decode(taps, ["två", "röda"], k=1)[0].word == "äpplen"
    source.write_text(swedish(10))
    assert "only 10 sentences" in refused("phone", "build", source, "--locale", "sv", "-o", folder)
    assert "is not one such as" in refused("phone", "build", source, "--locale", "s v", "-o", folder)
