"""fedgram beside other programs: one table of ratios, measured in one run on one machine.

    python -m benchmarks.peers [ngrams|automata|keyboards|training …] [--words 6000000] [--clients 64] [--gpu]

Peers are measured in turns with fedgram, and figures are medians. A ratio above 1 means that fedgram is better. A peer
that is not installed has a row that says how to install it; `benchmarks/build_peers` builds or unpacks those that are
not packages of this environment. Below the table is what else was found: whether the results are the same.
"""

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks import automata_peers, keyboard_peers, ngram_peers
from benchmarks.measure import save
from benchmarks.ngram_toolkit import compile_kernels
from benchmarks.side_by_side import Row

GROUPS = ("ngrams", "automata", "keyboards", "training")


def measure(groups: list[str], words: int, clients: int, device: str) -> tuple[list[Row], list[str]]:
    """The rows of the table, and the notes below it."""
    rows: list[Row] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if {"ngrams", "automata", "keyboards"} & {*groups}:
            compile_kernels(folder)
            material = ngram_peers.make_material(folder, words)
        if {"ngrams", "keyboards"} & {*groups}:
            rows += ngram_peers.training(material, notes)
            model = ngram_peers.prepare_models(material)
            if "ngrams" in groups:
                rows += ngram_peers.rows(material, model, notes)
            if "keyboards" in groups:
                rows += keyboard_peers.rows(material, model)
        if "automata" in groups:
            rows += automata_peers.rows(material, notes)
    if "training" in groups:
        from benchmarks import training_peers  # imports torch

        rows += training_peers.rows(device, clients, rounds=4)
    return rows, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(GROUPS)}; by default, all")
    parser.add_argument("--words", type=int, default=6_000_000, help="size of the text")
    parser.add_argument("--clients", type=int, default=64, help="clients per round of a simulation")
    parser.add_argument("--gpu", action="store_true", help="training alone, on a GPU")
    given = parser.parse_args()
    if unknown := {*given.groups} - {*GROUPS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(GROUPS)}")
    groups = ["training"] if given.gpu else given.groups or list(GROUPS)
    rows, notes = measure(groups, given.words, given.clients, "cuda" if given.gpu else "cpu")
    save("peers", rows)
    print()
    for note in notes:
        print(f"- {note}")
    print(f"- {os.cpu_count()} cores; load over the last five minutes {os.getloadavg()[1]:.1f}.")


if __name__ == "__main__":
    main()
