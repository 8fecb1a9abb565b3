"""FederatedAveraging on a page: one device after another, one sentence after another, nothing stacked.

The readable specification of `fedgram.training`; `tests/unit/training/test_fedavg_engine.py` compares the two.
Run it with `python examples/fed_avg.py`.
"""

import numpy as np
import torch
from torch import Tensor

from fedgram.core.arrays import Ragged
from fedgram.federated.cohort import draw_order
from fedgram.federated.task import device_stream
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape, initial_weights, word_losses
from fedgram.neural.network import word_coding
from fedgram.text.population import population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation
from fedgram.text.vocabulary import BOS, EOS
from fedgram.training.plan import TrainingPlan


def batches(sentences: Ragged, order: list[int], plan: TrainingPlan) -> list[list[list[int]]]:
    """A device's sentences in batches: a sentence goes to the first row with room, or opens the next batch."""
    made: list[list[list[int]]] = [[]]
    room = [plan.length] * plan.rows
    for number in order:
        ids = [int(x) for x in sentences[number]]
        need = min(len(ids) + 1, plan.length)
        rows = [row for row in range(plan.rows) if room[row] >= need]
        if not rows:
            made, room, rows = [*made, []], [plan.length] * plan.rows, [0]
        room[rows[0]] -= need
        made[-1].append(ids)
    return made


def loss(shape: ModelShape, w: Weights, batch: list[list[int]], length: int) -> Tensor:
    """The mean of −log p over the batch's words and sentence ends."""
    pairs = [(torch.tensor([[BOS, *ids][:length]]), torch.tensor([[*ids, EOS][:length]])) for ids in batch]
    return torch.cat([word_losses(shape, w, *pair).flatten() for pair in pairs]).mean()


def train_on_device(shape: ModelShape, R: Weights, data: list[list[list[int]]], plan: TrainingPlan) -> Weights:
    """Δ_i: what a device's steps of gradient descent change, shortened to the limit on its norm."""
    w, rate = {name: weight.clone().requires_grad_() for name, weight in R.items()}, plan.local.learning_rate
    for batch in data:
        gradients = torch.autograd.grad(loss(shape, w, batch, plan.length), list(w.values()))
        w = {n: (v - rate * g).detach().requires_grad_() for (n, v), g in zip(w.items(), gradients, strict=True)}
    change = {name: w[name].detach() - R[name] for name in R}
    norm = float(torch.linalg.vector_norm(torch.cat([delta.flatten().double() for delta in change.values()])))
    return {name: delta * min(1.0, plan.update_norm / norm) for name, delta in change.items()}


def fed_avg(
    shape: ModelShape, R: Weights, texts: dict[int, Ragged], plan: TrainingPlan, *, devices: int, rounds: int, seed: int
) -> Weights:
    """The server: the mean change Δ of a round's devices is a direction, taken with Nesterov's momentum."""
    eta, mu = plan.server.learning_rate, plan.server.momentum
    v = {name: torch.zeros_like(w) for name, w in R.items()}
    for number in range(1, rounds + 1):
        total, weight = {name: torch.zeros_like(w) for name, w in R.items()}, 0.0
        for device in draw_order(np.array(list(texts)), seed=seed, round_number=number)[:devices].tolist():
            order = plan.order(len(texts[device]), device_stream(seed, number, device)).tolist()
            if order:
                change = train_on_device(shape, R, batches(texts[device], order, plan), plan)
                a = min(len(texts[device]), plan.max_sentences)
                total, weight = {n: total[n] + a * change[n] for n in total}, weight + a
        v = {name: mu * v[name] - total[name] / weight for name in R}
        R = {name: R[name] - eta * (mu * v[name] - total[name] / weight) for name in R}
    return R


if __name__ == "__main__":
    people = population_from_messages(SyntheticPopulation("en_us", seed=1).rows(12))
    words = word_coding(dict.fromkeys(people.words, 1.0), 200).vocabulary
    texts = {device: people.load(device, people.word_ids(words)).sentences for device in range(len(people))}
    shape, plan = ModelShape(len(words), 8, 16), TrainingPlan(max_sentences=8)
    R = fed_avg(shape, initial_weights(shape, seed=0), texts, plan, devices=4, rounds=2, seed=7)
    print({name: round(float(w.norm()), 4) for name, w in R.items()})
