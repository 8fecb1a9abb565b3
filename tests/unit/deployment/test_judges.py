"""Devices as the judges of a run: the figures of one process with the same users, while a training pauses."""

from collections.abc import Sequence
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
from fedgram.deployment.evaluation import check_arms
from fedgram.deployment.federation_devices import FederationDevices, Servers
from fedgram.deployment.folder import FederationConfig, Folder, RoundsConfig, make_folder
from fedgram.deployment.journal import read_status
from fedgram.deployment.judges import ByDevices
from fedgram.evaluate.comparison import evaluate
from fedgram.federated.rounds import Checkpointing
from fedgram.fgram.pack import pack
from fedgram.formats.artefact import write_ngram
from fedgram.neural.network import Network, WeightArrays, write_network
from fedgram.neural.scoring import Scores
from fedgram.pipeline.config import EvaluationSection
from fedgram.pipeline.judges import dev_accuracy
from fedgram.pipeline.workspace import Work
from fedgram.text.population import Population, population_from_messages
from fedgram.training.options import FedAvgOptions
from fedgram.training.train_federated import TrainedNetwork, train_federated

ARMS = {n: ("train", "train", "dev", "test")[n % 4] for n in TEXTS}
ROUNDS = RoundsConfig(deadline=10.0, wait_seconds=20.0, idle_seconds=0.3)
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
