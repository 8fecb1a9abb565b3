"""Planted secrets: they are where they should be, a model that knows them shows them, and others do not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgram.audit.canaries import audit_canaries, secret_words
from fedgram.audit.canary_models import Trial
from fedgram.audit.exposure import by_cell, expose, exposures, extracted, sequence_log_probs
from fedgram.audit.ngram_devices import devices_by_ngram
from fedgram.audit.options import CanaryOptions
from fedgram.audit.planting import Canary, draw_canaries, draw_sequences, plant
from fedgram.audit.tables import summary
from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.automata.scoring import step_on, weighted_arcs
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.random import stream
from fedgram.core.settings import SettingError
from fedgram.distill.refit.asked_ngrams import AskedNGrams
from fedgram.distill.refit.clipped_ngrams import COUNT, DEVICES, ClippedNGrams
from fedgram.distill.refit.count_release import ExactCounts, Released
from fedgram.distill.refit.refit import RefitOptions, refit
from fedgram.evaluate.models import as_predictor
from fedgram.federated.collect_unigrams import collect_unigrams
from fedgram.federated.counting import Sums
from fedgram.federated.task import Update
from fedgram.federated.validation import UpdateBounds
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.corpus import corpus_of
from fedgram.text.population import Population, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import Vocabulary

POOL = [f"w{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]


def random_text(count: int, seed: int = 0) -> list[str]:
    rows = draw_sequences(POOL, 5, count, np.random.default_rng(seed))
    return [" ".join(POOL[x] for x in row) for row in rows.tolist()]


def secrets_of(people: Population, client: int) -> list[tuple[str, ...]]:
    return [tuple(people.words[x] for x in sentence.tolist()) for sentence in people.sentences(client)]


def test_secrets_are_planted_exactly() -> None:
    people = population_from_messages([(f"u{i}", f"hello from {'abcdefgh'[i % 8]}", None) for i in range(60)])
    canaries = [Canary(("my", "pin", "seven"), 3, 4), Canary(("never", "typed"), 0, 1), Canary(("hello", "pin"), 1, 1)]
    planted = plant(people, canaries, seed=1)
    assert len(planted) == len(people)
    holders = dict.fromkeys(canaries, 0)
    for client in range(len(people)):
        before, after = secrets_of(people, client), secrets_of(planted, client)
        assert after[: len(before)] == before
        for canary in canaries:
            found = after[len(before) :].count(canary.words)
            assert found in (0, canary.repeats)
            assert not found or client in people.clients("train")
            holders[canary] += found > 0
    assert [holders[canary] for canary in canaries] == [3, 0, 1]
    with pytest.raises(FedgramError, match="cannot hold"):
        plant(people, [Canary(("a",), 1000, 1)], seed=1)


def test_the_grid_has_so_many_different_secrets_per_cell() -> None:
    found = draw_canaries(POOL, length=4, holders=(0, 1, 5), repeats=(1, 10), copies=3, seed=2)
    assert len(found) == len({canary.words for canary in found}) == 3 * (2 * 2 + 1)
    assert {(c.holders, c.repeats) for c in found} == {(0, 1), (1, 1), (1, 10), (5, 1), (5, 10)}
    assert "w" not in repr(found[0]).replace("words", "")  # no text of a secret in logs
    with pytest.raises(FedgramError, match="too few"):
        draw_canaries(["a", "b"], length=1, holders=(1,), repeats=(1,), copies=9, seed=0)


def test_exposure_is_the_rank_in_bits() -> None:
    references = np.arange(1.0, 1024.0)
    assert exposures(np.array([2000.0, 1022.5, 512.5, 0.0]), references).tolist() == [10.0, 9.0, 1.0, 0.0]
    assert exposures(np.array([1023.0]), references)[0] == 9.0  # a tie counts against it


def test_scores_are_the_probabilities_of_the_model() -> None:
    model = NGramModel.train(random_text(400), order=3)
    rows = draw_sequences(POOL, 4, 20, np.random.default_rng(5))
    found = sequence_log_probs(as_predictor(model, cased=False), rows, POOL)
    for row, log_p in zip(rows.tolist(), found.tolist(), strict=True):
        state, total = model.topology.start, 0.0
        for x in row:
            log_weight, state = step_on(weighted_arcs(model), state, model.vocabulary[POOL[x]])
            total += log_weight
        assert log_p == pytest.approx(total, abs=1e-9)
    cased = NGramModel.train(["New york", "new york", "new shoes"], order=2)
    row, words = np.array([[0], [1]], np.int32), ["new", "New"]
    apart = np.exp(sequence_log_probs(as_predictor(cased, cased=True), row, words))
    both = np.exp(sequence_log_probs(as_predictor(cased, cased=False), row, words))
    assert both == pytest.approx([apart.sum()] * 2)  # capitals do not matter


def test_a_model_that_has_seen_a_secret_shows_it_and_another_does_not() -> None:
    secret = Canary(tuple(random_text(1, seed=77)[0].split()), 1, 50)
    controls = draw_canaries(POOL, length=5, holders=(0,), repeats=(1,), copies=150, seed=3)
    references = draw_sequences(POOL, 5, 4000, stream(1, "references"))
    text = random_text(500)
    for texts, knows in ((text, False), ([*text, *[" ".join(secret.words)] * 50], True)):
        predictor = as_predictor(NGramModel.train(texts, order=4), cased=False)
        found = expose(predictor, [secret, *controls], references, POOL, known=2, width=5)
        assert found[0].extracted == knows
        assert (found[0].exposure > 11) == knows
        control = [one.exposure for one in found[1:]]
        assert np.mean(control) == pytest.approx(1 / np.log(2), abs=0.4)  # uniform ranks have log₂ e bits
        assert not any(one.extracted for one in found[1:])
    cells = by_cell(found)
    assert [(c["holders"], c["canaries"], c["extracted"]) for c in cells] == [(0, 150, 0), (1, 1, 1)]
    assert summary(cells)["extracted_of_one_device"] == 1


def test_the_search_finds_the_most_probable_sequence() -> None:
    """The first step alone would take `b`; the best sequence begins with `c`."""
    model = NGramModel.train([*["a b x"] * 3, *["a b y"] * 3, *["a b z"] * 3, *["a c d"] * 6], order=3)
    predictor = as_predictor(model, cased=False)
    assert extracted(predictor, ["a"], 3, 5) == ("a", "c", "d")
    assert extracted(predictor, ["a"], 3, 1)[:2] == ("a", "b")
    with pytest.raises(FedgramError):
        extracted(predictor, ["a", "b"], 2, 5)


@pytest.fixture(scope="module")
def trial() -> tuple[Population, Trial]:
    source = SyntheticPopulation("en_us", seed=3)
    people = population_from_messages((name, text, "train") for name, text, _ in source.rows(80))
    sentences = [" ".join(words).lower() for words in source.clean_sentences(800)]
    external = NGramModel.train(sentences, order=3, smoothing="witten-bell", open_vocabulary=True)
    whitelist = Vocabulary.of(sorted({word for line in sentences for word in line.split()}))
    unigrams = collect_unigrams(people.train, whitelist, rounds=1, devices_per_round=60)
    made = Trial(
        corpus_of(sentences), external, unigrams, PrivacyOptions("threshold", epsilon=8.0, delta=1e-5, noise_seed=1),
        refit=RefitOptions(devices_per_round=80, dropout=0.0), budget=Budget(max_ngrams=40_000, max_words=4000),
    )  # fmt: skip
    return people, made


def test_protections_hide_what_they_say(trial: tuple[Population, Trial], tmp_path: Path) -> None:
    people, made = trial
    options = CanaryOptions(holders=(0, 1, 4, 20), repeats=(20,), copies=5, words=300, references=2000, network=False)
    result = audit_canaries(people, made, options, tmp_path, digest="x")
    models = {model["model"]: {cell["holders"]: cell for cell in model["cells"]} for model in result["models"]}
    assert list(models) == [f"refit {p}{end}" for p in ("none", "threshold", "dp") for end in ("", ", packed")]
    for packed in ("", ", packed"):
        none, threshold, dp = (models[f"refit {p}{packed}"] for p in ("none", "threshold", "dp"))
        assert none[20]["extracted"] == none[4]["extracted"] == 5  # the audit finds what is there
        assert none[20]["mean_exposure"] > 10.9
        assert threshold[20]["extracted"] >= 3
        assert threshold[4]["extracted"] == threshold[1]["extracted"] == 0  # fewer than ten devices
        assert sum(cell["extracted"] for cell in dp.values()) == 0
        assert max(cell["mean_exposure"] for cell in dp.values()) < 4
        assert all(model[0]["mean_exposure"] < 4 for model in (none, threshold, dp))
    again = audit_canaries(people, made, options, tmp_path, digest="x")
    assert again == result
    with pytest.raises(InputError, match="another audit"):
        audit_canaries(people, made, options, tmp_path, digest="y")


def test_settings_are_checked(trial: tuple[Population, Trial]) -> None:
    with pytest.raises(SettingError, match="known"):
        CanaryOptions(length=3, known=3)
    words = secret_words(trial[1], 50)
    assert len(words) == 50
    assert {word.lower() for word in words} == set(words)


def _below_threshold(people: Population, made: Trial) -> int:
    """How many n-grams of a refit with a threshold of 10 are on 1 to 9 devices, and not public."""
    model = refit(made.external, people.train, made.refit, privacy="threshold", public=made.external, seed=1)
    return int(devices_by_ngram(model, people.train, made.public).below(10).sum())


def test_a_threshold_that_is_off_by_one_is_caught(
    trial: tuple[Population, Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _below_threshold(*trial) == 0
    release = ExactCounts.release

    def off_by_one(self: ExactCounts, number: int, ngrams: AskedNGrams, sums: Sums) -> Released:
        return release(replace(self, min_devices=self.min_devices - 1), number, ngrams, sums)

    monkeypatch.setattr(ExactCounts, "release", off_by_one)
    assert _below_threshold(*trial) > 0


def test_marks_counted_by_occurrence_are_caught(
    trial: tuple[Population, Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    update = ClippedNGrams.client_update

    def by_occurrence(self: ClippedNGrams, *given: Any) -> Update:
        sent = update(self, *given)
        times = sent.array(COUNT) / self.clipping.weights_of(self.ngrams)
        return replace(sent, values={**sent.values, DEVICES: times[sent.index[DEVICES]]})

    monkeypatch.setattr(ClippedNGrams, "client_update", by_occurrence)
    with pytest.raises(FedgramError):  # a server refuses marks above 1,
        _below_threshold(*trial)
    monkeypatch.setattr(UpdateBounds, "judge", lambda *_: None)  # unless its check is broken too
    monkeypatch.setattr(UpdateBounds, "judge_sum", lambda *_: None)
    assert _below_threshold(*trial) > 0
