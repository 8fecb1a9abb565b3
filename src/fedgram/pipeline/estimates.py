"""How long the long stages may take on CPU cores, before they have ever run: multiplications by speed, give or take 2.

Training costs about 6 operations per weight and token, sampling 2. The speeds were measured with the demo's networks on
the cores of an ordinary server. Stages of n-gram models and text are not estimated: they take seconds to minutes.
"""

from math import ceil

from fedgram.neural.model import PRESETS
from fedgram.pipeline.config import RunConfig

_TRAINING_SPEED, _SAMPLING_SPEED = 5e9, 3e9  # operations per second and core
_SENTENCE = 9  # words, its end included
_DEVICE_SENTENCES = 25  # on a usual device
_PIECES_PER_WORD = 1.4


def estimate_seconds(config: RunConfig, *, workers: int) -> dict[str, float]:
    """Seconds by stage, of those that can be estimated."""
    c, result = config, {}
    networks: list[tuple[str, str, str | None, float]] = [("words", c.words.preset, c.words.network, 1.0)]
    if c.pieces.use:
        networks.append(("pieces", c.pieces.preset, c.pieces.network, _PIECES_PER_WORD))
    for what, preset, given, tokens_per_word in networks:
        cost, tokens = PRESETS[preset].shape.parameters(), _SENTENCE * tokens_per_word
        if given is None:
            read = c.pretraining.epochs * c.population.supplement_sentences * tokens
            if c.population.supplement is None:
                result[f"pretrain_{what}"] = 6 * cost * read / _TRAINING_SPEED
            devices = c.training.rounds * c.training.devices_per_round * c.training.epochs
            read = devices * min(c.training.max_sentences, _DEVICE_SENTENCES) * tokens
            result[f"train_{what}"] = 6 * cost * read / _TRAINING_SPEED / workers
        samples = c.distillation.samples + (c.distillation.infer_samples if what == "words" else 0)
        result[f"distill_{what}"] = 2 * cost * samples * tokens / _SAMPLING_SPEED / workers
    return {stage: float(ceil(seconds)) for stage, seconds in result.items()}
