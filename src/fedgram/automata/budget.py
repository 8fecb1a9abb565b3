"""How large a model may be."""

from dataclasses import dataclass

from fedgram.automata.model import NGramModel
from fedgram.automata.prune import prune_to_size
from fedgram.core.settings import AtLeastOne, Settings, setting


@dataclass(frozen=True, slots=True)
class Budget(Settings):
    """The size limit of every n-gram model of a run, baselines included."""

    max_ngrams: AtLeastOne = setting(1_500_000, "Maximum number of n-grams per model.", formerly="ngrams")
    max_words: AtLeastOne = setting(200_000, "Maximum number of words per model.", formerly=("words", "max_unigrams"))

    def within(self, model: NGramModel, *, expected_histories: bool = False) -> NGramModel:
        """The model, pruned if it is larger than the budget, which it then fills exactly.

        See `relative_entropy_scores` for `expected_histories`.
        """
        return prune_to_size(model, self.max_ngrams, split_ties=True, expected_histories=expected_histories)
