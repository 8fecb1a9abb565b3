"""A network's distributions over the next word, sentence by sentence."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from fedgram.core.arrays import Ragged
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape, hidden_outputs, logits
from fedgram.text.vocabulary import BOS

_POSITIONS = 2048  # computed at once


def next_word_log_probs(shape: ModelShape, weights: Weights, sentences: Ragged) -> Iterator[NDArray[np.float32]]:
    """Rows of log-probabilities: for each sentence, in order, one before each word and one after the last."""
    device, lengths = weights["embedding"].device, np.diff(sentences.offsets)
    first = 0
    while first < len(sentences):
        count, longest = 1, int(lengths[first]) + 1
        while first + count < len(sentences):
            longest_then = max(longest, int(lengths[first + count]) + 1)
            if (count + 1) * longest_then > _POSITIONS:
                break
            count, longest = count + 1, longest_then
        chosen = lengths[first : first + count]
        words = np.full((count, longest), BOS, np.int64)
        inside = np.arange(longest - 1) < chosen[:, None]
        words[:, 1:][inside] = sentences.values[sentences.offsets[first] : sentences.offsets[first + count]]
        with torch.no_grad():
            scores = logits(weights, hidden_outputs(shape, weights, torch.from_numpy(words).to(device)))
            rows = scores[torch.from_numpy(np.arange(longest) <= chosen[:, None]).to(device)].log_softmax(dim=-1)
        yield rows.float().cpu().numpy()
        first += count
