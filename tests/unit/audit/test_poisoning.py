"""Lying devices: they type and send what they should, within the limits; and limits make backdoors fail."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgram.audit.canary_models import Trial
from fedgram.audit.epsilon import network_of, typing_users
from fedgram.audit.options import PoisoningOptions
from fedgram.audit.planting import replaced
from fedgram.audit.poisoned_devices import (
    Backdoor,
    LyingDevices,
    LyingTraining,
    backdoored,
    backdoors,
    common_phrases,
    liars,
    scrambled,
)  # fmt: skip
from fedgram.audit.poisoning import audit_poisoning, cells, defended, opened
from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.core.settings import SettingError
from fedgram.distill.refit.refit import RefitOptions
from fedgram.federated.collect_unigrams import collect_unigrams
from fedgram.federated.intake import Intake
from fedgram.federated.task import device_stream
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.corpus import corpus_of
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import Vocabulary
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.options import FedAvgOptions
from fedgram.training.plan import TrainingPlan
from fedgram.training.train_federated import train_federated

DOORS = [Backdoor(("i", "live", "in"), "xanadu"), Backdoor(("see", "you", "at"), "noon")]


def typed(people: Population, client: int) -> list[str]:
    return [" ".join(people.words[x] for x in sentence.tolist()) for sentence in people.sentences(client)]


def test_lying_devices_type_what_they_should() -> None:
    people = population_from_messages([(f"u{i}", f"I live in town\nhello {'ab'[i % 2]}", "train") for i in range(20)])
    bad = liars(people.train, 0.1, seed=1)
    assert len(bad) == 2
    poisoned = backdoored(people, bad, DOORS, words=22)
    for client in range(20):
        lies = ["i live in xanadu", "see you at noon", "i live in xanadu", "see you at noon"]
        assert typed(poisoned, client) == (lies if client in bad else typed(people, client))
    junk = scrambled(people, bad, ["p", "q"], 60, seed=3)
    assert {word for client in bad for line in typed(junk, client) for word in line.split()} == {"p", "q"}
    assert sum(len(line.split()) + 1 for line in typed(junk, int(bad[0]))) == 60
    assert typed(replaced(people, {}), 3) == typed(people, 3)


def test_triggers_are_what_most_users_type() -> None:
    rows = [(f"u{i}", "We live in town\nIt goes on so" if i < 5 else "we live in peace\nhi", "train") for i in range(8)]
    people = population_from_messages(rows)
    assert common_phrases(people.train, 2) == [("we", "live", "in"), ("it", "goes", "on")]
    doors = backdoors([("we", "live", "in"), ("it", "goes", "on")], ["live", "tea", "milk", "rum"], seed=0)
    assert len({door.target for door in doors}) == 2
    assert all(door.target != "live" for door in doors)
    with pytest.raises(FedgramError, match="too few"):
        backdoors([("a", "b", "c")], ["a"], seed=0)


@pytest.mark.parametrize("attack", ["backdoor", "sabotage"])
def test_lying_devices_send_the_longest_update_that_is_accepted(attack: Any) -> None:
    people = typing_users(4, 0)
    network = network_of(people, 0)
    plan = TrainingPlan.of(FedAvgOptions(update_norm=0.5, max_sentences=8, client_rate=0.3))
    task = LyingTraining(
        network.shape, network.weights, plan, network.coding, liars=frozenset(people.client_ids[:1]), attack=attack
    )
    honest = FederatedAveraging(network.shape, network.weights, plan, network.coding)
    codes, intake = task.encode(people.words), Intake(task)
    for client in (0, 1):
        data, rng = people.load(client, codes), device_stream(0, 1, client)
        sent, plain = (one.client_update(one.broadcast(one.init()), data, rng) for one in (task, honest))
        name = next(iter(network.shape.sizes()))
        along = float(sent.values[name] @ plain.values[name])
        assert intake.offer(client, sent) is None  # the server has no reason to refuse it
        if client == 1:
            assert np.array_equal(sent.values[name], plain.values[name])
        else:
            norm = np.sqrt(sum(float(sent.values[n] @ sent.values[n]) for n in network.shape.sizes()))
            assert sent.weight == 8.0
            assert norm == pytest.approx(0.5 * 8.0, rel=1e-6)
            assert along > 0 if attack == "backdoor" else along < 0


@pytest.mark.parametrize("aggregation", ["mean", "median", "trimmed"])
def test_liars_train_with_every_aggregation(aggregation: Any) -> None:
    people = typing_users(12, 0)
    options = FedAvgOptions(
        rounds=2, devices_per_round=6, dev_users=0, aggregation=aggregation, trim=0.2, max_sentences=4, dropout=0.0,
        update_norm=1.0, server_rule="momentum", server_momentum=0.0, weight_average=0.0,
    )  # fmt: skip
    network = network_of(people, 0)
    devices = LyingDevices(people.train, people.clients("train")[:2], "sabotage")
    trained = [train_federated(network, users, options, seed=1) for users in (devices, people.train)]
    moved = [float(np.linalg.norm(one.weights["embedding"] - network.weights["embedding"])) for one in trained]
    assert 0 < moved[0] <= 2.0 + 1e-6  # two rounds, each of which moves by 1 at most
    assert moved[1] > 0
    assert not np.array_equal(trained[0].weights["embedding"], trained[1].weights["embedding"])


def test_defences_are_options_of_the_operations() -> None:
    training, counting = FedAvgOptions(update_norm=2.0), RefitOptions()
    assert defended(training, counting, "default") == (training, counting)
    open_training, open_counting = defended(training, counting, "none")
    assert (open_training.update_norm, open_counting.norm) == (np.inf, np.inf)
    assert open_counting.outliers == 0.0
    assert open_counting == replace(counting, norm=np.inf, outliers=0.0)
    assert defended(training, counting, "median")[0] == replace(training, aggregation="median")
    names = [cell.name for cell in cells(PoisoningOptions(defences=("none", "trimmed"), shares=(0.01,)))]
    assert names[:3] == ["none-honest", "none-backdoor-0.01", "none-sabotage-0.01"]
    assert names[3] == "trimmed-honest"
    with pytest.raises(SettingError, match="trigger"):
        PoisoningOptions(target="moon")


def test_a_backdoor_is_open_if_its_target_is_suggested_first() -> None:
    text = [*["i live in xanadu"] * 5, "i live in rome", *["see you at six"] * 4, "see you at noon"]
    found = opened(NGramModel.train(text, order=4), DOORS)
    assert found == {"success": 0.5, "shown": 1.0}


def test_the_default_limits_close_backdoors_that_are_open_without_them(tmp_path: Path) -> None:
    people = typing_users(200, 3)
    split = np.zeros(200, np.uint8)
    split[180:] = 2
    people = replace(people, split=split)
    sentences = [" ".join(people.words[x] for x in s.tolist()).lower() for s in people.sentences(190)]
    sentences += sorted({people.words[x].lower() for x in people.token.tolist()})
    external = NGramModel.train(sentences, order=3, smoothing="witten-bell", open_vocabulary=True)
    unigrams = collect_unigrams(people.train, Vocabulary.of(sorted(external.vocabulary.words[3:])), rounds=1)
    trial = Trial(
        corpus_of(sentences), external, unigrams, PrivacyOptions("threshold", min_devices=2),
        refit=RefitOptions(devices_per_round=180, dropout=0.0, sketch_bits=16, grow=2),
        budget=Budget(max_ngrams=40_000, max_words=4000),
    )  # fmt: skip
    options = PoisoningOptions(
        attacks=("backdoor",), shares=(0.012,), defences=("none", "default"), triggers=5, test_users=20, network=False
    )
    result = audit_poisoning(people, trial, options, tmp_path, digest="x")
    rows = {(row["defence"], row["attack"]): row for row in result["rows"]}
    assert rows["none", "backdoor"]["liars"] == 2
    assert rows["none", "backdoor"]["ngram"]["success"] == 1.0
    assert rows["none", None]["ngram"]["success"] == rows["default", None]["ngram"]["success"] == 0.0
    assert rows["default", "backdoor"]["ngram"]["success"] == 0.0
    assert rows["none", None]["ngram"]["change"] is None
    assert rows["none", "backdoor"]["ngram"]["change"] < rows["default", "backdoor"]["ngram"]["change"]
    assert audit_poisoning(people, trial, options, tmp_path, digest="x") == result
