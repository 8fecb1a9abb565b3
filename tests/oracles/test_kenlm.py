"""KenLM reads our ARPA files and gives every sentence our score."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.random_models import random_sentences, vocabulary

from fedgram.automata.build import count_ngrams
from fedgram.automata.prune import prune_to_size
from fedgram.automata.scoring import sentence_log_probs
from fedgram.automata.smoothing import METHODS, smooth
from fedgram.formats.arpa import read_arpa, write_arpa

kenlm = pytest.importorskip("kenlm", reason="needs a compiler to install")


@pytest.mark.parametrize(("order", "method"), [(2, "katz"), (3, "modified-kneser-ney"), (5, "witten-bell")])
def test_scores_are_kenlms(
    order: int, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], fedgram: Callable[..., Any]
) -> None:
    assert method in METHODS
    rng = np.random.default_rng(order)
    words = vocabulary(200)
    text = random_sentences(rng, words=200, sentences=3000, length=12)
    model = smooth(count_ngrams(text, words, order=order, open_vocabulary=True), method)
    model = prune_to_size(model, model.topology.arcs // 2)
    write_arpa(model, tmp_path / "model.arpa")
    theirs = kenlm.Model(str(tmp_path / "model.arpa"))
    sentences = random_sentences(rng, words=220, sentences=10_000, length=20)
    sentences.values[sentences.values >= len(words)] = 0
    lines = [" ".join(words.decode(row.tolist())) for row in sentences]
    ours = sentence_log_probs(model, sentences) / np.log(10.0)
    assert np.abs(ours - [theirs.score(line) for line in lines]).max() < 1e-4
    (tmp_path / "test.txt").write_text("\n".join(lines) + "\n")
    scored = fedgram("ngram", "perplexity", tmp_path / "model.arpa", tmp_path / "test.txt", "--per-sentence", "--json")
    by_command = np.array([row["log10"] for row in scored["by_sentence"]])
    filled = [line for line in lines if line]
    assert len(by_command) == len(filled)
    assert np.abs(by_command - [theirs.score(line) for line in filled]).max() < 1e-4
    again = sentence_log_probs(read_arpa(tmp_path / "model.arpa"), sentences) / np.log(10.0)
    assert np.abs(ours - again).max() < 1e-5
    capsys.readouterr()
