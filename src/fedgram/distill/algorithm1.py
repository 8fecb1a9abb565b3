"""Algorithm 1: eight n-gram models from two networks and a supplemental corpus, and the models for the keyboard.

    R_W, R_P   uncased networks of words and of word pieces, trained by FederatedAveraging
    A_W        the cased n-gram model of the supplemental corpus

    A_e        the network on the topology of A_W
    A_i        on the topology that the network of words infers from its own samples
    A_m        A_e and A_i interpolated
    A_r        the network on the topology of A_m

each by words (W) and by word pieces (P). The final models join one of them with the words' federated frequencies.
A_W gives the capitals throughout. Every model keeps to the budget. Paper: Algorithm 1, §3.3 and §7.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedgram.automata.budget import Budget
from fedgram.automata.merge import merge, replace_unigrams, split_unknown
from fedgram.automata.model import NGramModel
from fedgram.distill.casing.capitalization import Capitalizer, capitalize_unigrams
from fedgram.distill.nn2wfa import NN2WFA
from fedgram.distill.sample_approx import Fit


@dataclass(frozen=True, slots=True, eq=False)
class Approximations:
    """The four models of one network, and how the three that were fitted fit.

    `wide` is the uncased model on all n-grams that were counted, before any budget; devices can choose among them
    (`distill/refit`).
    """

    external: NGramModel
    inferred: NGramModel
    merged: NGramModel
    refitted: NGramModel
    fits: Mapping[str, Fit]
    wide: NGramModel | None = None

    def by_letter(self) -> dict[str, NGramModel]:
        """A_e, A_i, A_m, A_r."""
        return {"e": self.external, "i": self.inferred, "m": self.merged, "r": self.refitted}

    def __repr__(self) -> str:
        sizes = ", ".join(f"A_{letter} {model.topology.arcs:,}" for letter, model in self.by_letter().items())
        return f"Approximations({sizes} n-grams)"

    def warnings(self) -> dict[str, str]:
        """What people should know of the fits, by letter."""
        return {letter: fit.warning for letter, fit in self.fits.items() if fit.warning}


def generate(nn2wfa: NN2WFA, external: NGramModel, inferred: NGramModel, budget: Budget) -> Approximations:
    """Gen(R, A_W, A_{W_i}, NN2WFA): `inferred` has the self-inferred topology, or is A_{W_i}."""
    e = nn2wfa(external)
    i = nn2wfa(inferred)
    A_e, A_i = budget.within(e.model), budget.within(i.model)
    A_m = budget.within(merge(A_e, A_i))
    r = nn2wfa(A_m)
    A_r = budget.within(r.model)
    return Approximations(A_e, A_i, A_m, A_r, {"e": e, "i": i, "r": r})


def final_models(
    model: NGramModel, frequency: Mapping[str, float], capitalizer: Capitalizer, budget: Budget
) -> dict[str, NGramModel]:
    """The model joined with the federated frequencies of uncased words, in three ways.

    - `replaced`: the frequencies take the place of the unigrams,
    - `interpolated`: they are mixed with the unigrams, half and half,
    - `tail`: they divide `<unk>` among the words that the model does not have (if it has `<unk>`).

    The most frequent words come in first, as many as the budget allows.
    """
    cased = _most_frequent(model, capitalize_unigrams(frequency, capitalizer), budget)
    joined = {
        "replaced": replace_unigrams(model, cased),
        "interpolated": replace_unigrams(model, cased, weight=0.5),
    }
    if model.has_unknown:
        joined["tail"] = split_unknown(model, cased)
    return {name: budget.within(final) for name, final in joined.items()}


def _most_frequent(model: NGramModel, frequency: Mapping[str, float], budget: Budget) -> dict[str, float]:
    known = {word: f for word, f in frequency.items() if word in model.vocabulary}
    others = sorted((word for word in frequency if word not in known), key=lambda word: (-frequency[word], word))
    room = max(budget.max_words - len(model.vocabulary), 0)
    return known | {word: frequency[word] for word in others[:room]}
