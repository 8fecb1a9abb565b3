"""Choose the weights of tap and glide decoding on dev users; say on test users, once, what they are worth.

    python -m benchmarks.typing_weights lm.fgram --users users.parquet [--layout en_us] [--test]

The model must not have seen dev or test users. The search begins at neutral weights; each is tried alone, the best is
kept, and the round is repeated until nothing gets better by more than a tenth of a percent. One word in ten has a
letter too few, too many or swapped.
With `--test` nothing is chosen: the present weights are measured on test users.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from benchmarks.measure import save

from fedgram.core.arrays import FloatArray
from fedgram.core.random import stream
from fedgram.fgram.reader import open_model
from fedgram.fgram.spelling import word_key
from fedgram.keyboard.decoder import Keyboard, TapOptions
from fedgram.keyboard.glide import GlideOptions, Glider, synthesize_trail
from fedgram.keyboard.layout import Layout, load_layout, noisy_taps
from fedgram.text.population import open_population

Weights = TypeVar("Weights", bound=Any)
ENOUGH = 0.001
# Where the search begins: nothing but what the formulas say before any data. Fingers miss by half a key, the language
# model counts as much as the fingers, and all kinds of mistakes are equally rare.
NEUTRAL_TAPS = TapOptions(
    sigma=0.5, weight=1.0, slip=-8.0, insertion=-6.0, deletion=-6.0, transposition=-6.0, unknown=-2.0
)
NEUTRAL_TRAILS = GlideOptions(sharpness=40.0, reach=2.0)
TAPS: dict[str, tuple[float, ...]] = {
    "weight": (0.4, 0.55, 0.7, 0.85, 1.0, 1.2),
    "sigma": (0.3, 0.35, 0.4, 0.45, 0.5, 0.6),
    "unknown": (-4.0, -3.0, -2.5, -2.0, -1.5, -1.0),
    "insertion": (-9.0, -7.5, -6.0, -4.5, -3.0),
    "deletion": (-9.0, -7.5, -6.0, -4.5, -3.0),
    "transposition": (-9.0, -7.5, -6.0, -4.5, -3.0),
    "slip": (-12.0, -10.0, -8.0, -6.0),
}
TRAILS: dict[str, tuple[float, ...]] = {
    "sharpness": (20.0, 40.0, 60.0, 80.0, 120.0, 160.0, 240.0),
    "reach": (1.4, 1.7, 2.0, 2.3),
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A word that somebody typed, what was before it, and how it was typed here."""

    context: tuple[str, ...]
    word: str
    taps: FloatArray
    trail: FloatArray


def slip(taps: FloatArray, rng: np.random.Generator) -> FloatArray:
    """One word in ten has a letter too few, too many, or two that are swapped."""
    if rng.random() >= 0.1 or len(taps) < 3:
        return taps
    i = int(rng.integers(len(taps) - 1))
    match int(rng.integers(3)):
        case 0:
            return np.delete(taps, i, axis=0)
        case 1:
            return np.insert(taps, i, taps[i] + rng.normal(0.0, 0.7, 2), axis=0)
        case _:
            taps[[i, i + 1]] = taps[[i + 1, i]]
            return taps


def typed_words(path: str, split: str, layout: Layout, count: int, *, slips: bool) -> list[Typed]:
    """Words at random places of the split's users, unknown ones too, with noise of 0.3 key widths."""
    people, rng, letters = open_population(path), stream(1, f"typed {split}"), set(layout.letters)
    clients = people.clients(split)
    rows: list[Typed] = []
    while len(rows) < count:
        sentences = people.sentences(int(clients[rng.integers(len(clients))]))
        words = [people.words[w] for w in sentences[int(rng.integers(len(sentences)))].tolist()]
        at = int(rng.integers(len(words)))
        key = word_key(words[at])
        if key and letters.issuperset(key) and len(key) <= 32:
            taps = noisy_taps(layout, key, 0.3, rng)
            taps = slip(taps, rng) if slips else taps
            rows.append(Typed(tuple(words[:at]), words[at], taps, synthesize_trail(layout, key, rng)))
    return rows


def tap_accuracy(board: Keyboard, rows: Sequence[Typed]) -> float:
    found = [board.decode(row.taps, row.context, 1) for row in rows]
    return float(np.mean([word_key(c[0].word) == word_key(row.word) for c, row in zip(found, rows, strict=True)]))


def trail_accuracy(glider: Glider, rows: Sequence[Typed]) -> tuple[float, float]:
    """(first, among three) of the words that have two letters or more."""
    rows = [row for row in rows if len(word_key(row.word)) > 1]
    found = [[word_key(c.word) for c in glider.decode(row.trail, row.context)] for row in rows]
    keys = [word_key(row.word) for row in rows]
    first = np.mean([words[:1] == [key] for words, key in zip(found, keys, strict=True)])
    return float(first), float(np.mean([key in words for words, key in zip(found, keys, strict=True)]))


def climb(
    start: Weights, grid: dict[str, tuple[float, ...]], value: Callable[[Weights], float]
) -> tuple[Weights, float]:
    """Change one weight at a time while that helps."""
    best, worth, moved = start, value(start), True
    while moved:
        moved = False
        for name, choices in grid.items():
            for choice in choices:
                if choice == getattr(best, name):
                    continue
                other = replace(best, **{name: choice})
                found = value(other)
                if found > worth + ENOUGH:
                    best, worth, moved = other, found, True
                    print(f"{name} = {choice}: {found:.4f}", flush=True)
    return best, worth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--users", required=True)
    parser.add_argument("--layout", default="en_us")
    parser.add_argument("--words", type=int, default=3000)
    parser.add_argument("--test", action="store_true", help="measure the present weights on test users")
    options = parser.parse_args()
    layout = load_layout(options.layout)
    board = Keyboard(open_model(options.model), layout)
    if options.test:
        for slips in (False, True):
            rows = typed_words(options.users, "test", layout, options.words, slips=slips)
            first, third = trail_accuracy(Glider(board), rows)
            literal = np.mean([word_key(layout.nearest(row.taps)) == word_key(row.word) for row in rows])
            cased = np.mean([board.decode(row.taps, row.context, 1)[0].word == row.word for row in rows])
            result: dict[str, object] = {
                "words": len(rows), "slips": slips, "tap_literal": float(literal),
                "tap_top1": tap_accuracy(board, rows), "tap_top1_cased": float(cased),
                "glide_top1": first, "glide_top3": third,
            }  # fmt: skip
            save(f"typing-{options.layout}-{'slips' if slips else 'noise'}", [result])
        return
    rows = typed_words(options.users, "dev", layout, options.words, slips=True)

    def tap_value(weights: TapOptions) -> float:
        board.options = weights
        return tap_accuracy(board, rows)

    taps, worth = climb(NEUTRAL_TAPS, TAPS, tap_value)
    print(f"taps {worth:.4f}: {taps}", flush=True)
    trails, worth = climb(NEUTRAL_TRAILS, TRAILS, lambda weights: trail_accuracy(Glider(board, weights), rows)[0])
    print(f"trails {worth:.4f}: {trails}", flush=True)


if __name__ == "__main__":
    main()
