"""How well a network predicts sentences: SLL, SLL^e, perplexity, and next-word accuracy.

    SLL   = Σ_i log p(x_i | x_1 … x_{i−1}),   the mean over sentences
    SLL^e = the same, summed over the words of 𝒱 alone

All pieces of a word are summed, so that word and word-piece networks can be compared on the same sentences. Perplexity
is per symbol of the network, including `</s>`, with unknown words as `<unk>`. Accuracy is defined for word networks
only, as a share of typed words: a word outside the vocabulary counts as wrong, `<unk>` and `</s>` are never proposed,
and placeholders such as `<number>` are not typed words. Paper: §7.1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgram.core.arrays import BoolArray, FloatArray, LongArray, Ragged
from fedgram.neural.batching import reading_batches
from fedgram.neural.cell import Weights
from fedgram.neural.model import ModelShape, hidden_outputs, logits
from fedgram.neural.network import Coding
from fedgram.text.normalize import PLACEHOLDERS
from fedgram.text.population import Population
from fedgram.text.vocabulary import EOS, SPECIAL, UNK

_POSITIONS = 4096  # per batch
_SCORES_AT_ONCE = 128  # rows of scores on a CPU: few enough that the allocator reuses their memory
NO_RANK = np.iinfo(np.int64).max  # the rank of a word outside the vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class ScoredText:
    """Sentences to score.

    Attributes:
        sentences: The network's ids.
        known: For each id, whether its word is in 𝒱.
        typed: For each id, whether its word was typed, and is not a placeholder.
        words: The number of typed words.
    """

    sentences: Ragged
    known: BoolArray
    typed: BoolArray
    words: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-likelihoods per sentence, perplexity per symbol, and accuracy in per cent, which is None for word pieces."""

    sll: float
    sll_e: float
    perplexity: float
    top1: float | None
    top3: float | None
    sentences: int
    words: int


def text_to_score(coding: Coding, population: Population, clients: LongArray) -> ScoredText:
    """The sentences of these clients, ready to be scored."""
    codes, known = coding.codes(population.words), coding.is_known(population.words)
    typed = np.array([word not in PLACEHOLDERS for word in population.words], np.bool_)
    parts = [population.sentences(client) for client in clients.tolist()]
    spoken = Ragged.concatenate(parts)
    coded = codes.take(spoken.values)
    sentences = Ragged(coded.values, coded.offsets[spoken.offsets])
    word = np.repeat(spoken.values, np.diff(coded.offsets))
    return ScoredText(sentences, known[word], typed[word], int(typed[spoken.values].sum()))


def score(
    shape: ModelShape, weights: Weights, text: ScoredText, *, pieces: bool,
    on_sentences: Callable[[int], object] = lambda _: None,
) -> Scores:  # fmt: skip
    """Score a text, where the weights are; `on_sentences` is a progress callback."""
    log_prob, end, rank = judge_ids(shape, weights, text.sentences, ranks=not pieces, on_sentences=on_sentences)
    return summarize(text, log_prob, end, None if pieces else rank)


def judge_ids(
    shape: ModelShape, weights: Weights, sentences: Ragged, *, ranks: bool,
    on_sentences: Callable[[int], object] = lambda _: None,
) -> tuple[FloatArray, FloatArray, LongArray]:  # fmt: skip
    """Log p of every id, log p of every sentence's end, and if `ranks` is set the rank of every id."""
    ids = len(sentences.values)
    log_prob, end, rank = np.empty(ids), np.empty(len(sentences)), np.empty(ids, np.int64)
    for chosen, token_log_prob, token_rank, end_log_prob in _judged(shape, weights, sentences, ranks=ranks):
        at = sentences.places(chosen)
        log_prob[at], rank[at], end[chosen] = token_log_prob, token_rank, end_log_prob
        on_sentences(len(chosen))
    return log_prob, end, rank


def summarize(text: ScoredText, log_prob: FloatArray, end: FloatArray, rank: LongArray | None) -> Scores:
    """The scores of a text, from the log-probabilities and ranks of its ids and the log-probabilities of its ends."""
    sentences = max(len(text.sentences), 1)
    symbols, typed = max(len(log_prob) + len(end), 1), text.typed
    top1, top3 = (_share(rank[typed] < k) if rank is not None else None for k in (1, 3))
    sll, sll_e = float(log_prob.sum()) / sentences, float(log_prob[text.known].sum()) / sentences
    perplexity = float(np.exp(np.minimum(-(log_prob.sum() + end.sum()) / symbols, 700.0)))
    return Scores(sll, sll_e, perplexity, top1, top3, len(text.sentences), text.words)


def _share(right: BoolArray) -> float:
    return 100.0 * float(right.mean()) if len(right) else 0.0


def _judged(
    shape: ModelShape, weights: Weights, sentences: Ragged, *, ranks: bool
) -> Iterator[tuple[LongArray, FloatArray, LongArray, FloatArray]]:
    """For each batch of sentences: their numbers, log p and rank of each id, and log p of each end."""
    torch_device, lengths = weights["embedding"].device, np.diff(sentences.offsets)
    order = np.argsort(lengths, kind="stable")
    for chosen, words, inside in reading_batches(sentences, order, _POSITIONS):
        targets = np.full(words.shape, EOS, np.int64)
        targets[inside] = sentences.take(chosen).values
        with torch.no_grad():
            rows, wanted = torch.from_numpy(words).to(torch_device), torch.from_numpy(targets).to(torch_device)
            log_p, rank = _look_up(shape, weights, rows, wanted, ranks)
        yield chosen, log_p[inside], rank[inside], log_p[np.arange(len(chosen)), lengths[chosen]]


def _look_up(
    shape: ModelShape, weights: Weights, words: Tensor, targets: Tensor, ranks: bool
) -> tuple[FloatArray, LongArray]:
    """Log p of every target, and its rank: the number of more probable words."""
    hidden = hidden_outputs(shape, weights, words).flatten(0, 1)
    few = _SCORES_AT_ONCE if hidden.device.type == "cpu" else len(hidden)
    found = [
        _look_up_few(weights, *at, ranks) for at in zip(hidden.split(few), targets.flatten().split(few), strict=True)
    ]
    log_p, rank = (torch.cat(parts).view(targets.shape).cpu().numpy() for parts in zip(*found, strict=True))
    return log_p, rank


def _look_up_few(weights: Weights, hidden: Tensor, targets: Tensor, ranks: bool) -> tuple[Tensor, Tensor]:
    """The same for a few positions, [positions, N_e]."""
    scores = logits(weights, hidden.unsqueeze(0)).squeeze(0)
    wanted = scores.gather(-1, targets.unsqueeze(-1))
    log_p = (wanted.squeeze(-1) - scores.logsumexp(dim=-1)).double()
    if not ranks:
        return log_p, torch.zeros_like(targets)
    above = scores[:, len(SPECIAL) :] > wanted
    return log_p, above.sum(dim=-1).masked_fill(targets == UNK, NO_RANK)
