"""`fedgram pretrain`: a network trained on text that a server may see, to start from."""

from pathlib import Path
from time import perf_counter

import click

from fedgram.cli.console import json_option, output_path, show, steps
from fedgram.core.arrays import Ragged
from fedgram.neural.new_network import coding_for, device_option, network_shape
from fedgram.text.corpus import read_corpus
from fedgram.text.vocabulary import SPECIAL


@click.command("pretrain")
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@click.option("--unigrams", required=True, help="Word frequencies, for the vocabulary: .unigrams, or word, tab, count.")
@click.option("--pieces", help="Word pieces, for a word-piece network.")
@click.option("--preset", default="W_30K", show_default=True, help="Network; see fedgram train --list-presets.")
@click.option("--epochs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--learning-rate", type=float, default=3e-3, show_default=True)
@click.option("--rows", type=click.IntRange(1), default=128, show_default=True, help="Rows of a batch.")
@device_option
@click.option("--seed", type=int, default=7, show_default=True)
@click.option("-o", "--output", required=True, callback=output_path, help="Network to write: .safetensors")
@json_option
def command(
    texts: tuple[str, ...], unigrams: str, pieces: str | None, preset: str, epochs: int, learning_rate: float,
    rows: int, device: str, seed: int, output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Train a network on a corpus, a sentence a line.

    Federated training may start from it: fedgram train --start. Training that is interrupted goes on from
    OUTPUT.checkpoint when the same command is given again.
    """
    import torch

    from fedgram.neural.model import initial_weights
    from fedgram.neural.network import Network, as_arrays, write_network
    from fedgram.neural.torch_devices import choose_device
    from fedgram.training.central_training import CentralTraining, train_centrally

    began, place = perf_counter(), choose_device(device)
    if place.type == "cpu":
        torch.set_num_threads(1)
    options = CentralTraining(epochs, learning_rate, rows, seed=seed)
    loss = [float("nan")]
    with steps() as step:
        step.begin("Reading")
        coding = coding_for(preset, unigrams, pieces)
        shape = network_shape(preset, coding)
        corpus = read_corpus(texts)
        codes = coding.codes(corpus.vocabulary.words[len(SPECIAL) :]).take(corpus.sentences.values - len(SPECIAL))
        sentences = Ragged(codes.values, codes.offsets[corpus.sentences.offsets])
        advance = step.begin("Training", 1000)
        done = [0]

        def on_batch(share: float, value: float) -> None:
            advance(int(1000 * share) - done[0])
            done[0], loss[0] = int(1000 * share), value
            step.describe(f"Training: loss {value:.3f}")

        start = {name: w.to(place) for name, w in initial_weights(shape, seed=seed).items()}
        weights = train_centrally(
            shape, start, sentences, options, on_batch=on_batch, checkpoint=Path(f"{output}.checkpoint")
        )
        about = {"preset": preset, "epochs": epochs, "central": True}
        write_network(output, Network(shape, as_arrays(weights), coding, about))
    show({"network": str(output), "preset": preset, "parameters": shape.parameters(), "sentences": len(sentences),
          "loss": loss[0], "seconds": round(perf_counter() - began, 3)}, as_json)  # fmt: skip
