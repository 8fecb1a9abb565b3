"""The stages on networks: a warm start from the server's text, then FederatedAveraging on devices (§7.1).

A network that was trained elsewhere, on a machine with GPUs or by a real federation, takes the place of both: it is
checked against the vocabulary of the run, and taken over.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError, InputError
from fedgram.neural.model import PRESETS, initial_weights
from fedgram.neural.network import (
    Coding,
    Network,
    as_arrays,
    piece_coding,
    read_network,
    word_coding,
    write_network,
)  # fmt: skip
from fedgram.pipeline.config import PretrainingConfig, TrainingConfig
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.training import TrainingJob, train_job
from fedgram.pipeline.workspace import Work
from fedgram.text.corpus import read_corpus
from fedgram.text.unigrams import read_unigrams
from fedgram.text.vocabulary import SPECIAL
from fedgram.training.central_training import CentralTraining, train_centrally
from fedgram.training.fedavg_task import TrainingPlan
from fedgram.training.federated_training import Moment, RunResult

_KNOWN_WORDS = 30_000  # of 𝒱, for SLL^e of word-piece networks


def check_preset(preset: str, *, pieces: bool) -> None:
    """Refuse the name of a network that there is not, or of the other kind."""
    names = [name for name, known in PRESETS.items() if known.pieces == pieces]
    if preset not in names:
        kind = "word pieces" if pieces else "words"
        raise FedgramError(f"{preset!r} is no network of {kind}; choose one of {', '.join(names)}")


def _coding(work: Work, preset: str) -> Coding:
    frequency = read_unigrams(work.read("U.unigrams"))
    if "pieces.model" not in work.inputs:
        return word_coding(frequency, PRESETS[preset].shape.words)
    return piece_coding(work.read("pieces.model").read_bytes(), frequency, _KNOWN_WORDS)


def pretrain(work: Work, preset: str, config: PretrainingConfig, seed: int, *, name: str, device: str) -> None:
    """The network that federated training starts from: trained on the supplement, or random."""
    if device == "cpu":
        torch.set_num_threads(1)
    coding = _coding(work, preset)
    shape = replace(PRESETS[preset].shape, words=len(coding.vocabulary))
    weights = {key: w.to(device) for key, w in initial_weights(shape, seed=seed).items()}
    if config.epochs:
        corpus = read_corpus([work.read("supplement.txt")])
        codes = coding.codes(corpus.vocabulary.words[len(SPECIAL) :]).take(corpus.sentences.values - len(SPECIAL))
        sentences = Ragged(codes.values, codes.offsets[corpus.sentences.offsets])
        advance, done = work.begin(f"Warm start of {name}", 1000), [0]

        def on_batch(share: float, _: float) -> None:
            advance(int(1000 * share) - done[0])
            done[0] = int(1000 * share)

        options = CentralTraining(config.epochs, config.learning_rate, config.rows, seed=seed)
        weights = train_centrally(
            shape, weights, sentences, options, on_batch=on_batch, checkpoint=work.write("checkpoint")
        )
    about = {"preset": preset, "epochs": config.epochs, "central": True}
    write_network(work.write(f"{name}_start.safetensors"), Network(shape, as_arrays(weights), coding, about))


def train_network(work: Work, config: TrainingConfig, seed: int, *, name: str, device: str, workers: int) -> None:
    """FederatedAveraging from the warm start; a killed stage goes on from its last round."""
    start, done = work.read(f"{name}_start.safetensors"), [0]
    advance = work.begin(f"Training {name} on devices", config.rounds)

    def on_round(moment: Moment) -> None:
        advance(moment.round - done[0])
        done[0] = moment.round

    job = TrainingJob(work.read("users.arrow"), start, work.write("checkpoints"), config, seed, device)
    result = train_job(job, workers, on_round=on_round)
    write_trained(work, name, read_network(start), result, job.plan())


def write_trained(work: Work, name: str, network: Network, result: RunResult, plan: TrainingPlan) -> None:
    """The network after its training, and what the report says of it."""
    story = json.loads(json.dumps(dict(result.story), sort_keys=True))  # in one order, resumed or not
    about = {**network.about, "central": False, "rounds": len(story["loss"]), "best_round": story["best_round"],
             "plan": json.loads(json.dumps(plan.fields()))}  # fmt: skip
    write_network(work.write(f"{name}.safetensors"), replace(network, weights=result.weights, about=about))
    write_json(work.write(f"{name}.json"), {**_about(network), **story})


def take_network(work: Work, *, name: str) -> None:
    """A network from elsewhere, if it speaks the run's vocabulary."""
    path = work.read("network")
    network = read_network(path)
    if "pieces.model" in work.inputs:
        if network.coding.pieces != work.read("pieces.model").read_bytes():
            remedy = "name the ones it was trained with: pieces.model"
            raise InputError(path, "is not a network of the run's word pieces", remedy=remedy)
    else:
        _check_words(network, read_unigrams(work.read("U.unigrams")), path)
    write_network(work.write(f"{name}.safetensors"), network)
    rounds = network.about.get("rounds")
    write_json(work.write(f"{name}.json"), {**_about(network), "given": True, "rounds": rounds, "dev": []})


def _check_words(network: Network, frequency: Mapping[str, float], path: Path) -> None:
    if network.coding.pieces is not None:
        raise InputError(path, "is a network of word pieces, not of words", remedy="name it as pieces.network")
    wanted = word_coding(frequency, network.shape.words).vocabulary
    if wanted.digest != network.coding.vocabulary.digest:
        strangers = len(set(network.coding.vocabulary.words) - set(wanted.words))
        differ = f"{strangers:,} of its words are not" if strangers else "its words are in another order than"
        remedy = "name the ones it was trained with: unigrams.counts"
        raise InputError(path, f"{differ} among the run's most frequent unigrams", remedy=remedy)


def _about(network: Network) -> dict[str, Any]:
    return {"preset": network.about.get("preset"), "parameters": network.shape.parameters()}
