"""Networks of word pieces in an evaluation: they have likelihoods of words, but suggest none.

The probability of a word is the product of those of its pieces. The network's words are 𝒱, which it carries, so that
SLL^e and perplexity compare it with networks of words and n-gram models. Top-k accuracy and saved taps have no count,
and are shown as missing. A word is out of vocabulary only if it cannot be spelled with the pieces.
"""

from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgram.core.arrays import LongArray, Ragged, sum_by
from fedgram.core.lazy import lazy
from fedgram.evaluate.forms import WordForms
from fedgram.evaluate.likelihood import perplexity, sentence_log_likelihood
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.predictor import SUGGESTIONS, Judgement
from fedgram.evaluate.typed_text import TypedText, TypedTextReader
from fedgram.text.population import Population
from fedgram.text.vocabulary import UNK

if TYPE_CHECKING:
    from fedgram.neural.network import Network


class PieceScorer:
    """A network of word pieces, ready to score text."""

    def __init__(self, network: "Network", *, cased: bool) -> None:
        self.forms = WordForms.of(network.coding.known, cased=cased)
        self._coding = network.coding
        torch_device = lazy(".neural.torch_devices:choose_torch_device")("auto", cpu_threads=None)
        weights = lazy(".neural.network:as_tensors")(network.weights, torch_device)
        self._judge: Callable[..., Any] = lambda sentences: lazy(".neural.scoring:judge_ids")(
            network.shape, weights, sentences, ranks=False
        )

    def measurer(
        self, population: Population, shared: Set[str] | None
    ) -> Callable[[LongArray], tuple[TypedText, Mapping[str, Measure]]]:
        """What measures users of a population: their text, and every measure by name."""
        reader, codes = TypedTextReader(population, self.forms, shared), self._coding.codes(population.words)

        def measured(clients: LongArray) -> tuple[TypedText, Mapping[str, Measure]]:
            text = reader.text(clients)
            typed = Ragged.concatenate([population.sentences(client) for client in clients.tolist()])
            return text, self._measures(text, codes, typed)

        return measured

    def _measures(self, text: TypedText, codes: Ragged, typed: Ragged) -> Mapping[str, Measure]:
        coded = codes.take(typed.values)
        log_prob, end, _ = self._judge(Ragged(coded.values, coded.offsets[typed.offsets]))
        word, words = np.repeat(np.arange(len(typed.values)), np.diff(coded.offsets)), len(typed.values)
        by_word = sum_by(word, log_prob, words)
        unknown = sum_by(word, (coded.values == UNK).astype(float), words) > 0
        judgement = Judgement(by_word, np.full(words, SUGGESTIONS, np.int32), text.letters, end)
        none = Measure(np.zeros(text.users), np.zeros(text.users))
        counts = sum_by(text.user, text.is_word.astype(float), text.users)
        return {
            "top1": none, "top3": none,
            "oov_rate": Measure(sum_by(text.user, (unknown & text.is_word).astype(float), text.users), counts),
            "perplexity": perplexity(text, judgement),
            "sll": sentence_log_likelihood(text, judgement, with_oov=True),
            "sll_e": sentence_log_likelihood(text, judgement, with_oov=False),
            "keystroke_savings": none,
        }  # fmt: skip
