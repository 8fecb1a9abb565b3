"""`fedgram export`: a model in the formats that other keyboards and recognisers read."""

from collections.abc import Callable
from pathlib import Path

import click

from fedgram.automata.model import NGramModel
from fedgram.cli.console import json_option, output_path, show, steps
from fedgram.formats.aosp import write_combined, write_dict
from fedgram.formats.arpa import write_arpa
from fedgram.formats.kenlm import STRUCTURES, write_kenlm
from fedgram.formats.models import READERS, model_suffix, read_model
from fedgram.formats.onboard import write_onboard
from fedgram.formats.openfst import write_openfst
from fedgram.formats.presage import write_presage
from fedgram.formats.word_pairs import word_pairs

FORMATS = ("arpa", "kenlm", "openfst", "g.fst", "aosp-combined", "aosp-dict", "onboard", "presage")


def _model_input(_: click.Context, __: click.Parameter, value: str) -> str:
    model_suffix(value, tuple(READERS))
    return value


@click.command("export")
@click.argument("model", callback=_model_input)
@click.option("--to", "target", type=click.Choice(FORMATS), required=True, help="Whose format.")
@click.option("-o", "--output", required=True, callback=output_path, help="File to write.")
@click.option("--locale", default="en_US", show_default=True, help="Language of an AOSP dictionary.")
@click.option(
    "--bigrams", type=click.IntRange(0, 30), default=10, show_default=True,
    help="Most next words a word in an AOSP dictionary; more make its keyboards slow.",
)  # fmt: skip
@click.option("--words", type=click.IntRange(1), help="Most words in an AOSP dictionary; default: all.")
@click.option("--structure", type=click.Choice(list(STRUCTURES)), default="probing", show_default=True, help="KenLM's.")
@click.option("--build-binary", "builder", help="KenLM's build_binary; default: the one on the PATH.")
@json_option
def command(
    model: str, target: str, output: Path, locale: str, bigrams: int, words: int | None, structure: str,
    builder: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write MODEL in another program's format.

    MODEL is .arpa .arpa.gz .fst .ngram. `docs/exports.md` says how to install each format where it is read.
    """
    if not locale.replace("_", "").replace("-", "").isalnum() or not locale.isascii():
        raise click.BadParameter(f"{locale!r} is not a locale such as en_US", param_hint="--locale")
    writers: dict[str, Callable[[NGramModel], None]] = {
        "arpa": lambda m: write_arpa(m, output),
        "kenlm": lambda m: write_kenlm(m, output, structure=structure, builder=builder),
        "openfst": lambda m: write_openfst(m, output),
        "g.fst": lambda m: write_openfst(m, output, style="kaldi"),
        "aosp-combined": lambda m: write_combined(word_pairs(m, bigrams=bigrams, words=words), output, locale=locale),
        "aosp-dict": lambda m: write_dict(word_pairs(m, bigrams=bigrams, words=words), output, locale=locale),
        "onboard": lambda m: write_onboard(m, output),
        "presage": lambda m: write_presage(m, output),
    }
    with steps() as step:
        step.begin(f"Reading {model}")
        full = read_model(model)
        step.begin(f"Writing {output}")
        writers[target](full)
    show({"model": str(output), "format": target, "bytes": output.stat().st_size}, as_json)
