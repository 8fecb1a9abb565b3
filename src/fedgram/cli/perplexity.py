"""`fedgram ngram perplexity`: scores of text, as a whole, by sentence or by word."""

from collections.abc import Iterator
from typing import Any

import click
import numpy as np

from fedgram.automata import approximate as approximation
from fedgram.automata.counting import cross_entropy
from fedgram.automata.merge import renumber
from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import score, sentence_log_probs, word_log_probs
from fedgram.cli.commands import Command
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import bytes_of, json_option, model_argument
from fedgram.core.errors import FedgramError
from fedgram.formats.models import is_model, read_model
from fedgram.text.corpus import Corpus, corpus_of, open_text, read_corpus, whole_lines
from fedgram.text.vocabulary import UNK

_LN10 = float(np.log(10.0))


@click.command(
    "perplexity",
    cls=Command,
    examples=[
        "fedgram ngram perplexity model.arpa test.txt",
        "fedgram ngram perplexity model.arpa test.txt --per-sentence",
        "fedgram ngram perplexity model.arpa model.arpa --json",
    ],
)
@model_argument("model")
@click.argument("text")
@click.option("--per-sentence", is_flag=True, help="Also print each sentence's log10 probability, words and OOVs.")
@click.option("--per-word", is_flag=True, help="Also print each word's log10 probability and the n-gram that gave it.")
@json_option
def command(model: str, text: str, per_sentence: bool, per_word: bool, as_json: bool) -> None:
    """Score a text, or compute the expected score of another model's text.

    TEXT has one sentence per line. If it is a model, the score is the exact expectation over its sentences. Perplexity
    is per symbol, sentence ends included. Words outside the vocabulary (OOV) are scored as <unk>; by a model without
    <unk> they are counted and left out. The perplexity without OOVs leaves them out in either case.

    --per-sentence and --per-word print lines separated by tabs before the totals: the number of the sentence, then its
    log10 probability, words, OOVs and perplexity; or each word, its log10 probability and the length of the n-gram that
    gave it (None and 0 if none did).
    """
    with steps() as step:
        step.begin(f"Reading {model}")
        full = read_model(model)
        if is_model(text):
            if per_sentence or per_word:
                raise click.UsageError("--per-sentence and --per-word need a text, not a model")
            step.begin(f"Reading {text}")
            other = read_model(text)
            step.begin("Computing the expectation")
            show(_expected(full, other), as_json)
            return
        advance = step.begin("Reading text", bytes_of((text,)))
        lines = list(_lines(text)) if per_word else None
        corpus = corpus_of(lines, full.vocabulary) if lines else read_corpus([text], full.vocabulary, on_bytes=advance)
        step.begin("Scoring")
        result = score(full, corpus.sentences)
        rows = _by_word(full, corpus, lines) if lines else _by_sentence(full, corpus) if per_sentence else []
    totals: dict[str, Any] = {
        "sentences": result.sentences,
        "words": result.words,
        "oov": result.oov,
        "nats": result.nats,
        "nats_per_sentence": result.nats / result.sentences,
        "log10": -result.nats / _LN10,
        "perplexity": result.perplexity,
        "perplexity_without_oov": result.perplexity_without_oov,
    }
    if as_json:
        show({**totals, **({"by_word" if per_word else "by_sentence": rows} if rows else {})}, as_json)
        return
    for row in rows:
        click.echo("\t".join(f"{value:.6f}" if isinstance(value, float) else str(value) for value in row.values()))
    show(totals, as_json)


def _lines(text: str) -> Iterator[str]:
    """The sentences of a text, as they are."""
    with open_text(text) as file:
        for chunk in whole_lines(file, text):
            yield from (line for line in chunk.tobytes().decode().split("\n") if line.strip())


def _by_sentence(model: NGramModel, corpus: Corpus) -> list[dict[str, Any]]:
    log_p = sentence_log_probs(model, corpus.sentences)
    rows = []
    for number, (sentence, nats) in enumerate(zip(corpus.sentences, (-log_p).tolist(), strict=True), 1):
        oov = int(np.sum(np.asarray(sentence) == UNK))
        symbols = len(sentence) + 1 - (0 if model.has_unknown else oov)
        row = {"sentence": number, "log10": -nats / _LN10, "words": len(sentence), "oov": oov}
        rows.append({**row, "perplexity": float(np.exp(nats / symbols))})
    return rows


def _by_word(model: NGramModel, corpus: Corpus, lines: list[str]) -> list[dict[str, Any]]:
    """One row per word and sentence end; a word that the model cannot score has the log10 probability −inf."""
    log_p, length = word_log_probs(model, corpus.sentences)
    words = [(number, word) for number, line in enumerate(lines, 1) for word in [*line.split(), "</s>"]]
    return [
        {"sentence": number, "word": word, "log10": log10 if log10 > -np.inf else None, "ngram": n}
        for (number, word), log10, n in zip(words, (log_p / _LN10).tolist(), length.tolist(), strict=True)
    ]


def _expected(model: NGramModel, source: NGramModel) -> dict[str, Any]:
    if set(model.vocabulary.words) != set(source.vocabulary.words) or model.has_unknown != source.has_unknown:
        raise FedgramError("the two models have different vocabularies, so an expectation is not defined")
    same = renumber(model, source.vocabulary)
    counted = approximation.count_source(source, same.topology)
    nats = cross_entropy(counted.counts, same)
    return {
        "symbols_per_sentence": counted.symbols,
        "nats_per_sentence": nats,
        "source_entropy": counted.entropy,
        "kl": max(nats - counted.entropy, 0.0),
        "perplexity": float(np.exp(nats / counted.symbols)),
    }
