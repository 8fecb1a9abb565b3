"""`fedgram bench-device`: size and speed of an lm.fgram, with KenLM on the same model and text beside it."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from fedgram.automata.sampling import sample_sentences
from fedgram.cli.console import json_option, show, steps
from fedgram.core.arrays import Ragged
from fedgram.fgram.pack import unpack_model
from fedgram.fgram.reader import open_model
from fedgram.formats.arpa import write_arpa
from fedgram.keyboard.layout import LAYOUTS, load_layout
from fedgram.keyboard.speed import measure, measure_typing, seconds_of

_SENTENCES = 30_000


@click.command("bench-device")
@click.argument("model")
@click.option("--build-binary", "builder", help="KenLM's build_binary; default: the one on the PATH.")
@click.option("--layout", type=click.Choice(LAYOUTS), default="en_us", show_default=True, help="Keys to type on.")
@json_option
def command(model: str, builder: str | None, layout: str, as_json: bool) -> None:
    """Measure MODEL, an lm.fgram: size, load, queries a second, top-3, completion, tap and glide times.

    The text is drawn from the model; taps miss their keys by 0.3 key widths, trails are minimum-jerk movements. Where
    KenLM's Python module is installed it scores the same text with the same model as a probing table and, where its
    build_binary is found, as an 8-bit quantised trie.
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
    for name in ("probing", "trie"):
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
    builder = builder or shutil.which("build_binary")
    if builder:
        for name, options in (("probing", ["probing"]), ("trie", ["-a", "64", "-q", "8", "-b", "8", "trie"])):
            files[name] = arpa.with_suffix(f".{name}")
            subprocess.run([builder, *options, str(arpa), str(files[name])], check=True, capture_output=True)
    result: dict[str, float] = {}
    symbols = len(text.values) + len(text)
    for name, path in files.items():
        peer = kenlm.Model(str(path), config)
        rate = symbols / seconds_of(lambda peer=peer: [peer.score(line) for line in lines])  # type: ignore[misc]
        result |= {f"kenlm_{name}_bytes": path.stat().st_size, f"kenlm_{name}_queries_per_second": rate}
    return result
