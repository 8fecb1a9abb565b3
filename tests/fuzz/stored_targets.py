"""Networks, configurations, and what is stored and sent, as targets."""

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.fuzz.mutations import mutate_artefact, mutate_bytes, mutate_json, mutate_text
from tests.fuzz.registry import target

from fedgram.core.errors import FedgramError
from fedgram.core.toml_config import read_config, to_toml
from fedgram.text.vocabulary import Vocabulary


def piece_files(folder: Path) -> list[bytes]:
    from fedgram.text.wordpieces import train_pieces

    words = {f"{a}{b}{c}": 2.0 for a in "abcde" for b in "aeiou" for c in "lmnrst"}
    train_pieces(words, size=60, path=folder / "seed.model")
    return [(folder / "seed.model").read_bytes()]


@target(".model", mutate_bytes, piece_files, share=0.3, needs="sentencepiece")
def pieces(path: Path) -> None:
    from fedgram.text.wordpieces import load_pieces

    load_pieces(path).encode_words(["hello", "world"])


def network_files(folder: Path) -> list[bytes]:
    from tests.reference.tiny_networks import tiny_network

    from fedgram.neural.network import write_network

    write_network(folder / "seed.safetensors", tiny_network(1, 12))
    return [(folder / "seed.safetensors").read_bytes()]


@target(".safetensors", mutate_artefact, network_files, share=0.3, needs="torch")
def network(path: Path) -> None:
    from fedgram.neural.network import read_network

    read_network(path).coding.codes(["hello"])


# What is configured, stored and sent.


def run_configurations(_: Path) -> list[bytes]:
    from fedgram.pipeline.config import RunConfig

    return [to_toml(RunConfig()).encode()]


@target(".toml", mutate_text, run_configurations, share=0.3)
def run_toml(path: Path) -> None:
    from fedgram.pipeline.config import RunConfig

    read_config(path, RunConfig)


def federation_configurations(_: Path) -> list[bytes]:
    from fedgram.deployment.folder import FederationConfig

    return [to_toml(FederationConfig()).encode()]


@target(".toml", mutate_text, federation_configurations)
def federation_toml(path: Path) -> None:
    from fedgram.deployment.folder import FederationConfig

    read_config(path, FederationConfig)


def store_files(folder: Path) -> list[bytes]:
    from fedgram.deployment.store import write_store

    write_store(folder / "seed.sqlite", 1, ["hello there", "see you", "Hello é ok"] * 9)
    return [(folder / "seed.sqlite").read_bytes()]


@target(".sqlite", mutate_bytes, store_files, share=0.3)
def store(path: Path) -> None:
    from fedgram.deployment.store import open_store

    found = open_store(path)
    _ = found.messages, found.population()


def unigram_task() -> Any:
    from fedgram.federated.unigram_collection import UnigramTask

    return UnigramTask(Vocabulary.of(["a", "b", "c"]), clip=1.0)


def jobs(_: Path) -> list[bytes]:
    from fedgram.federated.job import Job

    return [Job(unigram_task(), 7, 3, 2).content]


@target(".bin", mutate_artefact, jobs)
def job(path: Path) -> None:
    from fedgram.federated.job import job_from_bytes

    found = job_from_bytes(path.read_bytes())
    _ = found.question, found.digest


def updates(_: Path) -> list[bytes]:
    from fedgram.federated.task import Update
    from fedgram.federated.wire import update_to_bytes

    return [update_to_bytes(Update.dense({"words": np.arange(6.0)}, 1.0))]


@target(".bin", mutate_artefact, updates)
def update(path: Path) -> None:
    from fedgram.federated.intake import Intake

    Intake(unigram_task()).offer(1, path.read_bytes())


def checkpoints(folder: Path) -> list[bytes]:
    from fedgram.core.checkpoint import write_checkpoint
    from fedgram.core.storage import Record

    write_checkpoint(folder / "seed.checkpoint", 3, Record({"a": 1}, {"x": np.arange(4.0)}), {"seed": 1})
    return [(folder / "seed.checkpoint").read_bytes()]


@target(".checkpoint", mutate_artefact, checkpoints)
def checkpoint(path: Path) -> None:
    from fedgram.core.checkpoint import read_checkpoint

    read_checkpoint(path, {"seed": 1})


def admitted_lists(_: Path) -> list[bytes]:
    from fedgram.federated.secure.admitted_keys import AdmittedKeys
    from fedgram.federated.secure.identity import PUBLIC_BYTES

    return [AdmittedKeys(3, tuple(sorted(b"\x02" + bytes([i]) * (PUBLIC_BYTES - 1) for i in range(5)))).to_bytes()]


@target(".keys", mutate_bytes, admitted_lists)
def admitted_keys(path: Path) -> None:
    from fedgram.federated.secure.admitted_keys import admitted_from_bytes

    admitted_from_bytes(path.read_bytes())


def secure_messages(_: Path) -> list[bytes]:
    from fedgram.federated.secure import messages as m
    from fedgram.federated.secure.identity import SIGNATURE_BYTES
    from fedgram.federated.secure.shamir import SHARE_BYTES

    context, rows = b"c" * 32, {i: bytes([i]) * SIGNATURE_BYTES for i in (1, 3, 4)}
    return [
        m.confirmed(context, rows), m.confirmation(context, rows[1]), m.survivors(context, [1, 3], 8, rows),
        m.masked(context, rows[1], memoryview(b"x" * 40)),
        m.unmasking(context, dict.fromkeys((1, 2), b"s" * SHARE_BYTES)),
        m.shares(context, b"h" * 32, dict.fromkeys((1, 2), b"s" * m.SEALED_BYTES)),
    ]  # fmt: skip


def mutate_message(r: Random, d: bytes) -> bytes:
    """Change a message of a secure round, and mostly give it a right checksum."""
    changed = mutate_bytes(r, d[:-32])
    return changed + (hashlib.sha256(changed).digest() if r.random() < 0.9 else d[-32:])


@target(".bin", mutate_message, secure_messages)
def secure_message(path: Path) -> None:
    from fedgram.federated.secure import messages as m

    data, context = path.read_bytes(), b"c" * 32
    for read in (
        m.read_confirmed, m.read_confirmation, m.read_unmasking, m.read_shares, m.read_neighbours,
        lambda d, c: m.read_survivors(d, c, 8), lambda d, c: m.read_delivery(d, c, 8),
        lambda d, c: m.read_masked(d, c, 40),
    ):  # fmt: skip
        try:
            read(data, context)
        except FedgramError:
            continue


def ledgers(folder: Path) -> list[bytes]:
    from fedgram.privacy.accounting import Gaussian
    from fedgram.privacy.ledger import Ledger

    ledger = Ledger.open(folder / "seed.json")
    ledger.plan("words", Gaussian(2.0), rounds=3)
    ledger.spend("words", 2)
    return [(folder / "seed.json").read_bytes()]


@target(".json", mutate_json, ledgers, share=0.5, needs="dp_accounting")
def ledger(path: Path) -> None:
    from fedgram.privacy.ledger import Ledger

    _ = Ledger.open(path).entries
