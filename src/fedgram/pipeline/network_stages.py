"""The stages on networks: a warm start from the server's text, then FederatedAveraging on devices (§7.1).

A network that was trained elsewhere, on a machine with GPUs or by a real federation, takes the place of both: it is
checked against the vocabulary of the run, and taken over.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgram.core.compute import Compute
from fedgram.core.errors import InputError
from fedgram.federated.rounds import Checkpointing
from fedgram.neural.model import PRESETS
from fedgram.neural.network import Network, read_network, word_coding, write_network
from fedgram.neural.new_network import create_network
from fedgram.pipeline.judges import ByUsers, Judges
from fedgram.pipeline.model_names import architecture_file
from fedgram.pipeline.participants import DevicesOf, simulated
from fedgram.pipeline.text_stages import ledger_entries, write_json
from fedgram.pipeline.workspace import Work
from fedgram.privacy.ledger import Ledger
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.corpus import read_corpus
from fedgram.text.population import Users, open_population
from fedgram.text.unigrams import read_unigrams
from fedgram.text.wordpieces import train_pieces
from fedgram.training.central_training import pretrain as pretrain_network
from fedgram.training.noise_plan import with_noise
from fedgram.training.options import FedAvgOptions, PretrainingOptions
from fedgram.training.train_federated import train_federated


def pretrain(
    work: Work, preset: str, known_words: int, options: PretrainingOptions, seed: int, *, name: str, compute: Compute
) -> None:
    """The network that federated training starts from: trained on the supplement, or random.

    SLL^e of all networks is over the same 𝒱: as many words as the network of words has, `known_words`.
    """
    pieces = work.read("pieces.model").read_bytes() if "pieces.model" in work.inputs else None
    network = create_network(
        preset, read_unigrams(work.read("U.unigrams")), pieces=pieces, seed=seed, any_size=True,
        known_words=known_words,
    )  # fmt: skip
    network = pretrain_network(
        network, read_corpus([work.read("supplement.txt")]), options, seed=seed, compute=compute,
        checkpoint=work.write("checkpoint"), begin=work.begin,
    )  # fmt: skip
    write_network(work.write(f"{name}_start.safetensors"), network)


def train_network(
    work: Work, options: FedAvgOptions, privacy: PrivacyOptions, seed: int, *, name: str, compute: Compute,
    devices: DevicesOf = simulated, ledger: Ledger | None = None, judges: Judges | None = None,
) -> None:  # fmt: skip
    """Federated averaging from the warm start; a killed stage resumes from its last round."""
    users, ledger, judges = devices(work), ledger or Ledger(), judges or ByUsers()
    population = len(users) if isinstance(users, Users) else users.count
    start = read_network(work.read(f"{name}_start.safetensors"))
    network = train_federated(
        start, users, with_noise(options, privacy, population),
        dev=judges.dev_scorer(work, start, users, options.dev_users), seed=seed, compute=compute,
        checkpoints=Checkpointing(work.write("checkpoints")), ledger=ledger, name=f"training of {name}",
        begin=work.begin,
    )  # fmt: skip
    write_network(work.write(f"{name}.safetensors"), network)
    told = {**_about(network), **network.history, **ledger_entries(ledger), "measured_on": judges.whom}
    write_json(work.write(f"{name}.json"), told)


def architecture(
    work: Work, preset: str, rounds: int, known_words: int, start: PretrainingOptions, training: FedAvgOptions,
    seed: int, *, compute: Compute,
) -> None:  # fmt: skip
    """The curve of another network of word pieces (Figure 4), trained as R_P is, with word pieces of its own.

    A vocabulary that is too small for the network's number of pieces gives it as many as there can be.
    """
    frequency, dev = read_unigrams(work.read("U.unigrams")), open_population(work.read("users.population")).dev
    pieces, trained = _pieces_for(preset, frequency, work.write("pieces.model")), work.write("network.safetensors")
    if not trained.exists():
        warm = pretrain_network(
            create_network(preset, frequency, pieces=pieces, seed=seed, any_size=True, known_words=known_words),
            read_corpus([work.read("supplement.txt")]), start, seed=seed, compute=compute,
            checkpoint=work.write("checkpoint"), begin=work.begin,
        )  # fmt: skip
        write_network(trained, warm)
    result = train_federated(
        read_network(trained), simulated(work),
        replace(training, rounds=rounds, evaluate_every=max(1, rounds // 10)), dev=dev, seed=seed, compute=compute,
        checkpoints=Checkpointing(work.write("checkpoints")), begin=work.begin,
    )  # fmt: skip
    write_json(work.write(architecture_file(preset)), {**_about(result), **result.history})


def _pieces_for(preset: str, frequency: Mapping[str, float], path: Path) -> bytes:
    """As many word pieces as a preset has, or as many as these words allow."""
    if not path.exists():
        train_pieces(frequency, size=PRESETS[preset].shape.words, path=path, or_fewer=True)
    return path.read_bytes()


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
