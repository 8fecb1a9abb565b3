"""`fedgram network pieces`: train word pieces from word frequencies, and look at them."""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import click

from fedgram.cli.commands import Group
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import json_option, output_option
from fedgram.cli.settings import settings_options
from fedgram.core.errors import InputError
from fedgram.text.corpus import open_text, whole_lines
from fedgram.text.normalize import uncase
from fedgram.text.unigrams import read_unigrams
from fedgram.text.vocabulary import SPECIAL
from fedgram.text.wordpieces import MARK, PieceOptions, WordPieces, load_pieces, pieces_per_token, train_pieces


@click.group(
    cls=Group,
    examples=["fedgram network pieces train --unigrams U.unigrams --size 200 -o pieces.model",
              "fedgram network pieces info pieces.model"],
)  # fmt: skip
def group() -> None:
    """Train word pieces from word frequencies, and inspect them.

    A model is a SentencePiece file. The mark ▁ is at the end of a word, so that only its last piece has it.
    """


@group.command(
    "train",
    examples=[
        "fedgram network pieces train --unigrams U.unigrams --size 200 -o pieces.model",
        "fedgram network pieces train --unigrams words.tsv --size 300 -o pieces.model --json",
    ],
)
@click.option("--unigrams", required=True, help="Word frequencies: .unigrams, or lines of word, tab, count.")
@settings_options(PieceOptions, "options")
@output_option("Model to write.")
@json_option
def train_command(unigrams: str, options: PieceOptions, output: Path, as_json: bool) -> None:
    """Learn word pieces from the frequencies of words, lower-cased."""
    began = perf_counter()
    with steps() as step:
        step.begin(f"Reading {unigrams}")
        frequency: dict[str, float] = {}
        for word, count in read_unigrams(unigrams).items():
            if word not in SPECIAL:
                frequency[uncase(word)] = frequency.get(uncase(word), 0.0) + count
        step.begin("Training word pieces")
        pieces = train_pieces(frequency, size=options.size, path=output)
    result = {
        "model": str(output),
        "size": pieces.size,
        "words": len(frequency),
        "characters": len(set().union(*frequency)),
        "pieces_per_token": pieces_per_token(pieces, frequency),
    }
    show({**result, "seconds": round(perf_counter() - began, 3)}, as_json)


@group.command(
    "encode",
    examples=[
        "fedgram network pieces encode pieces.model test.txt",
        "fedgram network pieces encode pieces.model - < test.txt",
    ],
)
@click.argument("model")
@click.argument("text", default="-")
def encode_command(model: str, text: str) -> None:
    """Print the pieces of the words of a text.

    Words are lower-cased; lines stay lines. Without TEXT, or where it is -, lines are read from standard input. A
    character without a piece becomes <unk>.
    """
    pieces = load_pieces(model)
    for number, line in enumerate(_lines(text), 1):
        if MARK in line:
            raise InputError(text, f"holds the mark {MARK}, which ends words in pieces", line=number)
        click.echo(_in_pieces(pieces, line.lower().split()))


def _lines(path: str) -> Iterator[str]:
    with open_text(path) as file:
        for chunk in whole_lines(file, path):
            yield from chunk.tobytes().decode().removesuffix("\n").split("\n")


def _in_pieces(pieces: WordPieces, words: list[str]) -> str:
    return " ".join(pieces.pieces[i] for i in pieces.encode_words(words).values)


@group.command(
    "info",
    examples=[
        "fedgram network pieces info pieces.model",
        "fedgram network pieces info pieces.model --json",
    ],
)
@click.argument("model")
@json_option
def info_command(model: str, as_json: bool) -> None:
    """Describe a model."""
    pieces = load_pieces(model)
    plain = [piece.removesuffix(MARK) for i, piece in enumerate(pieces.pieces) if i != pieces.unknown]
    show(
        {
            "model": model,
            "bytes": Path(model).stat().st_size,
            "size": pieces.size,
            "final_pieces": int(pieces.is_final.sum()),
            "characters": len(set().union(*plain)),
            "longest_piece": max(map(len, plain)),
        },
        as_json,
    )
