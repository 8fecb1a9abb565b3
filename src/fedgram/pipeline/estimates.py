"""How long the long stages may take before they have ever run: operations by speed, give or take a factor of 2.

Training costs about 6 operations per weight and token, sampling 2. The speeds on a CPU were measured with the demo's
networks on the cores of an ordinary server, those on a GPU with W_30K on an H200. Stages of n-gram models and text are
not estimated: they take seconds to minutes.
"""

from math import ceil
from pathlib import Path
from typing import NamedTuple

from fedgram.core.compute import Compute
from fedgram.neural.model import PRESETS
from fedgram.pipeline.config import RunConfig
from fedgram.pipeline.model_names import ARCHITECTURE
from fedgram.training.options import FedAvgOptions, PretrainingOptions

_SENTENCE = 9  # words, its end included
_DEVICE_SENTENCES = 25  # on a usual device
_PIECES_PER_WORD = 1.4
_BYTES_PER_WORD = 6


class _Speeds(NamedTuple):
    """Operations per second: central training, federated training, and sampling."""

    pretraining: float
    training: float
    sampling: float


_GPU = _Speeds(1e13, 5e12, 3e13)


def _cpu(cores: int) -> _Speeds:
    """The speeds of several cores; central training uses one."""
    return _Speeds(3e10, 2e10 * cores, 3e10 * cores)


def estimate_seconds(config: RunConfig, compute: Compute) -> dict[str, float]:
    """Seconds by stage, of those that can be estimated."""
    from fedgram.neural.torch_devices import choose_torch_device

    on_gpu = choose_torch_device(compute.torch_device).type == "cuda"
    c, speeds, result = config, _GPU if on_gpu else _cpu(compute.cores), dict[str, float]()
    text = _supplement_words(c)
    for what, own in (("words", c.words), ("pieces", c.pieces)) if c.pieces.use else (("words", c.words),):
        weights, tokens = PRESETS[own.preset].shape.parameters(), 1.0 if what == "words" else _PIECES_PER_WORD
        if own.network is None:
            result[f"pretrain_{what}"] = _pretraining(own.pretraining, weights, text * tokens) / speeds.pretraining
            result[f"train_{what}"] = _training(own.training, weights, tokens) / speeds.training
        samples = c.distillation.samples + (c.distillation.infer_samples if what == "words" else 0)
        result[f"distill_{what}"] = 2 * weights * samples * _SENTENCE * tokens / speeds.sampling
        if c.paper_way.run:
            again = c.paper_way.samples or c.distillation.samples
            if what == "words":  # counted once with each p_cap, besides the samples of the topology
                again = 2 * again + c.distillation.infer_samples
            result[f"paper_{what}"] = 2 * weights * again * _SENTENCE * tokens / speeds.sampling
    if c.pieces.use and c.architectures.run:
        result |= {f"{ARCHITECTURE}{preset}": _curve(c, preset, text, speeds) for preset in c.architectures.presets}
    return {stage: float(ceil(seconds)) for stage, seconds in result.items()}


def _supplement_words(c: RunConfig) -> float:
    if c.population.supplement is None:
        return c.population.supplement_sentences * _SENTENCE
    size = Path(c.population.supplement).stat().st_size
    return size / _BYTES_PER_WORD * (3 if c.population.supplement.endswith(".gz") else 1)


def _pretraining(options: PretrainingOptions, weights: int, tokens: float) -> float:
    return 6 * weights * options.epochs * tokens


def _training(options: FedAvgOptions, weights: int, tokens_per_word: float) -> float:
    devices = options.rounds * options.devices_per_round * options.epochs
    return 6 * weights * devices * min(options.max_sentences, _DEVICE_SENTENCES) * _SENTENCE * tokens_per_word


def _curve(c: RunConfig, preset: str, text: float, speeds: _Speeds) -> float:
    """Seconds for the training of one network of Figure 4."""
    weights, own = PRESETS[preset].shape.parameters(), c.pieces
    rounds = c.architectures.rounds / own.training.rounds
    trained = rounds * _training(own.training, weights, _PIECES_PER_WORD) / speeds.training
    return trained + _pretraining(own.pretraining, weights, text * _PIECES_PER_WORD) / speeds.pretraining
