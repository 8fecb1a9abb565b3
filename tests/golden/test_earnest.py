"""The numbers of OpenGrm's tutorial on The Importance of Being Earnest, through the command line.

Numbers of models must agree in every printed digit. Expectations over all sentences of a model are exact here, but
OpenGrm truncates them (its queue stops at a tolerance). So these agree up to the truncation, and are checked to ten
digits against a dense linear system.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.dict_model import DictModel, expected_visits

from fedgram.automata.model import renormalize
from fedgram.formats.models import read_model

Command = Callable[..., Any]
OPENGRM_TRUNCATION = 4e-5


@dataclass
class Play:
    folder: Path
    train: Path
    test: Path
    vocabulary: Path
    everything: Path

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture
def play(earnest: list[str], tmp_path: Path) -> Play:
    """The first 850 lines and the last 838; the 998 most frequent words, ties in reverse alphabetical order."""
    assert len(earnest) == 1688
    count = Counter(word for line in earnest[:850] for word in line.split())
    words = sorted(sorted(count, reverse=True), key=lambda word: -count[word])[:998]
    texts = {"train.txt": earnest[:850], "test.txt": earnest[850:], "vocab.txt": words, "all.txt": earnest}
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return Play(tmp_path, *(tmp_path / name for name in texts))


@pytest.fixture
def katz(play: Play, fedgram: Command) -> Path:
    model = play / "katz.arpa"
    fedgram("ngram", "train", play.train, "-o", model, "--order", 2, "--smoothing", "katz", "--vocab", play.vocabulary)
    return model


@pytest.fixture
def pruned(play: Play, katz: Path, fedgram: Command) -> Path:
    model = play / "pruned.arpa"
    fedgram("ngram", "prune", katz, "-o", model, "--max-ngrams", 2000)
    return model


def test_katz_bigram_on_test_and_train(play: Play, katz: Path, fedgram: Command) -> None:
    on_test = fedgram("ngram", "perplexity", katz, play.test, "--json")
    assert f"{on_test['perplexity']:.4f}" == "73.4146"
    assert f"{on_test['nats'] / on_test['sentences']:.4f}" == "49.9232"
    assert on_test["oov"] == 1363
    on_train = fedgram("ngram", "perplexity", katz, play.train, "--json")
    assert f"{on_train['perplexity']:.2f}" == "26.19"
    assert on_train["oov"] == 568


def test_pruned_to_2000(play: Play, pruned: Path, fedgram: Command) -> None:
    assert f"{fedgram('ngram', 'perplexity', pruned, play.test, '--json')['perplexity']:.4f}" == "84.1474"


def test_witten_bell_of_order_five(play: Play, fedgram: Command) -> None:
    model = play / "wb.arpa"
    fedgram("ngram", "train", play.everything, "-o", model, "--order", 5, "--smoothing", "witten-bell")
    assert fedgram("ngram", "info", model, "--json")["ngrams_by_order"] == [2305, 10319, 14796, 15218, 14170]
    result = fedgram("ngram", "perplexity", model, play.everything, "--json")
    assert f"{result['log10']:.2f}" == "-7104.39"
    assert f"{result['perplexity']:.4f}" == "2.3054"


@pytest.mark.parametrize(("method", "published", "digits"), [("kl-min", 83.1204, 4), ("summed", 86.9356, 3)])
def test_approximation_on_the_pruned_topology(
    play: Play, katz: Path, pruned: Path, fedgram: Command, method: str, published: float, digits: int
) -> None:
    model = play / "fitted.arpa"
    fedgram("ngram", "approximate", katz, pruned, "-o", model, "--method", method)
    result = fedgram("ngram", "perplexity", model, play.test, "--json")["perplexity"]
    assert result == pytest.approx(published, abs=0.6 * 10**-digits)


def dense_expectation(path: Path) -> tuple[float, float]:
    """Entropy and number of symbols of a sentence, from a dense linear system over all states."""
    model = renormalize(read_model(path))
    visits, reference = expected_visits(model), DictModel(model)
    entropy = 0.0
    for history, count in visits.items():
        p = reference.distribution(history)
        entropy -= count * float(p[p > 0] @ np.log(p[p > 0]))
    return entropy, sum(visits.values())


def test_self_approximation(play: Play, katz: Path, fedgram: Command) -> None:
    result = fedgram("ngram", "approximate", katz, katz, "-o", play / "self.ngram", "--json")
    assert abs(result["cross_entropy"] - result["source_entropy"]) < 1e-9
    assert result["cross_entropy"] == pytest.approx(55.93216, rel=OPENGRM_TRUNCATION)
    assert result["source_entropy"] == pytest.approx(dense_expectation(katz)[0], rel=1e-10)


@pytest.mark.parametrize(("name", "published"), [("katz", 72.518), ("pruned", 84.8603)])
def test_self_perplexity(name: str, published: float, request: pytest.FixtureRequest, fedgram: Command) -> None:
    model = request.getfixturevalue(name)
    result = fedgram("ngram", "perplexity", model, model, "--json")
    assert result["perplexity"] == pytest.approx(published, rel=OPENGRM_TRUNCATION)
    entropy, symbols = dense_expectation(model)
    assert result["perplexity"] == pytest.approx(np.exp(entropy / symbols), rel=1e-10)
