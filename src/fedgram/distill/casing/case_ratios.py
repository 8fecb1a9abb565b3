"""Case ratios: how likely each variant of a case class is at a state of the cased model A_W.

    r(y|q) = p_cap(y|q) / Σ_{y': u(y') = u(y)} p_cap(y'|q),

where p_cap is A_W. If no variant of the class has a probability above the effective zero e^-99 at q, the ratio is that
of the unigrams. If they have none either, all variants have the same ratio. Paper: §5.
"""

import numpy as np

from fedgram.automata.model import MIN_LOG
from fedgram.automata.scoring import WeightedArcs, step_on
from fedgram.core.arrays import FloatArray, IntArray
from fedgram.core.jit import kernel
from fedgram.distill.casing.case_classes import ClassArrays


@kernel
def pair_log_ratios(arcs: WeightedArcs, classes: ClassArrays, states: IntArray, word_ids: IntArray) -> FloatArray:
    """Log r(y|q) of pairs of a state and a word."""
    result = np.zeros(len(word_ids))
    for i in range(len(word_ids)):
        u = classes.uncased_id[word_ids[i]]
        variants = classes.variant[classes.first[u] : classes.first[u + 1]]
        if len(variants) > 1:
            result[i] = _class_log_ratios(arcs, states[i], variants)[np.searchsorted(variants, word_ids[i])]
    return result


@kernel
def update_ratios(arcs: WeightedArcs, classes: ClassArrays, q: int, ratio: FloatArray) -> None:
    """Change the ratios of the unigrams into those of q; only classes read on q's backoff path can differ."""
    at = q
    while at > 0:
        for e in range(arcs.first_arc[at], arcs.first_arc[at + 1]):
            u = classes.uncased_id[arcs.label[e]]
            variants = classes.variant[classes.first[u] : classes.first[u + 1]]
            if len(variants) > 1:
                ratio[variants] = np.exp(_class_log_ratios(arcs, q, variants))
        at = arcs.backoff[at]


@kernel
def _class_log_ratios(arcs: WeightedArcs, q: int, variants: IntArray) -> FloatArray:
    """Log r(y|q) of the variants of one class."""
    log_p = np.array([step_on(arcs, q, y)[0] for y in variants])
    if log_p.max() <= MIN_LOG:
        log_p = np.array([step_on(arcs, 0, y)[0] for y in variants])
    if log_p.max() <= MIN_LOG:
        log_p[:] = 0.0
    log_p -= log_p.max()
    log_p -= np.log(np.exp(log_p).sum())
    return log_p
