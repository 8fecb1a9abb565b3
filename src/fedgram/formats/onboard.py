"""Onboard's `.lm`: an ARPA-like text with counts, which Onboard smooths and continues to update."""

from pathlib import Path

import numpy as np

from fedgram.automata.build import ngrams_of
from fedgram.automata.model import NGramModel
from fedgram.core.storage import atomic_write
from fedgram.formats.word_pairs import expected_counts
from fedgram.text.vocabulary import BOS, EOS, SPECIAL

TEXT_SIZE = 10_000_000


def write_onboard(model: NGramModel, path: str | Path) -> None:
    """Write the n-grams with their expected counts in a text of ten million words."""
    rows, counts, names = ngrams_of(model.topology), expected_counts(model, TEXT_SIZE), model.vocabulary.words
    lengths = np.diff(rows.offsets)
    sections: list[list[str]] = []
    for n in range(1, int(lengths.max()) + 1):
        lines = [
            f"{counts[i]} {' '.join(names[w] for w in rows[i].tolist())}" for i in np.flatnonzero(lengths == n).tolist()
        ]
        if n == 1:
            marks = {line.split(" ", 1)[1] for line in lines} & set(SPECIAL)
            ends = next(line.split()[0] for line in lines if line.endswith(f" {SPECIAL[EOS]}"))
            lines = [*(f"{ends if m == SPECIAL[BOS] else 1} {m}" for m in SPECIAL if m not in marks), *lines]
        sections.append(lines)
    with atomic_write(path) as file:
        file.write(b"\\data\\\n" + "".join(f"ngram {n}={len(s)}\n" for n, s in enumerate(sections, 1)).encode())
        for n, lines in enumerate(sections, 1):
            file.write(f"\n\\{n}-grams:\n".encode() + "".join(line + "\n" for line in lines).encode())
        file.write(b"\n\\end\\\n")
