"""Benchmarks of a packed model: medians and 99th percentiles of single queries, and rates of batches."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from fedgram.core.arrays import LongArray, Ragged
from fedgram.core.random import stream
from fedgram.fgram.query import score_sentences, top_words
from fedgram.fgram.reader import PackedModel, open_model
from fedgram.fgram.spelling import FIRST_WORD, word_key
from fedgram.keyboard.decoder import Keyboard
from fedgram.keyboard.glide import Glider, synthesize_trail
from fedgram.keyboard.layout import Layout, noisy_taps
from fedgram.text.vocabulary import BOS

_OPENINGS, _CONTEXTS, _ROUNDS, _TYPED = 50, 5000, 3, 3000


def seconds_of(function: Callable[[], Any], rounds: int = _ROUNDS) -> float:
    """The least time of a few calls, after one call to compile and warm up."""
    function()
    times = []
    for _ in range(rounds):
        began = perf_counter()
        function()
        times.append(perf_counter() - began)
    return min(times)


def percentiles(function: Callable[[Any], Any], queries: Sequence[Any]) -> tuple[float, float]:
    """(median, 99th percentile) of the time of a call in microseconds, with one call per query after a warm-up."""
    for query in queries[:20]:
        function(query)
    times = np.empty(len(queries))
    for i, query in enumerate(queries):
        began = perf_counter()
        function(query)
        times[i] = perf_counter() - began
    median, high = np.percentile(times * 1e6, [50, 99])
    return float(median), float(high)


def load_milliseconds(path: str | Path, *, verify: bool) -> float:
    """The median time to open a file that is in the page cache."""
    return percentiles(lambda _: open_model(path, verify=verify), range(_OPENINGS))[0] / 1e3


def states_in(model: PackedModel, sentences: Ragged, count: int = _CONTEXTS) -> list[LongArray]:
    """The states at random positions of a text."""
    rng, states = stream(0, "contexts"), []
    for s in rng.integers(0, len(sentences), count).tolist():
        state = model.state()
        for word in sentences[s][: int(rng.integers(0, len(sentences[s]) + 1))].tolist():
            state = model.step(state, word)[1]
        states.append(state)
    return states


def measure_typing(model: PackedModel, layout: Layout, sentences: Ragged) -> dict[str, float]:
    """Milliseconds per key and per trail, and the accuracy, on noisy taps and trails of the words of a text.

    The time of a key is that of a tap and of the suggestions after it. A word counts as right if all its letters are
    right; capitals, accents and apostrophes are ignored.
    """
    board = Keyboard(model, layout)
    glider, rng, letters = Glider(board), stream(0, "typing"), set(layout.letters)
    keys, trails, right = [], [], np.zeros(4, np.int64)
    for _ in range(_TYPED):
        sentence = sentences[int(rng.integers(len(sentences)))].tolist()
        at = int(rng.integers(len(sentence))) if sentence else 0
        key = model.keys[sentence[at]] if sentence else ""
        if len(key) < 2 or not letters.issuperset(key):
            continue
        context = [model.words[word] for word in sentence[:at]]
        word, taps = board.typing(context), noisy_taps(layout, key, 0.3, rng)
        for x, y in taps.tolist():
            began = perf_counter()
            word.tap(x, y)
            word.candidates(3)
            keys.append(perf_counter() - began)
        trail = synthesize_trail(layout, key, rng)
        began = perf_counter()
        glided = glider.decode(trail, context)
        trails.append(perf_counter() - began)
        typed = [word_key(c.word) for c in word.candidates(3, complete=False)]
        traced = [word_key(c.word) for c in glided]
        right += [layout.nearest(taps) == key, typed[:1] == [key], traced[:1] == [key], key in traced]
    if not keys:
        return {}
    shares = right / len(trails)
    return {
        "tap_p50_ms": float(np.percentile(keys, 50)) * 1e3,
        "tap_p99_ms": float(np.percentile(keys, 99)) * 1e3,
        "tap_literal": float(shares[0]),
        "tap_top1": float(shares[1]),
        "glide_p50_ms": float(np.percentile(trails, 50)) * 1e3,
        "glide_p99_ms": float(np.percentile(trails, 99)) * 1e3,
        "glide_top1": float(shares[2]),
        "glide_top3": float(shares[3]),
    }


def measure(model: PackedModel, sentences: Ragged) -> dict[str, float]:
    """The rates and times of a model on a text of its own words."""
    symbols = len(sentences.values) + len(sentences)
    states = states_in(model, sentences)
    everything = np.array([[FIRST_WORD, len(model)]], np.int64)
    best_log, best = np.empty(3), np.empty(3, np.int64)
    letters = "abcdefghilmnoprstuw"
    top = percentiles(lambda state: top_words(model.arrays, state, everything, best_log, best), states)
    typed = [(state, letters[i % len(letters)]) for i, state in enumerate(states)]
    complete = percentiles(lambda query: model.predict_ids(query[0], 3, query[1]), typed)
    few = Ragged(
        sentences.values[: sentences.offsets[len(sentences) // 4]], sentences.offsets[: len(sentences) // 4 + 1]
    )
    packed = seconds_of(lambda: score_sentences(model.arrays, few.values, few.offsets, BOS))
    model.unpacked  # noqa: B018  # built once, outside the times
    return {
        "load_ms": load_milliseconds(model.path, verify=True),
        "load_unverified_ms": load_milliseconds(model.path, verify=False),
        "queries_per_second": (len(few.values) + len(few)) / packed,
        "batch_queries_per_second": symbols / seconds_of(lambda: model.log_probs(sentences)),
        "top3_p50_us": top[0],
        "top3_p99_us": top[1],
        "complete_p50_us": complete[0],
        "complete_p99_us": complete[1],
    }
