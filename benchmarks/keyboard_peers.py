"""Keyboards' predictions beside fedgram's: presage and Onboard, each with the same model in its own format.

A query is a context of words, and its answer the three words that the program would show. The contexts are from text
that the model has not seen, so the shares of right answers can be compared too. Times are those of calls from Python.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
from benchmarks.measure import ROOT
from benchmarks.ngram_peers import Material
from benchmarks.presage_queries import library
from benchmarks.side_by_side import MICROSECONDS, PERCENT, Figures, Missing, Peer, Row, compare

from fedgram.automata.model import NGramModel
from fedgram.fgram.reader import PackedModel, open_model
from fedgram.formats.onboard import write_onboard
from fedgram.formats.presage import write_presage

CONTEXTS = 500
DEBIAN_PYTHON = "/usr/bin/python3"  # where Debian installs Onboard
PROGRAMS = "apt-get install presage onboard, or scripts/programs"
_ONBOARD = """
import json, sys
from time import perf_counter
from Onboard.pypredict import DynamicModelKN
model = DynamicModelKN()
model.load(sys.argv[1])
times, predicted = [], []
for words in json.load(open(sys.argv[2])):
    began = perf_counter()
    predicted.append(model.predict([*words, ""], 3))
    times.append(1e6 * (perf_counter() - began))
print(json.dumps([times, predicted]))
"""


def queries(text: Path, count: int) -> tuple[list[list[str]], list[str]]:
    """Contexts at random places of a text, and the words that follow them."""
    rng, lines = np.random.default_rng(0), [line.split() for line in text.read_text().splitlines()]
    places = [(i, j) for i, line in enumerate(lines) for j in range(1, len(line))]
    chosen = [places[k] for k in rng.choice(len(places), min(count, len(places)), replace=False).tolist()]
    return [lines[i][:j] for i, j in chosen], [lines[i][j] for i, j in chosen]


def child(*command: object) -> tuple[list[float], list[list[str]]]:
    """The microseconds and the predictions that a program prints."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"{command[0]} ended with code {done.returncode}")
    times, predicted = json.loads(done.stdout.splitlines()[-1])
    return times, predicted


def own_answers(packed: PackedModel, contexts: list[list[str]]) -> tuple[list[float], list[list[str]]]:
    times, predicted = [], []
    for words in contexts:
        began = perf_counter()
        found = packed.predict(words, 3)
        times.append(1e6 * (perf_counter() - began))
        predicted.append([p.word for p in found])
    return times, predicted


def rows(m: Material, model: NGramModel) -> list[Row]:
    """The times of predictions, and how often the next word is among them."""
    contexts, expected = queries(m.other, CONTEXTS)
    asked, packed = m.folder / "contexts.json", open_model(m.packed)
    asked.write_text(json.dumps(contexts))
    own_answers(packed, contexts[:20])  # compiles

    def figures(ask: Callable[[], tuple[list[float], list[list[str]]]]) -> Figures:
        def once() -> tuple[float, float, float]:
            times, predicted = ask()
            right = [word in words[:3] for word, words in zip(expected, predicted, strict=True)]
            return float(np.median(times)), float(np.percentile(times, 99)), 100.0 * float(np.mean(right))

        return once

    def presage() -> Figures:
        if not library():
            raise Missing(PROGRAMS)
        database = m.folder / "presage.db"
        write_presage(model, database)
        return figures(lambda: child(sys.executable, "-m", "benchmarks.presage_queries", database, asked))

    def onboard() -> Figures:
        if not has_onboard():
            raise Missing(PROGRAMS)
        path = m.folder / "onboard.lm"
        write_onboard(model, path)
        return figures(lambda: child(DEBIAN_PYTHON, "-c", _ONBOARD, path, asked))

    size = f"{model.topology.arcs:,} n-grams"
    return compare(
        {
            f"three next words from {size}, median": MICROSECONDS,
            "… 99th percentile": MICROSECONDS,
            "… the word that was typed is among them": PERCENT,
        },
        figures(lambda: own_answers(packed, contexts)),
        Peer("presage", presage),
        Peer("Onboard", onboard),
    )


def has_onboard() -> bool:
    try:
        return not subprocess.run(
            [DEBIAN_PYTHON, "-c", "import Onboard.pypredict"], capture_output=True, check=False
        ).returncode
    except OSError:
        return False
