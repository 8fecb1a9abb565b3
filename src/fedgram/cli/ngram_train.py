"""`fedgram ngram train` and `fedgram ngram count`, and what the commands of the toolkit share."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.automata.build import count_ngrams
from fedgram.automata.model import NGramModel
from fedgram.automata.prune import prune_to_size
from fedgram.automata.restrict import keep_words
from fedgram.automata.training import NGramOptions, train, train_on_counts
from fedgram.automata.trie import MAX_ORDER
from fedgram.cli.commands import Command
from fedgram.cli.console import Steps, show, steps, warn
from fedgram.cli.parameters import bytes_of, json_option, output_option, piped_model_options
from fedgram.cli.settings import settings_options
from fedgram.cli.sizes import size
from fedgram.formats.count_files import read_counts, write_counts
from fedgram.formats.models import read_model, write_model
from fedgram.text.corpus import Corpus, read_corpus
from fedgram.text.vocabulary import SPECIAL, Vocabulary, read_vocabulary


def read(step: Steps, path: str) -> NGramModel:
    """Read a model, as a step."""
    step.begin(f"Reading {path}")
    return read_model(path)


def write(step: Steps, model: NGramModel, path: Path, **options: Any) -> None:
    """Write a model, as a step."""
    step.begin(f"Writing {path}")
    write_model(model, path, **options)


def report(output: Path, result: dict[str, Any], as_json: bool) -> None:
    """Show a result; on standard error if the model is on standard output."""
    show(result, as_json, err=str(output) == "-")


def read_text(step: Steps, paths: tuple[str, ...], vocabulary: Vocabulary | None) -> Corpus:
    """Read text, as a step."""
    return read_corpus(paths, vocabulary, on_bytes=step.begin("Reading text", bytes_of(paths)))


@click.command(
    "train",
    cls=Command,
    examples=[
        "fedgram ngram train corpus.txt -o model.arpa",
        "fedgram ngram train corpus.txt --vocab words.txt --min-count 1,1,2 --max-ngrams 5000 -o model.ngram --json",
        "fedgram ngram train --counts corpus.counts -o model.arpa",
    ],
)
@click.argument("corpus", nargs=-1, required=True)
@piped_model_options
@settings_options(NGramOptions, "options")
@click.option("--vocab", help="Words to use, one per line; everything else becomes <unk>. By default, every word.")
@click.option("--limit-vocab", help="Words to keep, one per line: n-grams with others are dropped after smoothing.")
@click.option("--max-ngrams", type=click.IntRange(1), help="Prune to at most this many n-grams.")
@click.option("--counts", "counted", is_flag=True, help="CORPUS is files of counts, as `fedgram ngram count` writes.")
@json_option
def train_command(
    corpus: tuple[str, ...], output: Path, format: str | None, options: NGramOptions, vocab: str | None,
    limit_vocab: str | None, max_ngrams: int | None, counted: bool, as_json: bool,
) -> None:  # fmt: skip
    """Train a model on text, one sentence per line, or on counts.

    The order of a model of counts is at most that of the counts.
    """
    began = perf_counter()
    with steps() as step:
        vocabulary = read_vocabulary(vocab) if vocab else None
        if vocab and options.open_vocabulary is None:
            options = replace(options, open_vocabulary=True)
        if counted:
            step.begin("Reading counts")
            counts = read_counts(corpus, vocabulary, order=options.order)
            words, sizes = counts.vocabulary, {"counts": counts.topology.arcs}
            model = train_on_counts(counts, options, begin=step.begin)
        else:
            text = read_text(step, corpus, vocabulary)
            words, sizes = text.vocabulary, {"sentences": len(text.sentences), "words": text.words}
            model = train(text, options, begin=step.begin)
        model = keep_words(model, words_of(limit_vocab)) if limit_vocab else model
        if max_ngrams is not None:
            step.begin("Pruning")
            model = prune_to_size(model, max_ngrams)
        write(step, model, output, format=format)
    known = len(words) - len(SPECIAL)
    if options.order > 1 and known > options.higher_order_words:
        warn(
            f"of {known:,} words, only the {options.higher_order_words:,} most frequent are in n-grams of two and more "
            f"words; --higher-order-words {known} keeps all"
        )
    result = {"model": str(output), **sizes, **size(model), "seconds": round(perf_counter() - began, 3)}
    report(output, result, as_json)


def words_of(path: str) -> set[str]:
    """The words of a file, and the special ones."""
    return {*read_vocabulary(path).words, *SPECIAL}


@click.command(
    "count",
    cls=Command,
    examples=[
        "fedgram ngram count corpus.txt --order 3 -o corpus.counts",
        "fedgram ngram count corpus.txt --vocab words.txt -o corpus.counts.gz --json",
    ],
)
@click.argument("corpus", nargs=-1, required=True)
@output_option("Counts to write: one n-gram per line, words, a tab and a count; .gz .bz2 .zst are packed.")
@click.option("--order", type=click.IntRange(1, MAX_ORDER), default=3, show_default=True, help="Longest n-gram.")
@click.option("--vocab", help="Words to use, one per line; everything else becomes <unk>. By default, every word.")
@json_option
def count_command(corpus: tuple[str, ...], output: Path, order: int, vocab: str | None, as_json: bool) -> None:
    """Count the n-grams of text, in the format of SRILM's ngram-count."""
    with steps() as step:
        text = read_text(step, corpus, read_vocabulary(vocab) if vocab else None)
        step.begin("Counting n-grams")
        counts = count_ngrams(text.sentences, text.vocabulary, order=order)
        step.begin(f"Writing {output}")
        written = write_counts(counts, output, sentences=len(text.sentences))
    show({"counts": str(output), "sentences": len(text.sentences), "words": text.words, "ngrams": written}, as_json)
