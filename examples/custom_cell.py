"""A recurrent cell of one's own: a minimal gated unit (Zhou et al. 2016), trained on devices and scored.

Run it with `python examples/custom_cell.py`. A program registers a cell before it makes or reads a network with it.
Other processes, such as workers, commands and devices, find it by name if a package that is installed there says in its
pyproject.toml:

    [project.entry-points."fedgram.cells"]
    minimal-gated = "custom_cell:MinimalGatedUnit"
"""

import torch
from torch import Tensor

from fedgram.neural.cell import CellShape, Sizes, State, Weights, row, uniform_weights
from fedgram.neural.cell_registry import register_cell
from fedgram.neural.model import ModelShape, initial_weights
from fedgram.neural.network import Network, as_arrays, as_tensors, word_coding
from fedgram.neural.scoring import Scores, score, text_to_score
from fedgram.text.population import Population, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.training.train_federated import train_federated


class MinimalGatedUnit:
    """f = σ(x·W_f + h·U_f + b_f), g = tanh(x·W_g + (f·h)·U_g + b_g), h ← (1 − f)·h + f·g; the output is h·P."""

    def sizes(self, shape: CellShape) -> Sizes:
        """W and b hold f and g side by side; U is one matrix for each."""
        n = shape.hidden
        recurrent = {"forget": (n, n), "candidate": (n, n)}
        return {"input": (shape.inputs, 2 * n), "bias": (2 * n,), **recurrent, "projection": (n, shape.inputs)}

    def initial_weights(self, shape: CellShape, generator: torch.Generator) -> Weights:
        """Uniform matrices, and a bias of 0."""
        return uniform_weights(self.sizes(shape), generator)

    def state_sizes(self, shape: CellShape) -> tuple[int, ...]:
        """The state is h."""
        return (shape.hidden,)

    def inputs(self, shape: CellShape, weights: Weights, x: Tensor) -> Tensor:  # noqa: ARG002
        """x·W + b."""
        return x @ weights["input"] + row(weights["bias"])

    def step(self, shape: CellShape, weights: Weights, from_input: Tensor, state: State) -> tuple[Tensor, State]:  # noqa: ARG002
        """The output and h after one step."""
        (h,), (a, b) = state, from_input.chunk(2, dim=-1)
        f = torch.sigmoid(a + h @ weights["forget"])
        h = (1.0 - f) * h + f * torch.tanh(b + (f * h) @ weights["candidate"])
        return h @ weights["projection"], (h,)


def scores(network: Network, people: Population) -> Scores:
    """How well a network predicts the sentences of the test users."""
    text = text_to_score(network.coding, people, people.clients("test"))
    return score(network.shape, as_tensors(network.weights), text, pieces=False)


if __name__ == "__main__":
    register_cell("minimal-gated", MinimalGatedUnit())
    people = population_from_messages(SyntheticPopulation("en_us", seed=1).rows(40))
    coding = word_coding(dict.fromkeys(people.words, 1.0), 300)
    shape = ModelShape(len(coding.vocabulary), embedding=16, hidden=32, cell="minimal-gated")
    start = Network(shape, as_arrays(initial_weights(shape, seed=0)), coding)
    trained = train_federated(start, people, rounds=6, devices_per_round=10, seed=7)
    print(f"perplexity {scores(start, people).perplexity:.0f} before, {scores(trained, people).perplexity:.0f} after")
