"""`fedgram phone`: models as phones and other keyboards take them, and how fast they are."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import click
import numpy as np

from fedgram.automata.sampling import sample_sentences
from fedgram.cli.commands import Group
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import json_option, model_argument, output_option, with_suffix
from fedgram.cli.settings import settings_options
from fedgram.cli.sizes import size
from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.lazy import lazy
from fedgram.fgram.pack import PackOptions, pack, unpack_model
from fedgram.fgram.reader import MAX_PREDICTIONS, open_model
from fedgram.formats.arpa import write_arpa
from fedgram.formats.exports import ExportFormat, ExportOptions, export
from fedgram.formats.kenlm import STRUCTURES, find_builder
from fedgram.formats.models import read_model
from fedgram.keyboard.layout import LAYOUTS, load_layout
from fedgram.keyboard.public_model import PublicModelOptions, build_public_model
from fedgram.keyboard.speed import measure, measure_typing, seconds_of
from fedgram.text.normalize import last_sentence
from fedgram.text.vocabulary import SPECIAL

_SENTENCES = 30_000
_MAX_CONTEXT = 100_000


@click.group(
    cls=Group,
    examples=["fedgram phone pack model.arpa -o lm.fgram", 'fedgram phone predict lm.fgram "see you"'],
)
def group() -> None:
    """Pack models for phones, try them on a keyboard, export them, and measure them."""


@group.command(
    "pack",
    examples=["fedgram phone pack model.arpa -o lm.fgram", "fedgram phone pack model.arpa -o small.fgram --bits 6"],
)
@model_argument("model")
@output_option("File to write: .fgram", with_suffix(".fgram", what="a packed model"))
@settings_options(PackOptions, "options")
@json_option
def pack_command(model: str, output: Path, options: PackOptions, as_json: bool) -> None:
    """Write MODEL as an lm.fgram for phones and browsers.

    MODEL is .arpa .arpa.gz .fst .ngram. The file contains the words. It is mapped into memory and queried as it is. At
    every state the probabilities sum to 1 within 0.001.
    """
    began = perf_counter()
    with steps() as step:
        step.begin(f"Reading {model}")
        full = read_model(model)
        step.begin(f"Packing into {output}")
        packed = pack(full, output, bits=options.bits)
    result = {
        "model": str(output),
        "bytes": packed.bytes,
        "ngrams": packed.ngrams,
        "bytes_per_ngram": packed.bytes / packed.ngrams,
        "words": len(full.vocabulary) - len(SPECIAL),
        "deviation_from_one": packed.deviation,
        **{f"bytes_of_{part}": size for part, size in packed.parts.items()},
        "seconds": round(perf_counter() - began, 3),
    }
    show(result, as_json)


@group.command(
    "build",
    examples=[
        "fedgram phone build corpus.txt --locale en_GB -o english",
        "fedgram phone build corpus.txt test.txt --locale en_GB -o english --max-ngrams 2000 --json",
    ],
)
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@click.option("--locale", required=True, help="The language, such as sv or pt_BR.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder to write."
)
@settings_options(PublicModelOptions, "options")
@json_option
def build_command(
    texts: tuple[str, ...], locale: str, output: Path, options: PublicModelOptions, as_json: bool
) -> None:
    """Make a keyboard's model of a language from public text, without users.

    TEXT is plain text, a Wikipedia dump (.xml, .xml.bz2), a sentence file of Tatoeba, or subtitles (.srt). The folder
    gets lm.fgram for `fedgram phone keyboard`, main_LOCALE.dict with next words for HeliBoard and its relatives, and
    lm.arpa for other programs. Every 50th sentence is held out and measures the model.
    """
    began = perf_counter()
    with steps() as step:
        built = build_public_model(texts, output, locale=locale, options=options, begin=step.begin)
    result = {
        "sentences": built.sentences,
        **size(built.model),
        "words": len(built.model.vocabulary) - len(SPECIAL),
        "held_out_perplexity": built.held_out.perplexity_without_oov,
        "held_out_oov": built.held_out.oov / max(built.held_out.words, 1),
        "files": [str(path) for path in built.files],
        "bytes": [path.stat().st_size for path in built.files],
        "seconds": round(perf_counter() - began, 1),
    }
    show(result, as_json)


@group.command(
    "predict",
    examples=[
        'fedgram phone predict lm.fgram "see you"', 'fedgram phone predict lm.fgram "see you" --prefix t -k 5 --json'
    ],
)  # fmt: skip
@click.argument("model")
@click.argument("context", default="")
@click.option(
    "-k", "--count", type=click.IntRange(1, MAX_PREDICTIONS), default=3, show_default=True, help="Number of words."
)
@click.option(
    "--prefix", default="", help="Only words that begin with this; capitals, accents and apostrophes are ignored."
)
@json_option
def predict_command(model: str, context: str, count: int, prefix: str, as_json: bool) -> None:
    """Print the most probable words after CONTEXT, the best first.

    MODEL is an lm.fgram. CONTEXT is text as typed; only its last sentence is used.
    """
    if len(context) > _MAX_CONTEXT:
        raise FedgramError(f"the context has more than {_MAX_CONTEXT:,} characters; give its last sentence only")
    words = last_sentence(context)
    found = open_model(model).predict(words, count, prefix)
    if as_json:
        rows = [{"word": p.word, "probability": float(np.exp(p.log_p)), "log_p": p.log_p} for p in found]
        click.echo(json.dumps({"context": words, "prefix": prefix, "predictions": rows}, ensure_ascii=False))
        return
    for p in found:
        click.echo(f"{p.word}\t{np.exp(p.log_p):.6f}")


@group.command(
    "keyboard",
    examples=[
        "fedgram phone keyboard lm.fgram",
        "fedgram phone keyboard en_us.fgram pt_br.fgram",
        "fedgram phone keyboard lm.fgram --compare other.fgram --port 0",
    ],
)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--compare", help="An lm.fgram for a second keyboard, shown beside the first.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 means any free one."
)
def keyboard_command(models: tuple[str, ...], compare: str | None, host: str, port: int) -> None:
    """Serve a page to type with MODEL, an lm.fgram, until stopped.

    With several models, one per language, the keyboard tells from the words which language is being typed. The page
    decodes taps and glides and makes suggestions by itself. It works offline once loaded; no text leaves it.
    """
    app = lazy(".keyboard.web.app:make_app")(models, host, compare)
    say = "http://{}:{}/  (stop with Ctrl-C)".format
    lazy(".keyboard.web.server:serve")(app, host, port, lambda listening: click.echo(say(host, listening), err=True))


@group.command(
    "export",
    examples=[
        "fedgram phone export model.arpa --to aosp-combined --locale en_US -o main_en.combined",
        "fedgram phone export model.arpa --to onboard -o en_US.lm",
    ],
)
@model_argument("model")
@click.option("--to", "target", type=click.Choice(get_args(ExportFormat)), required=True, help="Format to write.")
@output_option("File to write.")
@settings_options(ExportOptions, "options")
@json_option
def export_command(model: str, target: ExportFormat, output: Path, options: ExportOptions, as_json: bool) -> None:
    """Write MODEL in another program's format.

    MODEL is .arpa .arpa.gz .fst .ngram. `docs/exports.md` says how to install each format where it is read.
    """
    with steps() as step:
        step.begin(f"Reading {model}")
        full = read_model(model)
        step.begin(f"Writing {output}")
        export(full, output, target, options)
    show({"model": str(output), "format": target, "bytes": output.stat().st_size}, as_json)


@group.command("bench", examples=["fedgram phone bench lm.fgram", "fedgram phone bench lm.fgram --json"])
@click.argument("model")
@click.option("--build-binary", "builder", help="KenLM's build_binary; by default, the one on the PATH.")
@click.option("--layout", type=click.Choice(LAYOUTS), default="en_us", show_default=True, help="Keyboard layout.")
@json_option
def bench_command(model: str, builder: str | None, layout: str, as_json: bool) -> None:
    """Measure MODEL, an lm.fgram: size, load time, queries per second, and times of predictions, taps and glides.

    The text is drawn from the model. Taps miss their keys by 0.3 key widths; trails are minimum-jerk movements. If
    KenLM's Python module is installed, it scores the same text with the same model as a probing table; with its
    build_binary, also as an 8-bit quantised trie.
    """
    with steps() as step:
        step.begin("Drawing text")
        packed = open_model(model)
        full = unpack_model(packed)
        text = sample_sentences(full, _SENTENCES, seed=0, max_length=100)
        step.begin("Measuring")
        result: dict[str, Any] = {
            "model": model,
            "bytes": Path(model).stat().st_size,
            "ngrams": packed.header.ngrams,
            "bytes_per_ngram": Path(model).stat().st_size / packed.header.ngrams,
            **measure(packed, text),
            **measure_typing(packed, load_layout(layout), text),
        }
        with tempfile.TemporaryDirectory() as folder:
            step.begin("Measuring KenLM")
            arpa = Path(folder) / "model.arpa"
            write_arpa(full, arpa)
            lines = [" ".join([packed.words[i] for i in sentence]) for sentence in text]
            result.update(_kenlm(arpa, lines, text, builder))
    for name in STRUCTURES:
        if f"kenlm_{name}_queries_per_second" in result:
            ratio = result["batch_queries_per_second"] / result[f"kenlm_{name}_queries_per_second"]
            result[f"times_kenlm_{name}"] = ratio
    show(result, as_json)


def _kenlm(arpa: Path, lines: list[str], text: Ragged, builder: str | None) -> dict[str, float]:
    try:
        import kenlm
    except ImportError:
        return {}
    files, config = {"probing": arpa}, kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    builder = find_builder(builder) if builder else shutil.which("build_binary")
    if builder:
        for name, options in STRUCTURES.items():
            files[name] = arpa.with_suffix(f".{name}")
            subprocess.run([builder, *options, str(arpa), str(files[name])], check=True, capture_output=True)
    result: dict[str, float] = {}
    symbols = len(text.values) + len(text)
    for name, path in files.items():
        peer = kenlm.Model(str(path), config)
        rate = symbols / seconds_of(lambda peer=peer: [peer.score(line) for line in lines])  # type: ignore[misc]
        result |= {f"kenlm_{name}_bytes": path.stat().st_size, f"kenlm_{name}_queries_per_second": rate}
    return result
