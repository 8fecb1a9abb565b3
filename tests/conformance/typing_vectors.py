"""Conformance vectors for typing: taps and trails with the words they mean, and what a personal model then expects.

python -m tests.conformance.typing_vectors FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tests.conformance.fgram_vectors import models

from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model
from fedgram.fgram.spelling import word_key
from fedgram.keyboard.decoder import Keyboard
from fedgram.keyboard.glide import Glider, synthesize_trail
from fedgram.keyboard.layout import load_layout, noisy_taps
from fedgram.keyboard.personal import PersonalModel


def vectors(board: Keyboard) -> dict[str, Any]:
    rng, glider, personal = np.random.default_rng(0), Glider(board), PersonalModel(board.model)
    taps, trails = [], []
    for _ in range(60):
        key = board.lexicon.keys[int(rng.integers(len(board.lexicon)))]
        context = [board.model.words[i] for i in rng.integers(3, len(board.model), rng.integers(0, 3))]
        places = noisy_taps(board.layout, key, 0.35, rng).round(6)
        if rng.random() < 0.4:
            places = np.delete(places, int(rng.integers(len(places))), axis=0)
        word = board.typing(context)
        for x, y in places.tolist():
            word.tap(x, y)
        found = [[c.word, c.worth, c.is_complete, c.is_literal] for c in word.candidates(4)]
        taps.append([context, places.tolist(), word.literal, found])
        trail = synthesize_trail(board.layout, key, rng).round(6)
        trails.append([context, trail.tolist(), [[c.word, c.worth] for c in glider.decode(trail, context, 4)]])
    said = [[board.model.words[i] for i in rng.integers(3, len(board.model), 6)] + ["Zuleica"] for _ in range(20)]
    for sentence in said:
        personal.learn(sentence)
    expected = [
        [context, prefix, [[p.word, p.log_p] for p in personal.predict(context, 4, prefix)]]
        for context in ([], [said[0][0]], [said[0][5]])
        for prefix in ("", "z", "a", "co")
    ]
    own = []
    for key in ["zuleica", *(word_key(said[i][i % 6]) for i in range(12))]:
        if not key or not set(key) <= set(board.layout.letters):
            continue
        context = [said[0][5]]
        places, trail = (
            noisy_taps(board.layout, key, 0.35, rng).round(6),
            synthesize_trail(board.layout, key, rng).round(6),
        )
        word = board.typing(context, personal)
        for x, y in places.tolist():
            word.tap(x, y)
        own.append([
            context, places.tolist(), [[c.word, c.worth, c.is_complete, c.is_literal] for c in word.candidates(4)],
            trail.tolist(), [[c.word, c.worth] for c in glider.decode(trail, context, 4, personal)],
        ])  # fmt: skip
    return {
        "own": own,
        "layout": board.layout.name, "taps": taps, "trails": trails, "said": said, "expected": expected,
        "learned": [list(row) for row in personal.learned()], "personal": personal.to_json(),
    }  # fmt: skip


def write_vectors(folder: Path) -> None:
    """Write a model and its vectors for each language."""
    for name, model in models().items():
        if name in ("en_us", "pt_br"):
            pack(model, folder / f"{name}.fgram")
            board = Keyboard(open_model(folder / f"{name}.fgram"), load_layout(name))
            (folder / f"{name}.typing.json").write_text(json.dumps(vectors(board), ensure_ascii=False))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write_vectors(Path(sys.argv[1]))
