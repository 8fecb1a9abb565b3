"""Sampling and counting in GPU kernels, in Triton's interpreter, without a GPU."""

import subprocess
import sys

SCRIPT = """
import numpy as np, torch
from tests.reference.random_models import random_topology
from tests.reference.tiny_networks import tiny_network
from tests.reference.random_models import random_weights
from fedgram.automata.model import NGramModel
from fedgram.core.random import stream_key, uniform_at
from fedgram.distill import gpu_cased_counting, gpu_counting
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.tensor_cased_counting import TensorCasing, Visits, add_visits
from fedgram.text.vocabulary import Vocabulary
from fedgram.distill.tensor_counting import TensorTopology, add_rows
from fedgram.neural.gpu import sampling as gpu_sampling
from fedgram.neural.decoder import RecurrentDecoder
from fedgram.neural.drawing import draw_in_tensors
from fedgram.neural.sampling import walk

CPU = torch.device("cpu")
key, alive = stream_key(5, "sample"), torch.tensor([0, 3, 4, 700])
for position in (0, 1, 6, 7, 30):
    u = gpu_sampling.uniforms(key, 11, alive, alive * 0 + position)
    assert u.tolist() == [uniform_at(key, 11 + i, position) for i in alive.tolist()]

for seed, layers in ((1, 1), (2, 2)):
    network = tiny_network(seed, words=270, layers=layers)
    plain, kernels = RecurrentDecoder(network, CPU), gpu_sampling.KernelDecoder(network, CPU)
    walks = (
        walk(plain, range(8), seed=seed, max_length=3, draw=draw_in_tensors),
        walk(kernels, range(8), seed=seed, max_length=3, draw=gpu_sampling.draw_in_kernels),
    )
    tiles = 0
    for a, b in zip(*walks, strict=True):
        assert torch.equal(a.label, b.label) and torch.equal(a.sample, b.sample)
        torch.testing.assert_close(a.entropy, b.entropy, atol=1e-4, rtol=0.0)
        torch.testing.assert_close(b.probabilities(270), a.p, atol=1e-6, rtol=1e-4)
        assert b.fixed[:, 270:].count_nonzero() == 0 and torch.equal(b.fixed, b.fixed.round())
        tiles += 1
    assert tiles > 2

rng = np.random.default_rng(3)
for case in (0, 3):
    topology = TensorTopology(random_topology(rng, order=1 + case, words=290, ngrams=400), 300, CPU)
    rows = 150
    p = (torch.rand(rows, 300) ** 9 * 2.0**34).round()
    times, q = torch.randint(0, 4, (rows,)), torch.randint(0, len(topology.backoff), (rows,))
    arcs = int(topology.cost(q).sum())
    want, found = torch.zeros(2, len(topology.key), dtype=torch.int64)
    add_rows(p, times, q, arcs, topology, want)
    gpu_counting.add_rows(p, times, q, topology, found)
    assert want.count_nonzero() > 290 and torch.equal(want, found)

LETTERS = [a + b for a in "abcdefghijklm" for b in "nopqrstuvwxyz"]
labels = Vocabulary.of(LETTERS)
words = Vocabulary.of([w for word in LETTERS for w in (word, word.title(), word.upper())][:480])
for seed in (0, 1):
    random = random_weights(rng, random_topology(rng, words=480, order=3, ngrams=1500), 480)
    casing = casing_of(Capitalizer(NGramModel(random.topology, words, random.log_weight, random.log_backoff)), labels)
    c, V = TensorCasing(casing, CPU), len(casing.vocabulary)
    t = TensorTopology(random_topology(rng, order=3, words=V - 3, ngrams=1500), V, CPU)
    p = (torch.rand(9, len(labels)) ** 9 * 2.0**34).round()
    visits = Visits(torch.randint(0, 9, (60,)), torch.randint(0, len(c.backoff), (60,)),
                    torch.randint(0, len(t.backoff), (60,)), torch.randint(1, 4, (60,)))
    sums = [(torch.zeros(len(t.key), dtype=torch.int64), torch.zeros(V, dtype=torch.int64)) for _ in range(2)]
    add_visits(p, visits, t, c, *sums[0])
    gpu_cased_counting.add_visits(p, visits, t, c, *sums[1])
    assert c.depth == 2 and all(want.count_nonzero() > 20 for want in sums[0])
    assert all(torch.equal(want, found) for want, found in zip(*sums))
    ratios = c.ratios(visits.a[:, None].expand(-1, V), torch.arange(V).expand(60, -1))
    assert (ratios != c.base).any(1).sum() > 20
"""


def test_the_kernels_sample_and_count_as_the_tensor_operations_do() -> None:
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
