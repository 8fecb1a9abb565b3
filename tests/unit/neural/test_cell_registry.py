"""Custom cells: registered by name, trained by automatic differentiation, scored, sampled and stored."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import fed_avg
from examples.custom_cell import MinimalGatedUnit
from tests.reference.random_models import random_topology
from tests.reference.tiny_networks import tiny_network

from fedgram.core.errors import FedgramError, InputError
from fedgram.distill.network_source import NetworkSource
from fedgram.distill.sample_approx import PlainCounting, count_samples
from fedgram.distill.tensor_counting import TensorCounting
from fedgram.federated.cohort import RoundPlan
from fedgram.federated.job import Job
from fedgram.federated.rounds import RunOptions, run_rounds
from fedgram.federated.simulation import SimulatedFleet
from fedgram.neural import cell_registry, explicit_step
from fedgram.neural.cell import Cell, CellShape, Weights
from fedgram.neural.cell_registry import find_cell, is_process_local, register_cell
from fedgram.neural.local_training import LocalTraining
from fedgram.neural.model import ModelShape, hidden_outputs, initial_weights, word_losses
from fedgram.neural.network import Coding, as_arrays, as_tensors, read_network, write_network
from fedgram.neural.scoring import score, text_to_score
from fedgram.text.population import Population, population_from_messages
from fedgram.text.vocabulary import BOS, Vocabulary
from fedgram.training.fedavg_task import FederatedAveraging
from fedgram.training.plan import TrainingPlan

NAME = "minimal-gated"
WORDS = Vocabulary.of("abcdef")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry with the cell of the example, for one test."""
    monkeypatch.setattr(cell_registry, "_registered", {})
    register_cell(NAME, MinimalGatedUnit())


def people() -> Population:
    rng = np.random.default_rng(1)
    lines = [(f"u{user}", " ".join(rng.choice(list("abcdef"), rng.integers(1, 6))), "train")
             for user in range(4) for _ in range(5)]  # fmt: skip
    return population_from_messages(lines)


def a_task(precision: type = np.float64) -> FederatedAveraging:
    shape = ModelShape(len(WORDS), 6, 9, layers=2, cell=NAME)
    start: dict[str, Any] = {n: w.astype(precision) for n, w in as_arrays(initial_weights(shape, seed=2)).items()}
    plan = TrainingPlan(LocalTraining(0.05), rows=2, length=7, max_sentences=4)
    return FederatedAveraging(shape, start, plan, Coding(WORDS, WORDS))


def test_a_federated_round_of_a_custom_cell_is_the_specification() -> None:
    task, population = a_task(), people()
    assert not explicit_step.supports(task.shape)
    job = Job(task, 5)
    fleet = SimulatedFleet(job, population.users(), dropout=0.0)
    found = run_rounds(job, fleet, RunOptions(1, RoundPlan(3, 1.0))).state.model.weights
    codes = task.encode(population.words)
    texts = {c: population.load(c, codes).sentences for c in population.clients().tolist()}
    expected = fed_avg.fed_avg(task.shape, as_tensors(task.start), texts, task.plan, devices=3, rounds=1, seed=5)
    for name, weight in expected.items():
        np.testing.assert_allclose(found[name], weight.numpy(), atol=1e-6, err_msg=name)
        assert not np.array_equal(found[name], task.start[name]), name


def test_training_a_custom_cell_improves_its_score() -> None:
    task, population = a_task(np.float32), people()
    job = Job(task, 5)
    fleet = SimulatedFleet(job, population.users(), dropout=0.0)
    trained = run_rounds(job, fleet, RunOptions(4, RoundPlan(4, 1.0))).state.model.weights
    text = text_to_score(Coding(WORDS, WORDS), population, population.clients())
    before, after = (score(task.shape, as_tensors(w), text, pieces=False) for w in (task.start, trained))
    assert after.perplexity < before.perplexity
    assert after.sll > before.sll


def test_a_stack_of_clients_equals_its_members() -> None:
    shape = a_task().shape
    members = [{n: w.double() for n, w in initial_weights(shape, seed=s).items()} for s in range(3)]
    stack = {name: torch.stack([m[name] for m in members]) for name in members[0]}
    words = torch.randint(3, len(WORDS), (3, 2, 5), generator=torch.Generator().manual_seed(1))
    losses = word_losses(shape, stack, words, words)
    for k, member in enumerate(members):
        torch.testing.assert_close(losses[k], word_losses(shape, member, words[k], words[k]))


def test_the_state_is_reset_at_the_beginning_of_a_sentence() -> None:
    shape = a_task().shape
    weights = initial_weights(shape, seed=3)
    first, second = torch.tensor([BOS, 4, 5]), torch.tensor([BOS, 6, 5, 7])
    together = hidden_outputs(shape, weights, torch.cat((first, second)).view(1, -1))[0]
    torch.testing.assert_close(hidden_outputs(shape, weights, second.view(1, -1))[0], together[3:])


def test_a_custom_cell_is_sampled_counted_and_stored(tmp_path: Path) -> None:
    network = tiny_network(1, words=14, cell=NAME, layers=2)
    write_network(tmp_path / "n.safetensors", network)
    source = NetworkSource(read_network(tmp_path / "n.safetensors"), max_length=8)
    topology = random_topology(np.random.default_rng(2), order=3, words=11, ngrams=60)
    plain, tensors = (count_samples(way(source, topology, 1), 100) for way in (PlainCounting, TensorCounting))
    np.testing.assert_array_equal(plain.summed, tensors.summed)
    cell_registry._registered.clear()
    with pytest.raises(InputError, match="does not hold a network: unknown cell 'minimal-gated'"):
        read_network(tmp_path / "n.safetensors")


class _NoStep:
    sizes = initial_weights = state_sizes = inputs = MinimalGatedUnit.sizes


class _OtherWeights(MinimalGatedUnit):
    def initial_weights(self, shape: CellShape, generator: torch.Generator) -> Weights:
        return {**super().initial_weights(shape, generator), "bias": torch.zeros(1)}


class _NoGroups(MinimalGatedUnit):
    def sizes(self, shape: CellShape) -> Any:
        if shape.groups > 1:
            raise FedgramError("this cell has no groups")
        return super().sizes(shape)


def test_mistakes_are_refused() -> None:
    cell: Cell = MinimalGatedUnit()
    with pytest.raises(FedgramError, match="'cifg' is built in and cannot be replaced"):
        register_cell("cifg", cell, replace=True)
    with pytest.raises(FedgramError, match=f"registered as '{NAME}' already"):
        register_cell(NAME, cell)
    register_cell(NAME, cell, replace=True)
    assert find_cell(NAME) is cell
    no_step: Any = _NoStep()
    with pytest.raises(FedgramError, match="'no-step' lacks step"):
        register_cell("no-step", no_step)
    with pytest.raises(FedgramError, match=f"unknown cell 'rnn'; choose one of cifg, lstm, gru, {NAME}"):
        ModelShape(10, 4, 4, cell="rnn")
    register_cell("other-weights", _OtherWeights())
    with pytest.raises(FedgramError, match="'other-weights' differ in name or shape"):
        initial_weights(ModelShape(10, 4, 4, cell="other-weights"), seed=0)
    register_cell("no-groups", _NoGroups())
    with pytest.raises(FedgramError, match="has no groups"):
        ModelShape(10, 4, 4, cell="no-groups", groups=2)


def test_installed_packages_register_cells_by_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("installed", "examples.custom_cell:MinimalGatedUnit", cell_registry.ENTRY_POINTS)
    monkeypatch.setattr(cell_registry, "entry_points", lambda **chosen: EntryPoints([entry]).select(**chosen))
    assert isinstance(find_cell("installed"), MinimalGatedUnit)
    assert find_cell("installed") is find_cell("installed")
    assert not is_process_local("installed")
    assert not is_process_local("cifg")
    assert is_process_local(NAME)
