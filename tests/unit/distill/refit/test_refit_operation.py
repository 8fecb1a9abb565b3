"""The refit as an operation: a cased model of other text learns what devices write, and keeps its capitals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reference.ngram_counting import ngrams

from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.automata.properties import model_faults
from fedgram.core.checkpoint import OtherWorkError
from fedgram.distill.refit.refit import public_ngrams, refit
from fedgram.evaluate.models import in_memory
from fedgram.fgram.pack import pack
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.normalize import uncase
from fedgram.text.population import population_from_messages

SERVER = ["She lives in New York", "She saw a new film in London", "The new house is in York", "In London it rains"]
USERS = ["she saw the new house", "the new house is in new york", "she lives in the new house"]


def test_it_learns_the_users_text_and_keeps_the_capitals() -> None:
    rows = [(f"u{i}", USERS[i % 3], "train") for i in range(9)]
    model = NGramModel.train(SERVER, order=3, smoothing="witten-bell")
    result = refit(
        model, population_from_messages(rows).train, devices_per_round=9, dropout=0.0, sketch_bits=8,
        privacy=PrivacyOptions(min_devices=3), public=model, budget=Budget(max_ngrams=120),
    )  # fmt: skip
    assert model_faults(result) == []
    assert result.topology.arcs <= 120
    assert [counted["reports"] for counted in result.counted.passes] == [
        9
    ] * 4  # in a fifth pass nothing is left to ask
    words = result.counted.topology.first_arc[1]
    assert result.counted.ngrams[:words].sum() == sum(len(text.split()) + 1 for _, text, _ in rows)
    lower = NGramModel.train([uncase(text) for text in SERVER], order=3, smoothing="witten-bell")
    for text in USERS:
        assert result.uncased.score(text) > lower.score(text) + 1.0
    assert {"York", "London"} <= set(result.vocabulary.words)
    again = refit(
        model, population_from_messages(rows).train, devices_per_round=9, dropout=0.0, sketch_bits=8,
        privacy=PrivacyOptions(min_devices=3), public=model, budget=Budget(max_ngrams=120),
    )  # fmt: skip
    assert np.array_equal(again.log_weight, result.log_weight)


SECRET = "my code is nine four two"


def spelled(model: NGramModel) -> list[str]:
    return [uncase(" ".join(model.vocabulary.decode(gram))) for gram in ngrams(model.topology)]


def shown_of(model: NGramModel, text: str) -> set[str]:
    """The n-grams of two or more words of a model that are part of a text."""
    return {gram for gram in spelled(model) if " " in gram and f" {gram} " in f" {text} "}


@pytest.mark.parametrize(
    ("holders", "network_devices", "is_public"),
    [(0, 3, False), (2, 3, False), (3, 3, False), (1, 3, True), (0, 2, False), (1, 2, False), (2, 2, False)],
)
def test_a_secret_that_a_network_learned_stays_only_if_enough_devices_have_it(
    holders: int, network_devices: int, is_public: bool, tmp_path: Path
) -> None:
    """The model to refit has the secret, as one distilled from a network that memorised it."""
    rows = [(f"u{i}", USERS[i % 3] + f"\n{SECRET}" * (20 if i < holders else 0), "train") for i in range(9)]
    server = [*SERVER, "My two dogs saw nine films"]
    model = NGramModel.train([*server, *[SECRET] * 30], order=4, smoothing="witten-bell")
    public = NGramModel.train([*server, *([SECRET] if is_public else [])], order=4, smoothing="witten-bell")
    result = refit(
        model, population_from_messages(rows).train, devices_per_round=9, dropout=0.0, sketch_bits=8, public=public,
        privacy=PrivacyOptions(min_devices=4, network_devices=network_devices),
    )  # fmt: skip
    pack(result, tmp_path / "lm.fgram")
    for shown in (result, result.uncased, in_memory(str(tmp_path / "lm.fgram"))):
        assert isinstance(shown, NGramModel)
        stays = holders >= network_devices or is_public
        assert ("code is nine four" in shown_of(shown, SECRET)) == stays
        assert stays or not shown_of(shown, SECRET)
    assert model_faults(result) == model_faults(result.uncased) == []


def test_public_ngrams_are_found_whatever_their_capitals() -> None:
    model = NGramModel.train(["she saw new york", "she saw the sea"], order=3)
    public = NGramModel.train(["She saw New Orleans"], order=3)
    is_public = public_ngrams(model, public).tolist()
    found = {name for name, stays in zip(spelled(model), is_public, strict=True) if stays}
    assert {"she saw", "<s> she saw", "saw new", "she saw new"} <= found
    assert not {"new york", "saw the", "the sea"} & found
    assert not public_ngrams(model, None).any()


def test_unknown_words_are_public_only_if_both_models_have_the_same_words() -> None:
    """Else `<unk>` stands for other words in each, and nobody can tell whether what it hides is public."""

    def trained(*words: str) -> NGramModel:
        return NGramModel.train([f"{words[0]} veterans day"], order=3, vocab=words, smoothing="witten-bell")

    model, same, other = trained("for", "day"), trained("For", "day"), trained("for", "day", "easter")
    for public, unknown in ((same, {"for <unk>", "for <unk> day", "<unk> day", "<s> for <unk>"}), (other, set())):
        shown = zip(spelled(model), public_ngrams(model, public).tolist(), strict=True)
        found = {name for name, is_public in shown if is_public}
        assert {name for name in found if "<unk>" in name and name != "<unk>"} >= unknown
        assert unknown or not any("<unk>" in name for name in found if " " in name)
        assert "<s> for" in found


def test_counts_of_other_users_are_refused(tmp_path: Path) -> None:
    people, others = (
        population_from_messages([(f"u{i}", USERS[(i + shift) % 3], "train") for i in range(6)]) for shift in (0, 1)
    )
    model = NGramModel.train(SERVER, order=3, smoothing="witten-bell")
    options: dict[str, Any] = {"devices_per_round": 6, "dropout": 0.0, "sketch_bits": 8, "counts": tmp_path / "counts"}
    refit(model, people.train, public=model, **options)
    with pytest.raises(OtherWorkError, match="users"):
        refit(model, others.train, public=model, **options)


def test_the_more_visits_of_the_prior_the_closer_is_the_result_to_it() -> None:
    people = population_from_messages([(f"u{i}", USERS[i % 3], "train") for i in range(9)])
    model = NGramModel.train([uncase(text) for text in SERVER], order=2, smoothing="witten-bell")
    score = {
        prior: refit(
            model, people.train, devices_per_round=9, dropout=0.0, pairs=False, grow=0, privacy="none", prior=prior
        ).score(USERS[0])
        for prior in (0.1, 1.0, 1e9)
    }  # fmt: skip
    assert score[0.1] > score[1.0] > score[1e9] == pytest.approx(model.score(USERS[0]), abs=1e-6)


def test_counts_of_other_public_text_are_refused(tmp_path: Path) -> None:
    people = population_from_messages([(f"u{i}", USERS[i % 3], "train") for i in range(6)])
    model = NGramModel.train(SERVER, order=3, smoothing="witten-bell")
    options: dict[str, Any] = {"devices_per_round": 6, "dropout": 0.0, "sketch_bits": 8, "counts": tmp_path / "counts"}
    refit(model, people.train, public=model, **options)
    with pytest.raises(OtherWorkError, match="public"):
        refit(model, people.train, **options)
