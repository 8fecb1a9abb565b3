"""`fedgram ngram`: the n-gram toolkit. A model's format follows from its suffix: .arpa .lm .fst .ngram."""

from pathlib import Path
from time import perf_counter
from typing import Any

import click
import numpy as np

from fedgram.automata import approximate as approximation
from fedgram.automata import merge as merging
from fedgram.automata.mixture import fit_weights, joint_vocabulary
from fedgram.automata.model import renormalize
from fedgram.automata.properties import normalization_error
from fedgram.automata.prune import prune_to_size, prune_to_threshold
from fedgram.automata.restrict import keep_words
from fedgram.automata.sampling import MAX_LENGTH, sample_sentences
from fedgram.cli.capitalize import command as capitalize
from fedgram.cli.commands import Group
from fedgram.cli.console import show, steps
from fedgram.cli.ngram_train import count_command, read, read_text, report, train_command, words_of, write
from fedgram.cli.parameters import (
    format_option,
    json_option,
    model_argument,
    models_input,
    piped_model_options,
    piped_model_output,
    seed_option,
)
from fedgram.cli.perplexity import command as perplexity
from fedgram.cli.sizes import size
from fedgram.formats.models import is_pipe
from fedgram.formats.openfst import STYLES, symbols_path
from fedgram.text.unigrams import read_unigrams
from fedgram.text.vocabulary import SPECIAL

_SAMPLE_BATCH = 10_000


@click.group(
    cls=Group,
    examples=[
        "fedgram ngram train corpus.txt -o model.arpa",
        "fedgram ngram perplexity model.arpa test.txt",
    ],
)
def group() -> None:
    """Train, prune, merge, approximate, score and convert n-gram models.

    A model's format follows from its suffix: .arpa or .lm, .fst (OpenFst), .ngram (exact, checksummed). Text is UTF-8,
    one sentence per line, words separated by blanks. .gz, .bz2 and .zst are unpacked. - is standard input or output,
    where a model's format is recognised or given by --format.
    """


@group.command(
    "prune",
    examples=[
        "fedgram ngram prune model.arpa --max-ngrams 20000 -o small.arpa",
        "fedgram ngram prune model.arpa --theta 1e-7 -o small.arpa --json",
    ],
)
@model_argument("model")
@piped_model_options
@click.option("--max-ngrams", type=click.IntRange(1), help="Keep at most this many n-grams, unigrams included.")
@click.option("--theta", type=click.FloatRange(0), help="Drop n-grams that raise perplexity by less than this share.")
@click.option("--split-ties", is_flag=True, help="Keep some of equally useful n-grams, to meet --max-ngrams exactly.")
@json_option
def prune_command(
    model: str, output: Path, format: str | None, max_ngrams: int | None, theta: float | None, split_ties: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Drop the n-grams that matter least (relative entropy)."""
    if (max_ngrams is None) == (theta is None):
        raise click.UsageError("give either --max-ngrams or --theta")
    if split_ties and theta is not None:
        raise click.UsageError("--split-ties goes with --max-ngrams")
    with steps() as step:
        full = renormalize(read(step, model))
        step.begin("Pruning")
        if theta is not None:
            pruned = prune_to_threshold(full, theta)
        else:
            pruned = prune_to_size(full, max_ngrams or 0, split_ties=split_ties)
        write(step, pruned, output, format=format)
    report(output, {"model": str(output), "ngrams_before": full.topology.arcs, **size(pruned)}, as_json)


@group.command(
    "merge",
    examples=[
        "fedgram ngram merge a.arpa b.arpa --weight 0.3 -o both.arpa",
        "fedgram ngram merge a.arpa b.arpa A_W.arpa --weights 0.5,0.3,0.2 --method bayes -o all.arpa",
        "fedgram ngram merge a.arpa b.arpa A_W.arpa --dev test.txt -o all.arpa",
    ],
)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, callback=models_input)
@piped_model_options
@click.option("--weight", type=click.FloatRange(0, 1), help="The weight of the first of two models.")
@click.option("--weights", metavar="A,B,…", help="The weights of all models, separated by commas; default: equal.")
@click.option("--dev", help="Text, one sentence per line, to which the weights are fitted (by EM).")
@click.option("--method", type=click.Choice(merging.METHODS), default="linear", show_default=True, help="How to mix.")
@json_option
def merge_command(
    models: tuple[str, ...], output: Path, format: str | None, weight: float | None, weights: str | None,
    dev: str | None, method: str, as_json: bool,
) -> None:  # fmt: skip
    """Interpolate two or more models.

    The weights are equal, given, or those that make a text most likely (--dev). With the method bayes, a model counts
    for more after histories that it finds likely, and the weights are priors.
    """
    if sum(given is not None for given in (weight, weights, dev)) > 1:
        raise click.UsageError("give one of --weight, --weights and --dev")
    shares = None if weights is None else _numbers(weights)
    fitted: dict[str, Any] = {}
    with steps() as step:
        parts = [read(step, model) for model in models]
        if dev is not None:
            text = read_text(step, (dev,), joint_vocabulary(parts))
            fit = fit_weights(parts, text, on_step=step.begin("Fitting the weights"))
            shares, fitted = list(fit.weights), {"em_steps": fit.steps, "dev_symbols": fit.symbols}
            fitted |= {"dev_perplexity_equal_weights": fit.perplexity_before, "dev_perplexity": fit.perplexity}
        step.begin("Merging")
        merged = merging.merge(*parts, weight=weight, weights=shares, method=method)
        write(step, merged, output, format=format)
    if shares is None:
        shares = [weight, 1.0 - weight] if weight is not None else [1.0 / len(models)] * len(models)
    report(output, {"model": str(output), "weights": shares, **fitted, **size(merged)}, as_json)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError("--weights are numbers separated by commas, such as 0.5,0.3,0.2") from None


@group.command(
    "replace-unigrams",
    examples=[
        "fedgram ngram replace-unigrams model.arpa U.unigrams -o other.arpa",
        "fedgram ngram replace-unigrams model.arpa words.tsv -o other.arpa --json",
    ],
)
@model_argument("model")
@click.argument("unigrams")
@piped_model_options
@json_option
def replace_unigrams_command(model: str, unigrams: str, output: Path, format: str | None, as_json: bool) -> None:
    """Replace the unigrams of a model by other word frequencies.

    Words that the model lacks are added. UNIGRAMS is a file of `fedgram federated unigrams collect`, or text with lines
    of word, tab, count.
    """
    with steps() as step:
        full, frequency = read(step, model), read_unigrams(unigrams)
        step.begin("Replacing unigrams")
        replaced = merging.replace_unigrams(full, frequency)
        write(step, replaced, output, format=format)
    added = len(replaced.vocabulary) - len(full.vocabulary)
    result = {"model": str(output), "unigrams_given": len(frequency), "words_added": added}
    report(output, {**result, **size(replaced)}, as_json)


@group.command(
    "approximate",
    examples=[
        "fedgram ngram approximate a.arpa b.arpa -o c.arpa",
        "fedgram ngram approximate a.arpa b.arpa --samples 1000 --seed 1 -o c.arpa --json",
    ],
)
@model_argument("source")
@model_argument("topology")
@piped_model_options
@click.option(
    "--method", type=click.Choice(approximation.METHODS), default="kl-min", show_default=True, help="How to fit."
)
@click.option(
    "--samples", type=click.IntRange(1), help="Sample this many sentences; by default, exact expected counts."
)
@seed_option
@json_option
def approximate_command(
    source: str, topology: str, output: Path, format: str | None, method: str, samples: int | None, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Fit one model's n-grams to another model's distribution.

    The result has the n-grams of TOPOLOGY and is as close to SOURCE as they allow. N-grams with words that SOURCE does
    not have are left out, and the other words of SOURCE are added as unigrams.
    """
    began = perf_counter()
    with steps() as step:
        model, target = read(step, source), read(step, topology)
        step.begin("Approximating")
        adopted = approximation.adopt_topology(
            target.topology, target.vocabulary, model.vocabulary, open_vocabulary=model.has_unknown
        )
        result = approximation.approximate(model, adopted, method=method, samples=samples, seed=seed)
        write(step, result.model, output, format=format)
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
    report(output, {"model": str(output), **size(result.model), **figures, "seconds": seconds}, as_json)


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
        full = renormalize(read(step, model))
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
        full = read(step, model)
    error = normalization_error(full)
    t = full.topology
    show(
        {
            "model": model,
            **({} if is_pipe(model) else {"bytes": Path(model).stat().st_size}),
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
        "fedgram ngram convert model.arpa small.lm.zst --limit-vocab words.txt",
    ],
)
@model_argument("model")
@click.argument("output", callback=piped_model_output)
@format_option
@click.option(
    "--fst-style", type=click.Choice(STYLES), default="epsilon", show_default=True,
    help="Backoff arcs of .fst: OpenGrm's <epsilon>, <phi>, or #0 as in Kaldi's G.fst.",
)  # fmt: skip
@json_option
@click.option("--limit-vocab", help="Words to keep, one per line; n-grams with other words are dropped.")
def convert_command(
    model: str, output: Path, format: str | None, fst_style: str, limit_vocab: str | None, as_json: bool
) -> None:
    """Write a model in another format, by suffix."""
    with steps() as step:
        full = read(step, model)
        full = keep_words(renormalize(full), words_of(limit_vocab)) if limit_vocab else full
        write(step, full, output, fst_style=fst_style, format=format)
    symbols = {"symbols": str(symbols_path(output))} if str(output).endswith(".fst.txt") else {}
    report(output, {"model": str(output), **symbols, **size(full)}, as_json)


group.add_command(capitalize)
group.add_command(perplexity)
group.add_command(train_command)
group.add_command(count_command)
