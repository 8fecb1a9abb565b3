"""N-gram programs beside fedgram: KenLM (lmplz, its Python module and its binary files) and IRSTLM.

All of them work on the same files, which fedgram writes. Programs are compared with commands, from their start to their
end, and modules with functions, in one process.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.generated_text import write_text
from benchmarks.measure import fedgram, perplexity, program, run, seconds
from benchmarks.side_by_side import MEGABYTES, MILLISECONDS, QUERIES, SECONDS, Figures, Missing, Peer, Row, compare

from fedgram.automata.model import NGramModel
from fedgram.automata.prune import prune_to_size
from fedgram.automata.scoring import score_text, sentence_log_probs
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import open_model
from fedgram.formats.kenlm import write_kenlm
from fedgram.formats.models import read_model, write_model
from fedgram.text.corpus import read_corpus
from fedgram.text.vocabulary import EOS

NGRAMS, HELD_OUT = 1_450_000, 200_000
BUILD = "run benchmarks/build_peers, which builds KenLM; it needs cmake, g++ and Boost"
IRSTLM = "apt-get install irstlm"


@dataclass(frozen=True)
class Material:
    """What the peers work on: a text, other text of the same kind, and the folder for models."""

    folder: Path
    text: Path
    words: int
    other: Path

    @property
    def full(self) -> Path:
        """The model of the text."""
        return self.folder / "full.arpa"

    @property
    def middle(self) -> Path:
        """The model pruned to the size of a large keyboard's."""
        return self.folder / "middle.arpa"

    @property
    def packed(self) -> Path:
        """The pruned model, packed."""
        return self.folder / "middle.fgram"


def make_material(folder: Path, words: int) -> Material:
    """Write the texts; `training` writes the model of the first, and `prepare_models` the others."""
    text = write_text(folder / "text.txt", words)
    return Material(folder, text, words, write_text(folder / "other.txt", max(1_000, min(HELD_OUT, words)), seed=2))


def prepare_models(m: Material) -> NGramModel:
    """Write the pruned model and the packed one; the pruned one as it is read back."""
    full = read_model(m.full)
    write_model(prune_to_size(full, min(NGRAMS, full.topology.arcs // 2)), m.middle)
    pack(model := read_model(m.middle), m.packed)
    return model


def needed(name: str, remedy: str) -> str:
    """The path of a peer's program.

    Raises:
        Missing: If there is none.
    """
    found = program(name)
    if not found:
        raise Missing(remedy)
    return found


def kenlm() -> Any:
    """KenLM's Python module."""
    try:
        import kenlm as module
    except ImportError:
        raise Missing("pip install kenlm, which needs cmake and g++") from None
    return module


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Without what compiled libraries write to standard error, such as KenLM's progress bars."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def training(m: Material, notes: list[str]) -> list[Row]:
    """`fedgram ngram train` and `lmplz`; both models must have the same perplexity."""
    theirs = m.folder / "lmplz.arpa"

    def lmplz() -> Figures:
        command = [needed("lmplz", BUILD), *f"-o 3 -S 4G -T {m.folder} --text {m.text} --arpa {theirs}".split()]
        if m.words < 100_000:
            command.append("--discount_fallback")
        return lambda: run(command).seconds

    rows = compare(
        {f"train a modified Kneser-Ney trigram on {m.words / 1e6:.3g}M words": SECONDS},
        lambda: fedgram("ngram", "train", m.text, "-o", m.full, "--smoothing", "modified-kneser-ney").seconds,
        Peer("KenLM lmplz", lmplz),
    )
    if theirs.is_file():
        both = [perplexity(model, m.other) for model in (m.full, theirs)]
        notes.append(f"Perplexity of other text: {both[0]:.4f} by our trigram, {both[1]:.4f} by lmplz's.")
        theirs.unlink()
    return rows


def reading(m: Material, model: NGramModel) -> list[Row]:
    def module() -> Figures:
        read = kenlm().Model

        def once() -> float:
            with silent():
                return seconds(lambda: read(str(m.middle)))

        return once

    task = f"read {model.topology.arcs:,} n-grams of ARPA"
    return compare({task: SECONDS}, lambda: seconds(lambda: read_model(m.middle)), Peer("KenLM's module", module))


def pruning(m: Material, model: NGramModel, notes: list[str]) -> list[Row]:
    size = model.topology.arcs
    target, ours, theirs = size * 3 // 14, m.folder / "small.arpa", m.folder / "irstlm.arpa"

    def prune_lm() -> Figures:
        command = [needed("prune-lm", IRSTLM), "--threshold=1e-6,1e-6", str(m.middle), str(theirs)]
        return lambda: run(command).seconds

    rows = compare(
        {f"read, prune {size:,} n-grams, write": SECONDS},
        lambda: fedgram("ngram", "prune", m.middle, "-o", ours, "--max-ngrams", target).seconds,
        Peer("IRSTLM prune-lm", prune_lm),
    )
    if theirs.is_file():
        notes.append(f"Pruning leaves {target:,} n-grams here and {arpa_size(theirs):,} with IRSTLM.")
    return rows


def arpa_size(path: Path) -> int:
    """The number of n-grams that the header of an ARPA file declares."""
    total = 0
    with path.open() as file:
        for line in file:
            if line.startswith("ngram "):
                total += int(line.split("=")[1])
            elif line.startswith("\\1-grams"):
                break
    return total


def binary(m: Material, model: NGramModel, structure: str) -> Path:
    """KenLM's binary file of the pruned model, made once."""
    path = m.folder / f"{structure}.binary"
    if not path.is_file():
        write_kenlm(model, path, structure=structure, builder=needed("build_binary", BUILD))
    return path


def packing(m: Material, model: NGramModel) -> list[Row]:
    """Sizes, and times to open the files, which are in the page cache."""

    def stored(structure: str) -> Peer:
        def prepare() -> Figures:
            read, path = kenlm().Model, binary(m, model, structure)
            return lambda: (path.stat().st_size / 1e6, 1e3 * seconds(lambda: read(str(path))))

        return Peer(f"KenLM {structure}" + ", 8 bits" * (structure == "trie"), prepare)

    return compare(
        {f"file of {model.topology.arcs:,} n-grams": MEGABYTES, "open that file, ours with its checksum": MILLISECONDS},
        lambda: (m.packed.stat().st_size / 1e6, 1e3 * seconds(lambda: open_model(m.packed))),
        stored("trie"),
        stored("probing"),
        repeats=15,
    )


def scoring(m: Material, model: NGramModel, notes: list[str]) -> list[Row]:
    """Sentences scored from Python: a file, strings, and word ids, which KenLM's module does not take."""
    lines, packed = m.other.read_text().splitlines(), open_model(m.packed)
    ids = packed.encode([line.split() for line in lines])
    queries = len(ids.values) + len(ids)
    score_text(model, lines[:10])  # compiles
    packed.log_probs(ids)

    def model_of(structure: str) -> Any:
        return kenlm().Model(str(binary(m, model, structure)))

    def by_file() -> Figures:
        score = model_of("probing").score
        corpus = read_corpus([m.other], model.vocabulary)
        ours = sentence_log_probs(model, corpus.sentences) / np.log(10.0)
        known = [(row > EOS).all() for row in corpus.sentences]  # unknown words have another floor there
        furthest = np.abs(ours - [score(line) for line in lines])[known].max()
        notes.append(f"Largest difference of a known sentence's log10 p from KenLM's: {furthest:.1g}.")

        def whole() -> None:
            with m.other.open() as file:
                sum(score(line) for line in file)

        return lambda: queries / seconds(whole)

    def by_line(structure: str) -> Callable[[], Figures]:
        def prepare() -> Figures:
            score = model_of(structure).score
            return lambda: queries / seconds(lambda: [score(line) for line in lines])

        return prepare

    def rate(work: Callable[[], object]) -> Figures:
        return lambda: queries / seconds(work)

    probing = "KenLM's module, probing"
    return [
        *compare({f"score a file of {queries:,} words and sentence ends": QUERIES},
                 rate(lambda: score_text(model, m.other)), Peer(probing, by_file)),
        *compare({"score the same as strings in memory": QUERIES},
                 rate(lambda: score_text(model, lines)), Peer(probing, by_line("probing"))),
        *compare({"score with the packed model, ours from word ids": QUERIES},
                 rate(lambda: packed.log_probs(ids)), Peer("KenLM's module, trie, 8 bits", by_line("trie"))),
    ]  # fmt: skip


def rows(m: Material, model: NGramModel, notes: list[str]) -> list[Row]:
    """All rows that need the models."""
    return [*reading(m, model), *pruning(m, model, notes), *packing(m, model), *scoring(m, model, notes)]
