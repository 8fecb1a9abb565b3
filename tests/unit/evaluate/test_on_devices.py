"""Evaluation on devices: the figures of `fedgram evaluate`, in buckets, masked, bounded, and with noise."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgram.automata.model import NGramModel
from fedgram.core.arrays import LongArray, Ragged
from fedgram.core.checkpoint import OtherWorkError
from fedgram.core.errors import FedgramError
from fedgram.core.storage import Record
from fedgram.evaluate.comparison import Comparison, evaluate, shared_words
from fedgram.evaluate.evaluation import evaluate_model
from fedgram.evaluate.jackknife import level, relative_change
from fedgram.evaluate.models import as_predictor, in_memory, vocabulary_of
from fedgram.evaluate.on_devices import DeviceEvaluationOptions, cohort_size, evaluate_on_devices, evaluation_noise
from fedgram.evaluate.scoring_task import AMOUNT, COUNT, ScoringTask, typed_population
from fedgram.evaluate.sent_model import SentModel
from fedgram.evaluate.summary import PERCENT
from fedgram.federated.cohort import CohortOptions, RoundPlan
from fedgram.federated.devices import SimulatedDevices
from fedgram.federated.fleet import Fleet, RoundCall, RoundSum
from fedgram.federated.intake import Intake
from fedgram.federated.job import Job, job_from_bytes
from fedgram.federated.mechanism import NoisySums
from fedgram.federated.rounds import RunOptions
from fedgram.federated.secure.settings import SecureSettings
from fedgram.federated.simulation import SimulatedFleet
from fedgram.federated.task import Total, Update, device_stream
from fedgram.federated.validation import Reason, RefusedUpdateError
from fedgram.files import pack, save
from fedgram.neural.network import Network, as_tensors
from fedgram.neural.new_network import create_network
from fedgram.neural.scoring import score, text_to_score
from fedgram.privacy.accounting import Gaussian
from fedgram.privacy.gaussian import gaussian_epsilon
from fedgram.privacy.ledger import Budget, BudgetError, Ledger
from fedgram.privacy.noise import SeededRandomness
from fedgram.text.population import ClientDataset, Users, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.wordpieces import train_pieces

SOURCE = SyntheticPopulation("en_us", seed=8)
PEOPLE = population_from_messages((user, text, "test") for user, text, _ in SOURCE.rows(60))
TEXT = [" ".join(words) for words in SOURCE.clean_sentences(1500)]
NOTHING = Record()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One model of every kind: in memory, as files, packed, and a network."""
    folder = tmp_path_factory.mktemp("models")
    trained, small = NGramModel.train(TEXT, order=3), NGramModel.train(TEXT[:300], order=2)
    save(small, folder / "small.arpa")
    frequency = {word: 1.0 for line in TEXT for word in line.lower().split()}
    network = Network.create("W_demo", dict(list(frequency.items())[:700]), seed=1)
    packed = pack(trained, folder / "lm.fgram")
    return {"memory": trained, "file": folder / "small.arpa", "packed": packed, "network": network}


def printed(found: Comparison) -> list[list[str]]:
    """The levels as a table shows them, without intervals."""
    return [[cell.split(" ± ")[0] for cell in row] for row in found.rows()]


class Recorded(SimulatedDevices):
    """Simulated devices that note who took part in each round."""

    def __init__(self, users: Users) -> None:
        super().__init__(users)
        self.rounds: list[LongArray] = []

    @contextmanager
    def working_on(self, job: Job[Any], cohort: CohortOptions, rounds: int | None) -> Iterator[Fleet]:
        with super().working_on(job, cohort, rounds) as fleet:
            collect = fleet.collect

            def noted(call: RoundCall) -> RoundSum:
                found = collect(call)
                self.rounds.append(found.participants)
                return found

            fleet.collect = noted  # type: ignore[method-assign]
            yield fleet


@pytest.mark.parametrize("cased", [False, True])
def test_devices_give_the_figures_of_an_evaluation_in_one_place(models: dict[str, Any], cased: bool) -> None:
    here = evaluate(models, PEOPLE.test, baseline=models["file"], cased=cased)
    there = evaluate_on_devices(models, PEOPLE.test, baseline=models["file"], cased=cased)
    assert printed(here) == printed(there)
    for name in ("users", "words", "shared_words", "outside", "cased", "baseline"):
        assert getattr(here, name) == getattr(there, name)
    for name in here.models:
        if name != "network":  # whose last bits depend on how sentences are batched
            for measure in here.models[name].keys() - {"change"}:
                assert here.models[name][measure]["value"] == there.models[name][measure]["value"]
    assert 15 <= there.buckets <= 25
    assert (
        there.title == f"60 devices in {there.buckets} buckets, {there.words:,} typed words, {'un' * (not cased)}cased"
    )


def test_buckets_give_the_intervals_of_the_same_groups_by_hand(models: dict[str, Any]) -> None:
    chosen = {"file": models["file"], "packed": models["packed"]}
    devices = Recorded(PEOPLE.test)
    there = evaluate_on_devices(chosen, devices, baseline=models["file"], buckets=8)
    assert len(devices.rounds) == there.buckets
    assert np.array_equal(np.sort(np.concatenate(devices.rounds)), PEOPLE.test.clients)
    bucket = np.empty(len(PEOPLE), np.int32)
    for number, members in enumerate(devices.rounds):
        bucket[members] = number
    loaded = {name: in_memory(model) for name, model in chosen.items()}
    shared = shared_words(map(vocabulary_of, loaded.values()), cased=False)
    old, new = (
        evaluate_model(as_predictor(model, cased=False), PEOPLE, PEOPLE.test.clients, shared=shared).measures
        for model in loaded.values()
    )
    for name in old:
        scale = 100.0 if name in PERCENT else 1.0
        by_hand = level(new[name], bucket).interval
        assert by_hand is not None
        assert there.models["packed"][name]["ci95"] == pytest.approx([scale * end for end in by_hand], rel=1e-9)
        change = relative_change(new[name], old[name], bucket)
        assert there.models["packed"]["change"][name]["ci95"] == pytest.approx(change.interval, rel=1e-6, abs=1e-9)


def test_masked_rounds_give_the_same(models: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"devices_per_round": 15, "baseline": models["file"], "dropout": 0.0}
    plain, masked = (
        evaluate_on_devices(models, PEOPLE.test, **settings, secure_aggregation=secure) for secure in (False, True)
    )
    assert printed(plain) == printed(masked)
    assert plain.models["packed"] == masked.models["packed"]
    assert (plain.users, masked.users, masked.buckets) == (60, 60, 4)


class Masked(Recorded):
    """Devices that are summed five together at least."""

    def run_options(self, cohort: CohortOptions, rounds: int | None) -> RunOptions:
        return replace(super().run_options(cohort, rounds), masking=SecureSettings(min_devices=5))


def test_no_bucket_is_smaller_than_the_masking_minimum(models: dict[str, Any]) -> None:
    """A round too small to be masked is not asked for, and cohorts are chosen so that nobody is left out."""
    with pytest.raises(FedgramError, match="too small"):
        evaluate_on_devices(models["packed"], Masked(PEOPLE.test), devices_per_round=4)
    some = Masked(PEOPLE.test.first(17))
    found = evaluate_on_devices(models["packed"], some, dropout=0.0)
    assert sorted(len(members) for members in some.rounds) == [5, 6, 6]
    assert found.users == 17
    left_out = evaluate_on_devices(models["packed"], Masked(PEOPLE.test.first(17)), dropout=0.0, devices_per_round=7)
    assert (left_out.users, left_out.buckets) == (14, 2)  # three are too few for a bucket of their own
    for count in range(5, 200):
        for buckets in (2, 7, 20):
            size = cohort_size(DeviceEvaluationOptions(buckets=buckets), Masked(Users(PEOPLE, np.arange(count))))
            assert 5 <= size <= count
            assert count % size == 0 or count % size >= 5
            assert -(-count // size) <= buckets
    with pytest.raises(FedgramError, match="the number of devices is not known"):
        cohort_size(DeviceEvaluationOptions(), Unknown(PEOPLE.test))


class Unknown(SimulatedDevices):
    """Devices of which nobody knows how many there are."""

    @property
    def count(self) -> int | None:
        return None


def scoring(models: dict[str, Any], clip: float = np.inf) -> ScoringTask:
    return ScoringTask.of([SentModel.of(models[n]) for n in ("file", "packed")], cased=False, arm="test", clip=clip)


def test_batches_are_the_devices_one_by_one(models: dict[str, Any]) -> None:
    task = scoring(models)
    call = RoundCall(1, 0, PEOPLE.test.clients, RoundPlan(60, 1.0), task.broadcast(task.init()))
    together, alone = (SimulatedFleet(Job(task, 1), PEOPLE.test, dropout=0.0, batched=b) for b in (True, False))
    one, other = together.collect(call).total, alone.collect(call).total
    assert one.devices == other.devices == 60
    assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in (AMOUNT, COUNT))
    assert one.arrays[COUNT].any()


def update_of(task: ScoringTask, client: int) -> Update:
    data = PEOPLE.load(client, task.encode(PEOPLE.words))
    return task.client_update(task.broadcast(task.init()), data, device_stream(1, 1, client))


def test_a_device_knows_the_task_by_its_settings(models: dict[str, Any]) -> None:
    here = scoring(models, clip=500.0)
    there = job_from_bytes(Job(here, 5, 1).content).task
    assert isinstance(there, ScoringTask)
    assert (there.about, there.cased, there.arm, there.clip) == (here.about, False, "test", 500.0)
    assert Job(there, 6).question == Job(here, 5).question
    data, models_sent = PEOPLE.load(3, there.encode(PEOPLE.words)), here.broadcast(here.init())
    sent = there.client_update(models_sent, data, device_stream(1, 1, 3))
    assert np.array_equal(sent.values[COUNT], update_of(here, 3).values[COUNT])
    assert len(Job(here, 5).content) < 2000  # the models are not in it: only devices that take part download them


@pytest.mark.parametrize("spoil", ["missing", "other", "damaged"])
def test_a_device_scores_no_other_models_than_the_job_names(models: dict[str, Any], spoil: str) -> None:
    task = scoring(models)
    sent = dict(task.broadcast(task.init()).arrays)
    there = ScoringTask.from_settings(task.settings())
    if spoil == "missing":
        del sent["model1"]
    else:
        sent["model1"] = sent["model0"] if spoil == "other" else sent["model1"][:-8]
    with pytest.raises(FedgramError, match=r"missing|not the one"):
        there.scorers(Record({}, sent))


def test_settings_that_make_no_evaluation_are_refused(models: dict[str, Any]) -> None:
    settings = scoring(models).settings()
    wrongs: list[dict[str, Any]] = [{"models": []}, {"models": [["x", "y"]] * 33}, {"arm": "none"}, {"clip": -1.0}]
    for wrong in wrongs:
        with pytest.raises(FedgramError):
            ScoringTask.from_settings(Record({**settings.fields, **wrong}, {}))
    with pytest.raises(FedgramError, match="cannot be sent"):
        SentModel.of(as_predictor(models["memory"], cased=False))
    with pytest.raises(FedgramError, match="must be one of"):
        SentModel(".exe", b"")
    assert repr(SentModel(".ngram", b"123")) == "SentModel(.ngram, 3 bytes)"


def judged(task: ScoringTask, update: Update) -> Reason | None:
    return Intake(task, [7]).offer(7, update)


def test_an_update_outside_the_bounds_is_refused(models: dict[str, Any]) -> None:
    task = scoring(models, clip=2000.0)
    honest = update_of(task, 5)
    assert judged(task, honest) is None

    def changed(name: str, change: Callable[[Any], Any]) -> Update:
        return replace(honest, values={**honest.values, name: change(honest.values[name])})

    assert judged(task, changed(COUNT, lambda v: v * 1000)) == Reason.NORM
    assert judged(task, changed(AMOUNT, lambda v: v - 1e5)) == Reason.NORM
    assert judged(task, changed(COUNT, lambda v: -v)) == Reason.NEGATIVE
    assert judged(task, changed(AMOUNT, lambda v: v * np.nan)) == Reason.NOT_FINITE
    assert judged(task, changed(AMOUNT, lambda v: v[:-1])) == Reason.SHAPE
    assert judged(task, replace(honest, weight=2.0)) == Reason.WEIGHT
    total = Total.zero(task.size, task.bits)
    total.add(honest, task.bounds)
    total.check(task.bounds)
    total.arrays[COUNT][0] += int(1e5) << task.bits  # what one of the masked devices might have done
    with pytest.raises(RefusedUpdateError, match="norm"):
        total.check(task.bounds)


def test_much_text_is_scaled_down_to_the_clip_norm(models: dict[str, Any]) -> None:
    free, tight = scoring(models), scoring(models, clip=50.0)
    client = int(np.argmax(np.diff(PEOPLE.first_sentence)))
    whole, scaled = update_of(free, client), update_of(tight, client)
    norm = np.sqrt(sum(float(np.dot(v, v)) for v in scaled.values.values()))
    assert norm == pytest.approx(50.0 * np.sqrt(2), rel=1e-9)
    assert judged(tight, scaled) is None
    assert judged(tight, whole) == Reason.NORM
    assert scaled.values[AMOUNT] / scaled.values[COUNT][0] == pytest.approx(
        whole.values[AMOUNT] / whole.values[COUNT][0]
    )


def test_words_come_back_as_they_were_typed() -> None:
    words = ["naïve", "I'm", "😀😀", "a", "<number>", "日本", "nul\0inside", "a\nb"]
    task = ScoringTask([(".ngram", "0" * 64)], cased=True, arm="test")
    codes = task.encode(words)
    rows = [[0, 1, 2], [], [3], [4, 5, 6, 7, 0]]

    def data(rows: list[list[int]]) -> ClientDataset:
        text = Ragged.from_rows(rows)
        coded = codes.take(text.values)
        return ClientDataset("x", Ragged(coded.values, coded.offsets[text.offsets]))

    found = typed_population([data(rows[:3]), data([]), data(rows[3:])])
    read = [[[found.words[w] for w in s] for s in found.sentences(c)] for c in range(3)]
    assert read == [[[words[w] for w in row] for row in rows[:3]], [], [[words[w] for w in rows[3]]]]


def test_a_device_without_typed_words_sends_nothing(models: dict[str, Any]) -> None:
    quiet = population_from_messages([("a", "12 34", "test"), ("b", "see you there", "test"), ("c", "!", "test")])
    found = evaluate_on_devices(models["packed"], quiet.test, devices_per_round=3, dropout=0.0)
    assert found.words == 3
    assert found.progress is not None
    assert found.progress.tally.reports == 3
    assert found.users + found.progress.tally.empty == 3
    silent = population_from_messages([("a", "!", "test"), ("b", "?", "test")])
    with pytest.raises(FedgramError, match="typed no words"):
        evaluate_on_devices(models["packed"], silent.test, devices_per_round=2, dropout=0.0)


def noise(multiplier: float, clip: float, models: int = 1, seed: int = 3) -> NoisySums:
    options = DeviceEvaluationOptions(epsilon=epsilon_of(multiplier), clip=clip, devices_per_round=10)
    return evaluation_noise(models, options, Ledger(), SeededRandomness(seed))


def epsilon_of(multiplier: float) -> float:
    return gaussian_epsilon(multiplier, DeviceEvaluationOptions().delta)


def test_noise_is_one_gaussian_event_and_goes_on_the_sums_of_every_round(models: dict[str, Any]) -> None:
    ledger, clip = Ledger(), 2000.0
    given: dict[str, Any] = {"buckets": 6, "rounds": 6, "clip": clip, "dropout": 0.0}
    exact = evaluate_on_devices(models["packed"], PEOPLE.test, **given)
    private: dict[str, Any] = {**given, "randomness": SeededRandomness(3)}
    noisy = evaluate_on_devices(models["packed"], PEOPLE.test, **private, epsilon=epsilon_of(0.05), ledger=ledger)
    assert noisy.buckets == exact.buckets == ledger.entries[0].spent == 6
    event = ledger.entries[0].event.after(6)
    assert isinstance(event, Gaussian)
    assert event.multiplier == pytest.approx(0.05, rel=1e-6)
    assert event.rounds == 1
    assert 0 < abs(noisy.words - exact.words) < 5 * np.sqrt(6) * 0.05 * clip
    (one,), (other,) = exact.models.values(), noisy.models.values()
    assert 0.0 < abs(one["top1"]["value"] - other["top1"]["value"]) < 5.0
    assert exact.privacy is None
    assert noisy.privacy == {"epsilon": epsilon_of(0.05), "delta": 1e-8}
    drowned = evaluate_on_devices(models["packed"], PEOPLE.test, **private, epsilon=epsilon_of(5.0))
    assert drowned.words >= 0  # no negative count breaks a figure


def test_noise_needs_a_limit_and_keeps_to_the_budget(models: dict[str, Any]) -> None:
    with pytest.raises(FedgramError, match="finite --clip"):
        evaluate_on_devices(models["packed"], PEOPLE.test, epsilon=1.0, clip=inf)
    ledger = Ledger(budget=Budget(1.0, 1e-8))
    given: dict[str, Any] = {"buckets": 2, "clip": 500.0, "dropout": 0.0, "ledger": ledger}
    evaluate_on_devices(models["packed"], PEOPLE.test, **given, epsilon=0.9)
    with pytest.raises(BudgetError, match="evaluation would exceed the privacy budget"):
        evaluate_on_devices(models["file"], PEOPLE.test, **given, epsilon=0.9)


def test_an_evaluation_with_noise_that_is_killed_spends_once(models: dict[str, Any], tmp_path: Path) -> None:
    """Killed in its first round: the next one continues the entry in the ledger. Exact sums are never mixed in."""
    ledger, given = Ledger.open(tmp_path / "privacy.json", Budget(1.0, 1e-8)), {"buckets": 2, "clip": 500.0}
    settings: dict[str, Any] = {**given, "dropout": 0.0, "epsilon": 1.0, "folder": tmp_path, "ledger": ledger}

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedFleet, "collect", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate_on_devices(models["packed"], PEOPLE.test, **settings)
    found = evaluate_on_devices(models["packed"], PEOPLE.test, **settings)
    assert (found.users, len(ledger.entries)) == (60, 1)
    with pytest.raises(OtherWorkError, match="epsilon"):
        evaluate_on_devices(models["packed"], PEOPLE.test, **{**settings, "epsilon": 0.5})


def test_the_noise_is_measured_for_what_a_device_may_send(models: dict[str, Any]) -> None:
    """Its deviation is the multiplier times the norm of the task, on every number of both vectors."""
    task = scoring(models, clip=40.0)
    drawn = []
    for seed in range(300):
        mechanism = noise(2.0, 40.0, models=2, seed=seed)
        mechanism.begin()
        released = mechanism.release(1, Total.zero(task.size, task.bits))
        drawn.append(np.concatenate([released.array(AMOUNT), released.array(COUNT)]))
    deviation = 2.0 * task.bounds.norms[0].limit
    assert np.std(drawn) == pytest.approx(deviation, rel=0.03)
    assert np.std(drawn, axis=0).min() > 0.8 * deviation


def test_networks_of_word_pieces_are_scored_by_likelihood_alone(tmp_path: Path) -> None:
    """On devices and in one place, with the SLL and SLL^e of `fedgram network score`."""
    people = Users(PEOPLE, PEOPLE.test.clients[:12])
    frequency = {word: float(count) for word, count in Counter(" ".join(TEXT).lower().split()).items()}
    train_pieces(frequency, size=120, path=tmp_path / "pieces.model")
    pieces = (tmp_path / "pieces.model").read_bytes()
    network = create_network("P_demo", frequency, pieces=pieces, seed=1, any_size=True, known_words=200)
    given = {"pieces": network, "words": NGramModel.train(TEXT[:300], order=2)}
    here, ours = evaluate(given, people), evaluate_on_devices(given, people, buckets=3, dropout=0.0)
    alone = score(
        network.shape, as_tensors(network.weights), text_to_score(network.coding, PEOPLE, people.clients), pieces=True
    )
    assert evaluate({"pieces": network}, people).models["pieces"]["sll_e"]["value"] == pytest.approx(alone.sll_e)
    assert here.models["pieces"]["sll"]["value"] == pytest.approx(alone.sll, rel=1e-6)
    assert printed(ours) == printed(here)
    assert here.words == ours.words > 0
    assert here.models["pieces"]["top1"]["value"] is None
    assert here.models["pieces"]["oov_rate"]["value"] < here.models["words"]["oov_rate"]["value"]
    with pytest.raises(FedgramError, match="suggests no words"):
        as_predictor(network, cased=False)


def test_an_interrupted_evaluation_resumes_and_another_is_its_own(models: dict[str, Any], tmp_path: Path) -> None:
    half = Users(PEOPLE, PEOPLE.test.clients[:30])
    settings: dict[str, Any] = {"devices_per_round": 10, "dropout": 0.0, "folder": tmp_path}
    first = evaluate_on_devices(models["packed"], half, **settings)
    assert (first.users, first.buckets) == (30, 3)
    both = evaluate_on_devices(models["packed"], PEOPLE.test, **settings)  # the other half was away
    assert (both.users, both.buckets) == (60, 6)
    assert printed(both)[0][1:] == printed(evaluate(models["packed"], PEOPLE.test))[0][1:]
    other = evaluate_on_devices(models["memory"], half, **settings)
    assert other.users == 30
    with pytest.raises(OtherWorkError, match="devices"):
        evaluate_on_devices(models["packed"], half, **{**settings, "devices_per_round": 11})
