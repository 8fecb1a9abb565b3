"""`fedgram pack`: an n-gram model in the few megabytes of an lm.fgram."""

from pathlib import Path
from time import perf_counter

import click

from fedgram.cli.console import json_option, output_path, show, steps
from fedgram.fgram.pack import pack
from fedgram.formats.models import READERS, model_suffix, read_model


def _model_input(_: click.Context, __: click.Parameter, value: str) -> str:
    model_suffix(value, tuple(READERS))
    return value


@click.command("pack")
@click.argument("model", callback=_model_input)
@click.option("-o", "--output", required=True, callback=output_path, help="File to write, such as lm.fgram.")
@click.option("--bits", type=click.IntRange(4, 12), default=8, show_default=True, help="Bits of a probability.")
@json_option
def command(model: str, output: Path, bits: int, as_json: bool) -> None:
    """Write MODEL as an lm.fgram for phones and browsers.

    MODEL is .arpa .arpa.gz .fst .ngram. The file holds the words, is mapped into memory and asked as it is; every
    state's probabilities sum to 1 within 0.001.
    """
    began = perf_counter()
    with steps() as step:
        step.begin(f"Reading {model}")
        full = read_model(model)
        step.begin(f"Packing into {output}")
        packed = pack(full, output, bits=bits)
    result = {
        "model": str(output),
        "bytes": packed.bytes,
        "ngrams": packed.ngrams,
        "bytes_per_ngram": packed.bytes / packed.ngrams,
        "words": len(full.vocabulary),
        "deviation_from_one": packed.deviation,
        **{f"bytes_of_{part}": size for part, size in packed.parts.items()},
        "seconds": round(perf_counter() - began, 3),
    }
    show(result, as_json)
