"""Algorithm 1 exactly as the paper prints it, beside `distillation.distill`.

NN2WFA has one n-gram model as its argument, and passes it to CapSampleApprox twice: as the topology and as p_cap. Only
a self-inferred topology is not that of the argument. So p_cap is the model that each line names:

    A_{W_e} = CapSampleApprox(R_W, A_W, A_W)       A_{P_e} = CapSampleApprox(A_W^u, A_W, A_W)
    A_{W_i} = CapSampleApprox(R_W, ∅, A_W)         A_{P_i} = CapSampleApprox(A_W^u, A_{W_i}, A_{W_i})
    A_{W_m} = Interpolate(A_{W_e}, A_{W_i})        A_{P_m} = Interpolate(A_{P_e}, A_{P_i})
    A_{W_r} = CapSampleApprox(R_W, A_{W_m}, A_{W_m})   A_{P_r} = CapSampleApprox(A_W^u, A_{P_m}, A_{P_m})

A_W^u is the uncased word model of R_P on the lower-cased topology. The network of words is counted with capitals. Its
counts depend on p_cap, so it is counted twice: once with A_W, for A_{W_e} and A_{W_i}, and once with A_{W_m}. Samples
are capitalised by the best path of p_cap alone. `distill` differs in three ways: its p_cap is always A_W, its
capitaliser has rules of our own, and it may count a network of words without capitals first. Paper: Algorithm 1.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fedgram.automata.budget import Budget
from fedgram.automata.merge import merge
from fedgram.automata.model import NGramModel
from fedgram.core.settings import chosen
from fedgram.distill.algorithm1 import Approximations
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.distillation import DistillationOptions, Running, normalized, prepare_nn2wfa
from fedgram.distill.nn2wfa import NN2WFA, PieceNN2WFA, WordNN2WFA
from fedgram.distill.sample_approx import Fit
from fedgram.distill.source import SourceModel
from fedgram.distill.sources import Source, as_source, pieces_of
from fedgram.text.wordpieces import WordPieces

CapSampleApprox = Callable[[NGramModel, NGramModel], Fit]  # (topology, p_cap) → the model


def distill_as_printed(
    source: Source,
    external: NGramModel,
    options: DistillationOptions | None = None,
    *,
    inferred: NGramModel | None = None,
    budget: Budget | None = None,
    pieces: WordPieces | None = None,
    seed: int = 0,
    running: Running | None = None,
    **settings: Any,
) -> Approximations:
    """Gen(R, A_W, A_{W_i}, NN2WFA): A_e, A_i, A_m and A_r of one network.

    Args:
        source: A network of uncased words or of word pieces.
        external: A_W, a cased n-gram model of other text.
        options: How to sample; `uncased_first` has no effect. Its fields may be given as keywords instead.
        inferred: A_{W_i}, for a network of word pieces; without it, the topology is inferred from samples.
        budget: The size limit of every model.
        pieces: The word pieces of a source that does not carry them.
        seed: Of the samples.
        running: Threads, processes, checkpoints and progress.
    """
    options = replace(chosen(DistillationOptions, options, settings), uncased_first=False)
    running, budget = running or Running(), budget or Budget()
    model, external = as_source(source, running.compute), budget.within(normalized(external))
    given = inferred is not None
    nn2wfa, inferred = prepare_nn2wfa(
        model, external, options, inferred=inferred, budget=budget, pieces=pieces_of(model, pieces), seed=seed,
        running=running, rules=False,
    )  # fmt: skip
    cap_sample_approx = _cap_sample_approx(nn2wfa, model, external, options, seed=seed, running=running)
    e = cap_sample_approx(external, external)
    i = cap_sample_approx(inferred, inferred if given else external)
    A_e, A_i = budget.within(e.model), budget.within(i.model)
    A_m = budget.within(merge(A_e, A_i))
    r = cap_sample_approx(A_m, A_m)
    return Approximations(A_e, A_i, A_m, budget.within(r.model), {"e": e, "i": i, "r": r})


def _cap_sample_approx(
    nn2wfa: NN2WFA, source: SourceModel, external: NGramModel, options: DistillationOptions, *, seed: int,
    running: Running,
) -> CapSampleApprox:  # fmt: skip
    """CapSampleApprox of a source; `nn2wfa` counts with p_cap = A_W, or without capitals."""
    if isinstance(nn2wfa, PieceNN2WFA):
        return partial(_from_pieces, nn2wfa)

    def from_words(topology: NGramModel, p_cap: NGramModel) -> Fit:
        if p_cap is external:
            return nn2wfa(topology)
        again = replace(running, counts=running.folder / "counts_r") if running.folder else running
        counted = WordNN2WFA(
            source, Capitalizer(p_cap, rules=False), [topology], samples=options.samples, seed=seed,
            options=again.counting(source, options.samples),
        )  # fmt: skip
        return counted(topology)

    return from_words


def _from_pieces(nn2wfa: PieceNN2WFA, topology: NGramModel, p_cap: NGramModel) -> Fit:
    return nn2wfa.capitalized(topology, Capitalizer(p_cap, rules=False))
