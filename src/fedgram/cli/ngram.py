"""`fedgram ngram`: the n-gram toolkit. A model's format follows from its suffix: .arpa .arpa.gz .fst .ngram."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

from fedgram.automata import approximate as approximation
from fedgram.automata import merge as merging
from fedgram.automata.counting import cross_entropy
from fedgram.automata.model import NGramModel, renormalize
from fedgram.automata.properties import normalization_error
from fedgram.automata.prune import prune_to_size, prune_to_threshold
from fedgram.automata.sampling import MAX_LENGTH, sample_sentences
from fedgram.automata.scoring import score
from fedgram.automata.training import NGramOptions, train
from fedgram.cli.capitalize import command as capitalize
from fedgram.cli.commands import Group
from fedgram.cli.console import Steps, show, steps
from fedgram.cli.parameters import (
    bytes_of,
    json_option,
    model_argument,
    model_output,
    model_output_option,
    seed_option,
)
from fedgram.cli.settings import settings_options
from fedgram.cli.sizes import size
from fedgram.core.errors import FedgramError
from fedgram.formats.models import is_model, read_model, write_model
from fedgram.formats.openfst import STYLES, symbols_path
from fedgram.text.corpus import Corpus, read_corpus
from fedgram.text.unigrams import read_unigrams
from fedgram.text.vocabulary import SPECIAL, Vocabulary, read_vocabulary

_SAMPLE_BATCH = 10_000


@click.group(
    cls=Group,
    examples=[
        "fedgram ngram train corpus.txt --order 3 --smoothing modified-kneser-ney -o model.arpa",
        "fedgram ngram perplexity model.arpa test.txt",
    ],
)
def group() -> None:
    """Train, prune, merge, approximate, score and convert n-gram models.

    A model's format follows from its suffix: .arpa, .arpa.gz, .fst (OpenFst), .ngram (exact, checksummed). Text is
    UTF-8, one sentence per line, words separated by blanks; .gz is unpacked and - is standard input.
    """


def _read(step: Steps, path: str) -> NGramModel:
    step.begin(f"Reading {path}")
    return read_model(path)


def _write(step: Steps, model: NGramModel, path: Path, **options: Any) -> None:
    step.begin(f"Writing {path}")
    write_model(model, path, **options)


def _read_text(step: Steps, paths: tuple[str, ...], vocabulary: Vocabulary | None) -> Corpus:
    return read_corpus(paths, vocabulary, on_bytes=step.begin("Reading text", bytes_of(paths)))


@group.command(
    "train",
    examples=[
        "fedgram ngram train corpus.txt --order 3 --smoothing modified-kneser-ney -o model.arpa",
        "fedgram ngram train corpus.txt --vocab words.txt --min-count 1,1,2 --max-ngrams 5000 -o model.ngram --json",
    ],
)
@click.argument("corpus", nargs=-1, required=True)
@model_output_option
@settings_options(NGramOptions, "options")
@click.option("--vocab", help="Words to use, one per line; everything else becomes <unk>. By default, every word.")
@click.option("--max-ngrams", type=click.IntRange(1), help="Prune to at most this many n-grams.")
@json_option
def train_command(
    corpus: tuple[str, ...], output: Path, options: NGramOptions, vocab: str | None, max_ngrams: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Train a model on text, one sentence per line."""
    began = perf_counter()
    with steps() as step:
        vocabulary = read_vocabulary(vocab) if vocab else None
        text = _read_text(step, corpus, vocabulary)
        if vocab and options.open_vocabulary is None:
            options = replace(options, open_vocabulary=True)
        model = train(text, options, max_ngrams=max_ngrams, begin=step.begin)
        _write(step, model, output)
    result = {"model": str(output), "sentences": len(text.sentences), "words": text.words, **size(model)}
    show({**result, "seconds": round(perf_counter() - began, 3)}, as_json)


@group.command(
    "prune",
    examples=[
        "fedgram ngram prune model.arpa --max-ngrams 20000 -o small.arpa",
        "fedgram ngram prune model.arpa --theta 1e-7 -o small.arpa --json",
    ],
)
@model_argument("model")
@model_output_option
@click.option("--max-ngrams", type=click.IntRange(1), help="Keep at most this many n-grams, unigrams included.")
@click.option("--theta", type=click.FloatRange(0), help="Drop n-grams that raise perplexity by less than this share.")
@click.option("--split-ties", is_flag=True, help="Keep some of equally useful n-grams, to meet --max-ngrams exactly.")
@json_option
def prune_command(
    model: str, output: Path, max_ngrams: int | None, theta: float | None, split_ties: bool, as_json: bool
) -> None:
    """Drop the n-grams that matter least (relative entropy)."""
    if (max_ngrams is None) == (theta is None):
        raise click.UsageError("give either --max-ngrams or --theta")
    if split_ties and theta is not None:
        raise click.UsageError("--split-ties goes with --max-ngrams")
    with steps() as step:
        full = renormalize(_read(step, model))
        step.begin("Pruning")
        if theta is not None:
            pruned = prune_to_threshold(full, theta)
        else:
            pruned = prune_to_size(full, max_ngrams or 0, split_ties=split_ties)
        _write(step, pruned, output)
    show({"model": str(output), "ngrams_before": full.topology.arcs, **size(pruned)}, as_json)


@group.command(
    "merge",
    examples=[
        "fedgram ngram merge a.arpa b.arpa --weight 0.3 -o both.arpa",
        "fedgram ngram merge a.arpa b.arpa --method bayes -o both.arpa",
    ],
)
@model_argument("a")
@model_argument("b")
@model_output_option
@click.option("--weight", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="The weight of A.")
@click.option("--method", type=click.Choice(merging.METHODS), default="linear", show_default=True, help="How to mix.")
@json_option
def merge_command(a: str, b: str, output: Path, weight: float, method: str, as_json: bool) -> None:
    """Interpolate two models."""
    with steps() as step:
        models = _read(step, a), _read(step, b)
        step.begin("Merging")
        merged = merging.merge(*models, weight=weight, method=method)
        _write(step, merged, output)
    show({"model": str(output), **size(merged)}, as_json)


@group.command(
    "replace-unigrams",
    examples=[
        "fedgram ngram replace-unigrams model.arpa U.unigrams -o other.arpa",
        "fedgram ngram replace-unigrams model.arpa words.tsv -o other.arpa --json",
    ],
)
@model_argument("model")
@click.argument("unigrams")
@model_output_option
@json_option
def replace_unigrams_command(model: str, unigrams: str, output: Path, as_json: bool) -> None:
    """Replace the unigrams of a model by other word frequencies.

    Words that the model lacks are added. UNIGRAMS is a file of `fedgram federated unigrams collect`, or text with lines
    of word, tab, count.
    """
    with steps() as step:
        full, frequency = _read(step, model), read_unigrams(unigrams)
        step.begin("Replacing unigrams")
        replaced = merging.replace_unigrams(full, frequency)
        _write(step, replaced, output)
    added = len(replaced.vocabulary) - len(full.vocabulary)
    result = {"model": str(output), "unigrams_given": len(frequency), "words_added": added}
    show({**result, **size(replaced)}, as_json)


@group.command(
    "approximate",
    examples=[
        "fedgram ngram approximate a.arpa b.arpa -o c.arpa",
        "fedgram ngram approximate a.arpa b.arpa --samples 1000 --seed 1 -o c.arpa --json",
    ],
)
@model_argument("source")
@model_argument("topology")
@model_output_option
@click.option(
    "--method", type=click.Choice(approximation.METHODS), default="kl-min", show_default=True, help="How to fit."
)
@click.option(
    "--samples", type=click.IntRange(1), help="Sample this many sentences; by default, exact expected counts."
)
@seed_option
@json_option
def approximate_command(
    source: str, topology: str, output: Path, method: str, samples: int | None, seed: int, as_json: bool
) -> None:
    """Fit one model's n-grams to another model's distribution.

    The result has the n-grams of TOPOLOGY and is as close to SOURCE as they allow. N-grams with words that SOURCE does
    not have are left out, and the other words of SOURCE are added as unigrams.
    """
    began = perf_counter()
    with steps() as step:
        model, target = _read(step, source), _read(step, topology)
        step.begin("Approximating")
        adopted = approximation.adopt_topology(
            target.topology, target.vocabulary, model.vocabulary, open_vocabulary=model.has_unknown
        )
        result = approximation.approximate(model, adopted, method=method, samples=samples, seed=seed)
        _write(step, result.model, output)
    counted = result.source
    figures: dict[str, Any] = {
        "words_left_out": sum(word not in model.vocabulary.index for word in target.vocabulary.words),
        "cross_entropy": result.cross_entropy,
        "source_entropy": counted.entropy,
        "kl": max(result.kl, 0.0),  # rounding may leave it just below
        "symbols_per_sentence": counted.symbols,
        "source_perplexity": float(np.exp(counted.entropy / counted.symbols)),
        "perplexity": float(np.exp(result.cross_entropy / counted.symbols)),
    }
    seconds = round(perf_counter() - began, 3)
    show({"model": str(output), **size(result.model), **figures, "seconds": seconds}, as_json)


@group.command(
    "perplexity",
    examples=[
        "fedgram ngram perplexity model.arpa test.txt",
        "fedgram ngram perplexity model.arpa model.arpa --json",
    ],
)
@model_argument("model")
@click.argument("text")
@json_option
def perplexity_command(model: str, text: str, as_json: bool) -> None:
    """Score a text, or compute the expected score of another model's text.

    TEXT has one sentence per line. If it is a model, the score is the exact expectation over its sentences. Perplexity
    is per symbol, sentence ends included. Unknown words are scored as <unk>; by a model without <unk> they are counted
    and left out.
    """
    with steps() as step:
        full = _read(step, model)
        if is_model(text):
            other = _read(step, text)
            step.begin("Computing the expectation")
            show(_expected_perplexity(full, other), as_json)
            return
        corpus = _read_text(step, (text,), full.vocabulary)
        step.begin("Scoring")
        result = score(full, corpus.sentences)
    show(
        {
            "sentences": result.sentences,
            "words": result.words,
            "oov": result.oov,
            "nats": result.nats,
            "nats_per_sentence": result.nats / result.sentences,
            "log10": -result.nats / float(np.log(10.0)),
            "perplexity": result.perplexity,
        },
        as_json,
    )


def _expected_perplexity(model: NGramModel, source: NGramModel) -> dict[str, Any]:
    if set(model.vocabulary.words) != set(source.vocabulary.words) or model.has_unknown != source.has_unknown:
        raise FedgramError("the two models have different vocabularies, so an expectation is not defined")
    same = merging.renumber(model, source.vocabulary)
    counted = approximation.count_source(source, same.topology)
    nats = cross_entropy(counted.counts, same)
    return {
        "symbols_per_sentence": counted.symbols,
        "nats_per_sentence": nats,
        "source_entropy": counted.entropy,
        "kl": max(nats - counted.entropy, 0.0),
        "perplexity": float(np.exp(nats / counted.symbols)),
    }


@group.command(
    "sample",
    examples=[
        "fedgram ngram sample model.arpa -n 3",
        "fedgram ngram sample model.arpa -n 3 --seed 1 --json",
    ],
)
@model_argument("model")
@click.option("-n", "--count", type=click.IntRange(1), default=10, show_default=True, help="Number of sentences.")
@seed_option
@click.option(
    "--max-length", type=click.IntRange(1), default=MAX_LENGTH, show_default=True, help="Maximum words per sentence."
)
@json_option
def sample_command(model: str, count: int, seed: int, max_length: int, as_json: bool) -> None:
    """Draw sentences from a model, one per line."""
    with steps() as step:
        full = renormalize(_read(step, model))
    words = full.vocabulary.words
    if as_json:
        sentences = sample_sentences(full, count, seed=seed, max_length=max_length)
        show({"sentences": [" ".join(words[i] for i in sentence) for sentence in sentences]}, as_json)
        return
    for first in range(0, count, _SAMPLE_BATCH):
        batch = min(_SAMPLE_BATCH, count - first)
        for sentence in sample_sentences(full, batch, seed=seed, first=first, max_length=max_length):
            click.echo(" ".join(words[i] for i in sentence))


@group.command(
    "info",
    examples=[
        "fedgram ngram info model.arpa",
        "fedgram ngram info model.arpa --json",
    ],
)
@model_argument("model")
@json_option
def info_command(model: str, as_json: bool) -> None:
    """Describe a model, and check that its probabilities sum to one."""
    with steps() as step:
        full = _read(step, model)
    error = normalization_error(full)
    t = full.topology
    show(
        {
            "model": model,
            "bytes": Path(model).stat().st_size,
            **size(full),
            "arcs": t.arcs,
            "vocabulary": len(full.vocabulary) - len(SPECIAL),
            "open_vocabulary": full.has_unknown,
            "normalized": error <= 1e-5,
            "normalization_error": error,
        },
        as_json,
    )


@group.command(
    "convert",
    examples=[
        "fedgram ngram convert model.arpa model.ngram",
        "fedgram ngram convert model.arpa G.fst --fst-style kaldi",
    ],
)
@model_argument("model")
@click.argument("output", callback=model_output)
@click.option(
    "--fst-style", type=click.Choice(STYLES), default="epsilon", show_default=True,
    help="Backoff arcs of .fst: OpenGrm's <epsilon>, <phi>, or #0 as in Kaldi's G.fst.",
)  # fmt: skip
@json_option
def convert_command(model: str, output: Path, fst_style: str, as_json: bool) -> None:
    """Write a model in another format, by suffix."""
    with steps() as step:
        full = _read(step, model)
        _write(step, full, output, fst_style=fst_style)
    symbols = {"symbols": str(symbols_path(output))} if str(output).endswith(".fst.txt") else {}
    show({"model": str(output), **symbols, **size(full)}, as_json)


group.add_command(capitalize)
