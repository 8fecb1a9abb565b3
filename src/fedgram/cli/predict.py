"""`fedgram predict`: the next words, as a keyboard's suggestion strip would show them."""

import json

import click
import numpy as np

from fedgram.cli.console import json_option
from fedgram.core.errors import FedgramError
from fedgram.fgram.reader import MAX_PREDICTIONS, open_model
from fedgram.text.normalize import normalize


@click.command("predict")
@click.argument("model")
@click.argument("context", default="")
@click.option("-k", "--count", type=click.IntRange(1, MAX_PREDICTIONS), default=3, show_default=True, help="Words.")
@click.option("--prefix", default="", help="Only words that begin so; capitals, accents and apostrophes do not matter.")
@json_option
def command(model: str, context: str, count: int, prefix: str, as_json: bool) -> None:
    """Print the words that MODEL expects behind CONTEXT, the most probable first.

    MODEL is an lm.fgram. CONTEXT is text as it was typed; only its last sentence counts.
    """
    if len(context) > 100_000:
        raise FedgramError("the context has more than 100,000 characters")
    words = last_sentence(context)
    found = open_model(model).predict(words, count, prefix)
    if as_json:
        rows = [{"word": p.word, "probability": float(np.exp(p.log_p)), "log_p": p.log_p} for p in found]
        click.echo(json.dumps({"context": words, "prefix": prefix, "predictions": rows}, ensure_ascii=False))
        return
    for p in found:
        click.echo(f"{p.word}\t{np.exp(p.log_p):.6f}")


def last_sentence(text: str) -> list[str]:
    """The words of the sentence that is being typed."""
    sentences = normalize(text)
    ended = not text.strip() or text.rstrip()[-1] in ".!?…" or text.endswith("\n")
    return [] if ended or not sentences else sentences[-1]
