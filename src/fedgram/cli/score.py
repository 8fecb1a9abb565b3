"""`fedgram score`: how well a network predicts the sentences of some users."""

from dataclasses import asdict

import click

from fedgram.cli.console import json_option, show, steps
from fedgram.neural.new_network import device_option
from fedgram.text.population import SPLITS, open_population


@click.command("score")
@click.argument("network")
@click.option("--users", required=True, help="Population: .parquet or .arrow")
@click.option("--split", type=click.Choice(SPLITS), default="dev", show_default=True)
@click.option("--max-users", type=click.IntRange(1), help="Score only so many users.")
@device_option
@json_option
def command(network: str, users: str, split: str, max_users: int | None, device: str, as_json: bool) -> None:
    """Score the sentences of users with a network.

    `sll` and `sll_e` are log-likelihoods a sentence in nats, all words and those of the vocabulary 𝒱 alone, and can be
    compared between networks of words and of word pieces. `top1` and `top3` are for networks of words: over typed
    words in per cent, where those out of vocabulary count as wrong.
    """
    import torch

    from fedgram.core.errors import InputError
    from fedgram.neural.network import as_tensors, read_network
    from fedgram.neural.scoring import score, text_to_score
    from fedgram.neural.torch_devices import choose_device

    place = choose_device(device)
    if place.type == "cpu":
        torch.set_num_threads(1)
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
        scores = score(model.shape, as_tensors(model.weights, place), text, pieces=pieces, on_sentences=advance)
    shown = {name: value for name, value in asdict(scores).items() if as_json or value is not None}
    show({"users": len(clients), **shown}, as_json)
