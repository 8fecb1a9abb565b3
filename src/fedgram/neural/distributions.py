"""A network's probability distributions of the next word, sentence by sentence."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from fedgram.core.arrays import Ragged
from fedgram.neural.batching import reading_batches
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape, hidden_outputs, logits

_POSITIONS = 2048  # per batch
_POSITIONS_ON_CPU = 256  # per batch: few enough that the allocator reuses the memory of their scores


def next_word_log_probs(shape: ModelShape, weights: Weights, sentences: Ragged) -> Iterator[NDArray[np.float32]]:
    """Log-probabilities by row: for each sentence, in order, a row before each word and one after the last."""
    torch_device, lengths = weights["embedding"].device, np.diff(sentences.offsets)
    at_once = _POSITIONS_ON_CPU if torch_device.type == "cpu" else _POSITIONS
    for chosen, words, _ in reading_batches(sentences, np.arange(len(sentences)), at_once):
        asked = torch.from_numpy(np.arange(words.shape[1]) <= lengths[chosen][:, None]).to(torch_device)
        with torch.no_grad():
            scores = logits(weights, hidden_outputs(shape, weights, torch.from_numpy(words).to(torch_device)))
            rows = scores[asked].log_softmax(dim=-1)
        yield rows.float().cpu().numpy()
