"""`fedgram network`: word pieces, presets, pretraining on a server's text, and scores."""

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from fedgram.cli.commands import Group
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import (
    json_option,
    output_option,
    pieces_option,
    preset_option,
    seed_option,
    split_option,
    unigrams_option,
    users_option,
    with_suffix,
)
from fedgram.cli.pieces import group as pieces_group
from fedgram.cli.settings import settings_options
from fedgram.core.compute import Compute
from fedgram.core.errors import InputError
from fedgram.text.corpus import read_corpus
from fedgram.text.population import open_population
from fedgram.text.unigrams import read_unigrams
from fedgram.training.options import PretrainingOptions


@click.group(
    cls=Group,
    examples=[
        "fedgram network presets",
        "fedgram network pretrain supplement.txt --unigrams U.unigrams --preset W_demo -o start.safetensors",
    ],
)
def group() -> None:
    """Train word pieces, pretrain networks on a server's text, and score networks.

    `fedgram federated train` trains networks on devices.
    """


group.add_command(pieces_group, "pieces")


@group.command("presets", examples=["fedgram network presets", "fedgram network presets --json"])
@json_option
def presets_command(as_json: bool) -> None:
    """List the networks of the paper's Table 2, with their sizes here and in the paper, in millions."""
    print_presets(as_json)


def print_presets(as_json: bool) -> None:
    """Print Table 2."""
    from fedgram.neural.new_network import presets

    found = presets()
    if as_json:
        show({"presets": found}, as_json)
        return
    click.echo("preset    cell  layers  groups   N_e   N_h   words    S_e (paper)   S_total (paper)")
    for p in found:
        paper = [f"({x:.2f})" if x else "     –" for x in (p["paper_embedding"], p["paper_total"])]
        click.echo(
            f"{p['preset']:<8}  {p['cell']:<4}  {p['layers']:>6}  {p['groups']:>6}  {p['embedding']:>4}  "
            f"{p['hidden']:>4}  {p['words']:>6,}  {p['embedding_parameters']:>5.2f} {paper[0]:>6}  "
            f"{p['parameters']:>8.2f} {paper[1]:>6}"
        )


@group.command(
    "pretrain",
    examples=[
        "fedgram network pretrain supplement.txt --unigrams U.unigrams --preset W_demo -o start.safetensors",
        "fedgram network pretrain supplement.txt --unigrams U.unigrams --preset W_demo --epochs 1 "
        "-o start.safetensors --json",
    ],
)
@click.argument("texts", metavar="TEXT...", nargs=-1, required=True)
@unigrams_option
@pieces_option
@preset_option
@settings_options(PretrainingOptions, "options")
@settings_options(Compute, "compute", without=["workers"])
@seed_option
@output_option("Network to write: .safetensors", with_suffix(".safetensors", what="a network"))
@json_option
def pretrain_command(
    texts: tuple[str, ...], unigrams: str, pieces: str | None, preset: str, options: PretrainingOptions,
    compute: Compute, seed: int, output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Train a network on text that a server may see, one sentence per line.

    Federated training can start from it: `fedgram federated train --start`. An interrupted training resumes from
    OUTPUT.checkpoint when the same command is given again.
    """
    from fedgram.neural.network import write_network
    from fedgram.neural.new_network import create_network
    from fedgram.training.central_training import pretrain

    began = perf_counter()
    with steps() as step:
        step.begin("Reading")
        content = Path(pieces).read_bytes() if pieces else None
        network = create_network(preset, read_unigrams(unigrams), pieces=content, seed=seed)
        corpus = read_corpus(texts)
        network = pretrain(
            network, corpus, options, seed=seed, compute=compute, checkpoint=Path(f"{output}.checkpoint"),
            begin=step.begin,
        )  # fmt: skip
        write_network(output, network)
    result: dict[str, Any] = {
        "network": str(output), "preset": preset, "parameters": network.shape.parameters(),
        "sentences": len(corpus.sentences), "seconds": round(perf_counter() - began, 3),
    }  # fmt: skip
    show(result, as_json)


@group.command(
    "score",
    examples=[
        "fedgram network score R_W.safetensors --users users.parquet",
        "fedgram network score R_W.safetensors --users users.parquet --max-users 10 --json",
    ],
)
@click.argument("network")
@users_option
@split_option("dev")
@click.option("--max-users", type=click.IntRange(1), help="Score only this many users.")
@settings_options(Compute, "compute", without=["workers"])
@json_option
def score_command(network: str, users: str, split: str, max_users: int | None, compute: Compute, as_json: bool) -> None:
    """Measure how well a network predicts the sentences of users.

    `sll` and `sll_e` are log-likelihoods per sentence in nats, over all words and over those of the vocabulary 𝒱; they
    can be compared between networks of words and of word pieces. `top1` and `top3` are for networks of words: shares of
    typed words in per cent, where words out of vocabulary count as wrong.
    """
    from fedgram.neural.network import as_tensors, read_network
    from fedgram.neural.scoring import score, text_to_score
    from fedgram.neural.torch_devices import choose_torch_device

    torch_device = choose_torch_device(compute.torch_device)
    with steps() as step:
        step.begin(f"Reading {network}")
        model = read_network(network)
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        clients = people.clients(split)[:max_users]
        if not len(clients):
            raise InputError(users, f"has no users in the {split} split", remedy="choose another --split")
        text = text_to_score(model.coding, people, clients)
        advance = step.begin("Scoring", len(text.sentences))
        pieces = model.coding.pieces is not None
        scores = score(model.shape, as_tensors(model.weights, torch_device), text, pieces=pieces, on_sentences=advance)
    shown = {name: value for name, value in asdict(scores).items() if as_json or value is not None}
    show({"users": len(clients), **shown}, as_json)
