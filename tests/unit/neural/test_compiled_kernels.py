"""The GPU kernels compile for a Hopper GPU, to the instructions that they were written for; no GPU is needed.

The functions that launch the kernels take a step of W_30K. Here a launch compiles the kernel for its arguments, as it
would on a GPU, and keeps the machine code; it computes nothing.
"""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

COMPILE = """
import json, sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Hopper:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


driver.set_active(Hopper())
made, run = {}, JITFunction.run


def compile_only(self, *args, grid, warmup, **kwargs):
    kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
    made.setdefault(self.__name__, []).append({"ptx": kernel.asm["ptx"], "ttgir": kernel.asm["ttgir"]})


JITFunction.run = compile_only
from types import SimpleNamespace
from fedgram.distill import gpu_cased_counting, gpu_counting
from fedgram.neural import explicit_step
from fedgram.neural.gpu import kernels as gpu_kernels
from fedgram.neural.gpu import sampling as gpu_sampling
from fedgram.neural.model import PRESETS, initial_weights
from fedgram.neural.network import Network, as_arrays, word_coding

shape = PRESETS[sys.argv[1]].shape
weights = initial_weights(shape, seed=1)
stack = {name: torch.stack([w, w]) for name, w in weights.items()}
words = torch.randint(3, shape.words, (2, 12, 8))
with torch.no_grad():
    explicit_step.descend(shape, stack, words, words, torch.tensor([0.1]), gpu_kernels)
    for name, w in stack.items():
        gpu_kernels.change_squares(w.flatten(1), weights[name].flatten())
        gpu_kernels.spread(w, weights[name])
    total = torch.zeros(weights["embedding"].numel(), dtype=torch.int64)
    gpu_kernels.add_changes(total, stack["embedding"].flatten(1), weights["embedding"].flatten(), torch.ones(2), 1.0)
    coding = word_coding({f"w{k}": 1.0 for k in range(shape.words)}, shape.words)
    network = Network(shape, as_arrays(weights), coding, {})
    decoder = gpu_sampling.KernelDecoder(network, torch.device("cpu"))
    _, scores = decoder.step(decoder.initial(5), torch.arange(5))
    gpu_sampling.draw_in_kernels(scores, torch.arange(5), torch.rand(5, dtype=torch.float64), None)

n, x = torch.zeros(9, dtype=torch.int64), torch.zeros(9, dtype=torch.float64)
arcs = SimpleNamespace(first_arc=n, label=n, backoff=n, unigrams=1, depth=3)
casing = SimpleNamespace(uncased=n, base=x, first=n, word=n, ratio=x, backoff=n, depth=2)
gpu_counting.add_rows(torch.zeros(4, 256), n[:4], n[:4], arcs, n)
gpu_cased_counting.add_visits(torch.zeros(4, 256), (n, n, n, n), arcs, casing, n, n)
print(json.dumps(made))
"""


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    script = [sys.executable, "-c", COMPILE, "W_30K"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def test_every_kernel_of_a_step_compiles(compiled: dict[str, Any]) -> None:
    softmax = {"attend_kernel", "step_kernel", "subtract_rows_kernel", "multiply_kernel"}
    cell = {"gates_forward_kernel", "gates_backward_kernel", "vector_gradients_kernel"}
    ends = {"spread_kernel", "change_squares_kernel", "add_changes_kernel"}
    counting = {"_add_columns_kernel", "_add_paths_kernel", "_add_changes_kernel"}
    sampling = {"_linear_kernel", "_distribute_kernel", "_draw_kernel"}
    assert compiled.keys() == softmax | cell | ends | sampling | counting
    assert len(compiled["_add_paths_kernel"]) == 2, "without and with capitals"


@pytest.mark.parametrize("name", ["attend_kernel", "step_kernel", "_linear_kernel"])
def test_large_products_use_the_tensor_cores(compiled: dict[str, Any], name: str) -> None:
    assert all("wgmma.mma_async" in kernel["ptx"] for kernel in compiled[name])


@pytest.mark.parametrize("name", ["attend_kernel", "step_kernel"])
def test_a_product_is_waited_for_before_its_registers_change(compiled: dict[str, Any], name: str) -> None:
    """Products that were still running at the end of a loop's iteration once gave NaN on a GPU."""
    for kernel in compiled[name]:
        products = re.findall(r"warp_group_dot(?:_wait.*pendings = (\d+))?\b", kernel["ttgir"])
        assert products == ["", "0"] * (len(products) // 2)


@pytest.mark.parametrize("name", ["multiply_kernel", "attend_kernel", "step_kernel", "_linear_kernel"])
def test_matrices_are_read_in_wide_pieces(compiled: dict[str, Any], name: str) -> None:
    """Matrices are loaded 16 bytes at a time; a weight of two bytes is never loaded alone."""
    for kernel in compiled[name]:
        assert "ld.global.b16" not in kernel["ptx"]
        wide = len(re.findall(r"cp\.async\.c[ag]\.shared\.global.*0x10|ld\.global(?:\.\w+)?\.v4", kernel["ptx"]))
        assert wide >= 6
