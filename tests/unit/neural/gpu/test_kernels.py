"""The GPU kernels compute the same as their references. They run in Triton's interpreter, without a GPU."""

import subprocess
import sys

import pytest

COMPARE = """
import numpy as np, torch
from fedgram.core.arrays import Ragged
from fedgram.neural import explicit_step
from fedgram.neural.gpu import kernels as gpu_kernels
from fedgram.neural.batching import pack_clients
from fedgram.neural.model import ModelShape, initial_weights

torch.use_deterministic_algorithms(True)  # fills new memory with NaN
gpu_kernels.PRECISION, gpu_kernels._PROGRAMS = "ieee", {programs}
shape = ModelShape({words}, {width}, 20, layers={layers})
rng = np.random.default_rng(0)
sentences = [[rng.integers(3, {words}, rng.integers(1, 9)).tolist() for _ in range({sentences})] for _ in range(2)]
packed = pack_clients([Ragged.from_rows(s) for s in sentences], rows={rows}, length=9)
start = {{name: torch.stack([w, w * 1.1]) for name, w in initial_weights(shape, seed=1).items()}}
stacks = []
for inner in (explicit_step, gpu_kernels):
    stack = {{name: w.clone() for name, w in start.items()}}
    for t in range(min({steps}, packed.words.shape[1])):
        words, targets = (torch.from_numpy(a).long().mT.contiguous()[:, t] for a in (packed.words, packed.targets))
        loss = explicit_step.descend(shape, stack, words, targets, torch.tensor([0.1]), inner)
    stacks.append({{**stack, "loss": loss}})
for name in stacks[0]:
    assert name == "loss" or not torch.equal(stacks[0][name], start[name]), name
    torch.testing.assert_close(stacks[1][name], stacks[0][name], rtol=1e-4, atol=1e-5, msg=lambda m: name + m)
    changed, first = stacks[0][name].reshape(2, -1), stacks[1][name][0].flatten() * 0.9
    squares = gpu_kernels.change_squares(changed, first)
    torch.testing.assert_close(squares.float(), (changed - first).square().sum(1), rtol=1e-5, atol=1e-6)
    spread = torch.zeros_like(changed)
    gpu_kernels.spread(spread, first)
    assert torch.equal(spread, first.expand_as(spread))
gpu_kernels.PRECISION = "bf16"
matrix = torch.randn(2, 5, 13)
prepared = gpu_kernels.prepare(matrix)
assert prepared.stride(1) % 16 == 0 and prepared.dtype == torch.bfloat16
torch.testing.assert_close(prepared.float(), matrix, rtol=1e-2, atol=0.0)
gpu_kernels.PRECISION = "ieee"
padded = torch.nn.functional.pad(matrix, (0, 3))[:, :, :13]
for x, weight in ((torch.randn(2, 3, 5), padded), (torch.randn(2, 3, 13), padded.mT)):
    wide, scale = gpu_kernels.room(x, *x.shape).copy_(x), torch.rand(2, 3)
    out = gpu_kernels.room(x, 2, 3, weight.shape[2]).fill_(1.0)
    gpu_kernels.multiply(wide, weight, scale, out, add=True)
    torch.testing.assert_close(out, 1.0 + scale.unsqueeze(-1) * (x @ weight), rtol=1e-4, atol=1e-5)
"""


CASES = [
    {"words": 70, "rows": 2, "programs": 1, "layers": 2, "sentences": 5, "steps": 2, "width": 12},
    pytest.param(
        {"words": 70, "rows": 5, "programs": 3, "layers": 1, "sentences": 12, "steps": 2, "width": 24},
        marks=pytest.mark.slow,
    ),
    {"words": 200, "rows": 3, "programs": 9, "layers": 1, "sentences": 5, "steps": 1, "width": 44},
    pytest.param(
        {"words": 20, "rows": 16, "programs": 1024, "layers": 1, "sentences": 18, "steps": 1, "width": 20},
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['words']} words, {case['rows']} rows")
def test_the_kernels_compute_what_the_plain_functions_do(case: dict[str, int]) -> None:
    script = COMPARE.format(**case)
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
