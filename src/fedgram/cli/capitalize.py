"""`fedgram ngram capitalize`: put the capitals of a cased n-gram model into text."""

from collections.abc import Iterator
from typing import Any

import click

from fedgram.cli.commands import Command
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import json_option, model_argument
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.formats.models import read_model
from fedgram.text.corpus import open_text, whole_lines


@click.command(
    "capitalize",
    cls=Command,
    examples=["fedgram ngram capitalize A_W.arpa test.txt", "fedgram ngram capitalize A_W.arpa test.txt --json"],
)
@model_argument("model")
@click.argument("text", default="-")
@json_option
def command(model: str, text: str, as_json: bool) -> None:
    """Write TEXT with the capitals that a cased MODEL expects, one sentence per line.

    TEXT is UTF-8, one sentence per line, words separated by blanks; .gz is unpacked and - is standard input. Its own
    capitals are ignored. A word that MODEL does not have gets a capital if its last letters and the words before it are
    those of a name. A blank line stays blank.
    """
    with steps() as step:
        step.begin(f"Reading {model}")
        capitalizer = Capitalizer(read_model(model))
    result: dict[str, Any] = {"sentences": [], "words": 0, "changed": 0}
    for sentences in _read_sentences(text):
        capitalized = capitalizer.capitalize_words(sentences)
        lines = [" ".join(words) for words in capitalized]
        if not as_json:
            click.echo("\n".join(lines))
            continue
        result["sentences"] += lines
        result["words"] += sum(len(words) for words in sentences)
        result["changed"] += sum(
            old != new
            for before, after in zip(sentences, capitalized, strict=True)
            for old, new in zip(before, after, strict=True)
        )
    if as_json:
        show(result, as_json)


def _read_sentences(text: str) -> Iterator[list[list[str]]]:
    """The words of all lines, a few megabytes at a time."""
    with open_text(text) as file:
        for chunk in whole_lines(file, text):
            lines = chunk.tobytes().removesuffix(b"\n").split(b"\n")
            yield [[word.decode() for word in line.split()] for line in lines]
