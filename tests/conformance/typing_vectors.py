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
from fedgram.keyboard.languages import Languages
from fedgram.keyboard.layout import load_layout, noisy_taps
from fedgram.keyboard.multilingual import MultilingualKeyboard
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


def language_vectors(board: MultilingualKeyboard) -> dict[str, Any]:
    """What two languages in one keyboard expect after text in both, with and without personal words."""
    rng, languages = np.random.default_rng(1), board.languages
    personal, cases = PersonalModel(languages), []
    for n in range(60):
        parts = [int(rng.integers(2)) for _ in range(rng.integers(0, 3))]
        context = [
            word
            for language in parts
            for word in (*_sentence(languages, language, rng), *(["</s>"] if rng.random() < 0.7 else ["Zuleica"]))
        ]
        lexicon = board.boards[n % 2].lexicon
        key = lexicon.keys[int(rng.integers(len(lexicon)))]
        places = noisy_taps(board.layout, key, 0.35, rng).round(6)
        trail = synthesize_trail(board.layout, key, rng).round(6)
        own = personal if n >= 40 else None
        word = board.typing(context, own)
        for x, y in places.tolist():
            word.tap(x, y)
        prefix = "" if n % 3 else key[:2]
        cases.append([
            context, languages.posterior(context).tolist(), prefix,
            [[p.word, p.log_p] for p in (own or languages).predict(context, 4, prefix)],
            places.tolist(), [[c.word, c.worth, c.is_complete, c.is_literal] for c in word.candidates(4)],
            trail.tolist(), [[c.word, c.worth] for c in board.glide(trail, context, 4, own)],
        ])  # fmt: skip
        if n == 39:
            said = [[*_sentence(languages, i % 2, rng), "Zuleica"] for i in range(20)]
            for sentence in said:
                personal.learn(sentence)
    return {"layout": board.layout.name, "cases": cases, "plain": 40, "said": said}


def _sentence(languages: Languages, language: int, rng: np.random.Generator) -> list[str]:
    """Words that one model expects after each other."""
    model, words = languages.models[language], list[str]()
    while len(words) < 4:
        words.append(model.predict(words, 8)[int(rng.integers(8))].word)
    return words


def write_vectors(folder: Path) -> None:
    """Write a model and its vectors for each language, and those of both in one keyboard."""
    for name, model in models().items():
        if name in ("en_us", "pt_br"):
            pack(model, folder / f"{name}.fgram")
            board = Keyboard(open_model(folder / f"{name}.fgram"), load_layout(name))
            (folder / f"{name}.typing.json").write_text(json.dumps(vectors(board), ensure_ascii=False))
    both = Languages([open_model(folder / f"{name}.fgram") for name in ("en_us", "pt_br")])
    found = language_vectors(MultilingualKeyboard(both, load_layout("pt_br")))
    (folder / "languages.json").write_text(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write_vectors(Path(sys.argv[1]))
