"""Networks through `fedgram distill` and `fedgram workflow`: words, word pieces, and several ranks."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.tiny_networks import network_over

from fedgram.automata.training import NGramOptions, train
from fedgram.core.arrays import Ragged
from fedgram.formats.models import read_model, write_model
from fedgram.neural.network import write_network
from fedgram.text.corpus import Corpus
from fedgram.text.vocabulary import Vocabulary
from fedgram.text.wordpieces import piece_vocabulary, train_pieces

WORDS = ["new", "york", "hello", "there", "we", "were", "here", "then", "they", "nor"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks of words and of word pieces with random weights, pieces, and a cased model."""
    folder = tmp_path_factory.mktemp("networks")
    write_network(folder / "W.safetensors", network_over(Vocabulary.of(WORDS), 1))
    pieces = train_pieces(dict.fromkeys(WORDS, 30.0), size=20, path=folder / "pieces.model")
    content = (folder / "pieces.model").read_bytes()
    network = network_over(piece_vocabulary(pieces), 2, ends=1.0, pieces=content)
    write_network(folder / "P.safetensors", network)
    words = Vocabulary.of([*WORDS, "New", "York", "We"])
    rng = np.random.default_rng(0)
    text = Ragged.from_rows([rng.integers(3, len(words), 5).tolist() for _ in range(80)])
    write_model(train(Corpus(text, words), NGramOptions(order=3)), folder / "A_W.arpa")
    lower = Vocabulary.of(WORDS)
    text = Ragged.from_rows([rng.integers(3, len(lower), 5).tolist() for _ in range(80)])
    write_model(train(Corpus(text, lower), NGramOptions(order=3)), folder / "A_u.arpa")
    return folder


def whole(path: Path) -> bool:
    model = read_model(path)
    return bool(np.isfinite(model.log_weight).all())


def test_networks_of_words_and_pieces_are_distilled(fedgram: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    few = ("--samples", 400, "--torch-device", "cpu", "--json")
    told = fedgram(
        "distill", "model", files / "W.safetensors", "--topology", files / "A_u.arpa", *few, "-o", tmp_path / "w.arpa"
    )
    assert 0.0 <= told["kl_after"] < told["kl_before"]
    cased = ("--topology", files / "A_W.arpa", "--casing", files / "A_W.arpa")
    fedgram("distill", "model", files / "W.safetensors", *cased, *few, "-o", tmp_path / "c.arpa")
    pieces = ("--pieces", files / "pieces.model", "--topology", files / "A_u.arpa")
    fedgram("distill", "model", files / "P.safetensors", *pieces, *few, "-o", tmp_path / "p.arpa")
    fedgram("distill", "model", files / "P.safetensors", *pieces[2:], *few, "-o", tmp_path / "own.arpa")
    assert (tmp_path / "own.arpa").read_bytes() == (tmp_path / "p.arpa").read_bytes()
    assert all(whole(tmp_path / f"{name}.arpa") for name in "wcp")


def test_the_workflow_runs_on_networks(fedgram: Callable[..., Any], files: Path, tmp_path: Path) -> None:
    told = fedgram(
        "distill", "workflow", "--words", files / "W.safetensors", "--pieces-model", files / "P.safetensors",
        "--pieces", files / "pieces.model", "--external", files / "A_W.arpa", "--samples", 300, "--infer-samples", 300,
        "--order", 3, "-o", tmp_path / "out", "--json",
    )  # fmt: skip
    assert set(told["models"]) == {f"A_{by}_{letter}" for by in "WP" for letter in "eimr"}


@pytest.mark.parametrize("cased", [False, True])
def test_ranks_share_the_samples_with_the_same_result(files: Path, tmp_path: Path, cased: bool) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def start(rank: int, size: int) -> subprocess.Popen[bytes]:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
        script = (
            "import fedgram.distill.network_source as n, fedgram.distill.sample_approx as s;"
            "n.NetworkSource.batch, n.NetworkSource.shard = 50, 100;"
            "from fedgram.cli.main import main; main()"
        )
        casing = ["--casing", str(files / "A_W.arpa")] if cased else []
        command = [
            sys.executable, "-c", script, "distill", str(files / "W.safetensors"), "--topology", "infer", *casing,
            "--order", "3", "--samples", "450", "--infer-samples", "330", "--torch-device", "cpu", "--workers", "1",
            "--counts", str(tmp_path / f"counts{size}"), "-o", str(tmp_path / f"{size}.arpa"),
        ]  # fmt: skip
        return subprocess.Popen(command, env=os.environ | where | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)

    for size in (1, 2):
        ranks = [start(rank, size) for rank in range(size)]
        for process in ranks:
            _, problem = process.communicate(timeout=200)
            assert process.returncode == 0, problem.decode()
    assert (tmp_path / "1.arpa").read_bytes() == (tmp_path / "2.arpa").read_bytes()
