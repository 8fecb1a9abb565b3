"""Devices as the judges of a run: the figures of one process with the same users, while a training pauses."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.deployment.transports import (
    CODING,
    POPULATION,
    ROWS,
    SHAPE,
    START,
    TEXTS,
    Killed,
    LocalLink,
    LocalTransport,
)
from tests.unit.deployment.transports import make_devices as devices_of

from fedgram.automata.model import NGramModel
from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError, InputError
from fedgram.deployment.arms import ARM
from fedgram.deployment.evaluation import arm_ledger, check_arms
from fedgram.deployment.federation_devices import FederationDevices, Servers
from fedgram.deployment.folder import FederationConfig, Folder, RoundsConfig, make_folder
from fedgram.deployment.journal import read_privacy, read_status
from fedgram.deployment.judges import ByDevices, Noise, noise_of, planned_evaluations
from fedgram.evaluate.comparison import evaluate
from fedgram.evaluate.evaluation import evaluate_model
from fedgram.evaluate.models import as_predictor
from fedgram.federated.rounds import Checkpointing
from fedgram.fgram.pack import pack
from fedgram.formats.artefact import write_ngram
from fedgram.neural.network import Network, WeightArrays, as_tensors, write_network
from fedgram.neural.new_network import create_network
from fedgram.neural.scoring import Scores, score, text_to_score
from fedgram.pipeline.config import EvaluationSection, PiecesSection, PrivacySection, RunConfig, WordsSection
from fedgram.pipeline.judges import dev_accuracy
from fedgram.pipeline.workspace import Work
from fedgram.privacy.accounting import Gaussian, compose
from fedgram.privacy.gaussian import gaussian_epsilon, multiplier_for
from fedgram.privacy.ledger import Budget, BudgetError
from fedgram.text.population import Population, population_from_messages
from fedgram.text.wordpieces import train_pieces
from fedgram.training.options import FedAvgOptions
from fedgram.training.train_federated import TrainedNetwork, train_federated

ARMS = {n: ("train", "train", "dev", "test")[n % 4] for n in TEXTS}
ROUNDS = RoundsConfig(deadline=60.0, wait_seconds=60.0, idle_seconds=0.3)
OPTIONS = FedAvgOptions(
    rounds=3, devices_per_round=4, client_rate=1.0, over_selection=1.0, dropout=0.0, evaluate_every=2, dev_users=3
)
ONE = Compute("cpu", 1)
FIGURES = ("top1", "top3", "oov_rate", "perplexity", "sll", "sll_e", "keystroke_savings")


@pytest.fixture
def people() -> Population:
    """The users, with the arms of their devices as splits."""
    place = {name: n for n, name in enumerate(POPULATION.client_ids)}
    return population_from_messages((user, text, ARMS[place[user]]) for user, text, _ in ROWS)


@pytest.fixture
def transport(tmp_path: Path) -> LocalTransport:
    """Devices that have decided on their arms."""
    devices = devices_of(tmp_path, TEXTS)
    for device in devices.values():
        (device.jobs.parent / ARM).write_text(ARMS[device.store.number])
    return LocalTransport(devices)


@pytest.fixture
def home(tmp_path: Path, transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A federation of these devices, whose server is in this process."""
    config = FederationConfig(tls=False, masked_with=0, dev_share=0.25, test_share=0.25, rounds=ROUNDS)
    made = make_folder(tmp_path / "fed", config)
    LocalLink(monkeypatch, {made.path: transport})
    return made


@pytest.fixture
def work(tmp_path: Path) -> Work:
    (tmp_path / "stage").mkdir()
    return Work(None, tmp_path / "stage", {})


def network() -> Network:
    return Network(SHAPE, START, CODING, {})


def models() -> dict[str, NGramModel]:
    lines = [text.lower() for texts in list(TEXTS.values())[:3] for text in texts]
    return {"small": NGramModel.train(lines[:40], order=2), "large": NGramModel.train(lines, order=2)}


def test_a_training_pauses_while_dev_devices_score_it(home: Folder, work: Work, people: Population) -> None:
    """The weights and the curve are those of one process, and every round is counted once."""
    devices = FederationDevices(Servers(home), work.write("servers"))
    scorer = ByDevices(Servers(home), 8, 5).dev_scorer(work, network(), devices, OPTIONS.dev_users)
    kept = Checkpointing(work.write("checkpoints"))
    ours = train_federated(network(), devices, OPTIONS, dev=scorer, seed=5, compute=ONE, checkpoints=kept)
    alone = train_federated(network(), people.train, OPTIONS, dev=people.dev, seed=5, compute=ONE)
    assert [point["round"] for point in ours.history["dev"]] == [2, 3]
    assert ours.history["best_round"] == alone.history["best_round"]
    for mine, theirs in zip(ours.history["dev"], alone.history["dev"], strict=True):
        assert mine["sll_e"] == pytest.approx(theirs["sll_e"], rel=1e-6)
    assert all((ours.weights[name] == alone.weights[name]).all() for name in START)
    assert ours.history["loss"] == alone.history["loss"]
    status = read_status(home.server)
    scorings, rounds_each = 3, 3  # at the start and after rounds 2 and 3, on 3 devices, one by one
    assert status["rounds_committed"] == 3 + scorings * rounds_each
    assert status["totals"]["reports"] == 3 * 4 + scorings * 3


def test_a_training_that_is_killed_in_a_pause_resumes_without_asking_again(
    home: Folder, work: Work, people: Population, transport: LocalTransport
) -> None:
    """The sum of the round before the pause is still there; no device trains twice for it."""
    judges, calls = ByDevices(Servers(home), 8, 5), list[int]()

    def trained(*, killed: bool) -> TrainedNetwork:
        devices = FederationDevices(Servers(home), work.write("servers"))
        scorer = judges.dev_scorer(work, network(), devices, OPTIONS.dev_users)
        assert scorer is not None

        def scoring(several: Sequence[WeightArrays]) -> Sequence[Scores]:
            calls.append(len(several))
            if killed and len(calls) == 2:
                with devices.resting():
                    raise Killed
            return scorer(several)

        kept = Checkpointing(work.write("checkpoints"))
        return train_federated(network(), devices, OPTIONS, dev=scoring, seed=5, compute=ONE, checkpoints=kept)

    with pytest.raises(Killed):
        trained(killed=True)
    ours = trained(killed=False)
    alone = train_federated(network(), people.train, OPTIONS, dev=people.dev, seed=5, compute=ONE)
    assert all((ours.weights[name] == alone.weights[name]).all() for name in START)
    scorings = 3
    assert len(transport.requests_for("report")) == 3 * OPTIONS.devices_per_round + scorings * 3


def test_choices_are_those_of_dev_users(home: Folder, work: Work, people: Population) -> None:
    packed = {name: pack_and_read(model, work.write(f"{name}.fgram")) for name, model in models().items()}
    found = ByDevices(Servers(home), 8, 5).top1(work, models(), cased=False)
    assert found == {name: dev_accuracy(model, people, cased=False) for name, model in packed.items()}
    assert found["small"] != found["large"]


def pack_and_read(model: NGramModel, path: Path) -> NGramModel:
    from fedgram.evaluate.models import in_memory

    pack(model, path, bits=8)
    read = in_memory(path)
    assert isinstance(read, NGramModel)
    return read


def test_results_are_those_of_test_users(home: Folder, work: Work, people: Population) -> None:
    """Models with the same content have the same figures; a network is measured without regard to capitals."""
    files = {"Baseline": work.write("b.ngram"), "Final model": work.write("f.ngram"), "lm.fgram": work.write("f.fgram")}
    small, large = models().values()
    write_ngram(small, files["Baseline"])
    write_ngram(large, files["Final model"])
    pack(large, files["lm.fgram"], bits=8)
    pack(small, work.write("b.fgram"), bits=8)
    files["R_W (network)"] = work.write("R_W.safetensors")
    write_network(files["R_W (network)"], network())
    found = ByDevices(Servers(home), 8, 5).evaluate(work, files, EvaluationSection(), 5)
    here = evaluate([files["lm.fgram"], files["R_W (network)"]], people.test, baseline=work.write("b.fgram"))
    ours = found[False]
    assert (ours.users, ours.words, ours.shared_words) == (here.users, here.words, here.shared_words)
    assert list(ours.models) == list(files)
    assert list(found[True].models) == ["Baseline", "Final model", "lm.fgram"]
    assert ours.models["Final model"] == ours.models["lm.fgram"]
    for mine, theirs in zip(
        (ours.models[name] for name in ("Baseline", "lm.fgram", "R_W (network)")), here.models.values(), strict=True
    ):
        for name in FIGURES:
            assert mine[name]["value"] == pytest.approx(theirs[name]["value"], rel=1e-6)
    assert ours.models["lm.fgram"]["change"]["top1"]["value"] == pytest.approx(
        here.models[str(files["lm.fgram"])]["change"]["top1"]["value"]
    )


def test_table_1_is_measured_on_devices(home: Folder, work: Work, people: Population) -> None:
    """All models in one evaluation, a model that is there twice only once."""
    several = {**models(), "again": models()["large"]}
    found = ByDevices(Servers(home), 8, 5).measure(work, several, EvaluationSection())
    assert set(found) == set(several)
    assert found["again"] is found["large"]
    for name, model in models().items():
        packed = as_predictor(pack_and_read(model, work.write(f"{name}.fgram")), cased=False)
        here = evaluate_model(packed, people, people.clients("test")).measures
        for measure in ("top1", "top3", "oov_rate"):
            assert found[name].measures[measure].level == here[measure].level


def test_the_curve_of_a_network_of_word_pieces_is_measured_on_devices(
    home: Folder, work: Work, people: Population
) -> None:
    pieces = piece_network(work.write("pieces.model"))
    devices = FederationDevices(Servers(home), work.write("servers"))
    scorer = ByDevices(Servers(home), 8, 5).dev_scorer(work, pieces, devices, 3)
    assert scorer is not None
    (ours,) = scorer([pieces.weights])
    text = text_to_score(pieces.coding, people, people.clients("dev"))
    here = score(pieces.shape, as_tensors(pieces.weights), text, pieces=True)
    assert [ours.sll_e, ours.sll] == pytest.approx([here.sll_e, here.sll], rel=1e-6)
    assert (ours.top1, ours.sentences, ours.words) == (None, here.sentences, here.words)


def piece_network(path: Path) -> Network:
    frequency = {w: float(n) for w, n in Counter(" ".join(t for _, t, _ in ROWS).lower().split()).most_common(300)}
    train_pieces(frequency, size=100, path=path)
    return create_network("P_demo", frequency, pieces=path.read_bytes(), seed=1, any_size=True, known_words=100)


def test_with_privacy_every_evaluation_has_noise_and_an_entry(home: Folder, work: Work) -> None:
    """The dev arm has a ledger of its own; it refuses more than its budget, and exact sums from then on."""
    budget = Budget(2.0, 1e-8)
    judges = ByDevices(Servers(home), 8, 5, Noise(budget, {"dev": 1.5}, 500.0))
    exact = ByDevices(Servers(home), 8, 5)
    with contextlib.suppress(FedgramError):  # three devices: the noise may well hide all that they measured
        judges.top1(work, models(), cased=False)
    (entry,) = arm_ledger(home, "dev").entries
    assert entry.spent > 0
    assert gaussian_epsilon(entry.event.scaled(1.0).multiplier, 1e-8) == pytest.approx(1.5, rel=1e-6)  # type: ignore[union-attr]
    with pytest.raises(BudgetError, match="would exceed the privacy budget"):
        judges.top1(work, models(), cased=True)
    with pytest.raises(InputError, match="limits what devices of the dev arm may reveal"):
        exact.top1(work, {"large": models()["large"]}, cased=False)
    told, words = read_privacy(home.server)
    assert told["evaluating_arms"]["dev"]["epsilon"] == pytest.approx(1.5, rel=1e-6)
    assert "dev arm: ε = 1.5" in words


def test_the_budget_of_an_arm_is_for_all_evaluations_of_a_run() -> None:
    """7 of the network of words (6 and the start), 3 of word pieces, and 3 choices; 2 on the test arm."""
    config = RunConfig(
        privacy=PrivacySection(protection="dp", epsilon=4.0),
        words=WordsSection(training=FedAvgOptions(rounds=11, evaluate_every=2, update_norm=1.0)),
        pieces=PiecesSection(training=FedAvgOptions(rounds=2, evaluate_every=1, update_norm=1.0)),
    )
    assert planned_evaluations(config) == {"dev": 13, "test": 2}
    found = noise_of(config)
    assert found is not None
    events = [Gaussian(multiplier_for(found.epsilon["dev"], 1e-8))] * 13
    assert compose(events, 1e-8).epsilon == pytest.approx(4.0, rel=1e-6)
    assert noise_of(RunConfig()) is None
    with pytest.raises(FedgramError, match=r"evaluation\.split must be dev or test"):
        noise_of(replace(config, evaluation=EvaluationSection(split="train")))


def test_what_devices_cannot_score(tmp_path: Path, people: Population, work: Work) -> None:
    home = make_folder(tmp_path / "plain", FederationConfig(tls=False, dev_share=0.1))
    judges = ByDevices(Servers(home), 8, 5)
    devices = FederationDevices(Servers(home), tmp_path)
    assert judges.dev_scorer(work, network(), devices, 0) is None
    with pytest.raises(FedgramError, match="only the training of a federation"):
        judges.dev_scorer(work, network(), people.train, 3)


@pytest.mark.parametrize(
    ("dev", "test", "missing"),
    [(0.0, 0.0, "set dev_share and test_share in"), (0.1, 0.0, "set test_share in"), (0.0, 0.1, "set dev_share in")],
)
def test_a_run_without_users_needs_both_arms(tmp_path: Path, dev: float, test: float, missing: str) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False, dev_share=dev, test_share=test))
    with pytest.raises(InputError, match="has no devices to measure models on, and the run names no users") as why:
        check_arms(home, "test")
    assert missing in str(why.value)
    check_arms(make_folder(tmp_path / "both", FederationConfig(tls=False, dev_share=0.1, test_share=0.1)), "test")
