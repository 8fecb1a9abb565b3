"""The KL minimum by a general optimiser over all states at once; knows nothing of decoupling or fixed points."""

import numpy as np
from scipy.optimize import minimize

from fedgram.automata.counting import TopologyCounts
from fedgram.automata.topology import arc_sources, backoff_arcs
from fedgram.core.arrays import FloatArray, sum_by


def joint_minimum(counts: TopologyCounts) -> float:
    """Min over all models of −Σ C(x,q)·log w_q[x] − Σ C(φ,q)·log w_q[φ]."""
    t = counts.topology
    source, lower = arc_sources(t), backoff_arcs(t)
    higher = np.flatnonzero(lower >= 0)
    inner = np.arange(1, t.states)

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        raw, raw_phi = np.exp(theta[: t.arcs]), np.exp(theta[t.arcs :])
        raw_phi[0] = 0.0
        total = sum_by(source, raw, t.states) + raw_phi
        y, y_phi = raw / total[source], raw_phi / total
        room = 1.0 - sum_by(source[higher], y[lower[higher]], t.states)
        room[0] = 1.0
        value = -float(counts.arc @ np.log(y))
        value -= float(counts.backoff[inner] @ np.log(y_phi[inner] / room[inner]))
        g, g_phi = -counts.arc / y, np.zeros(t.states)
        g_phi[inner] = -counts.backoff[inner] / y_phi[inner]
        g -= sum_by(lower[higher], (counts.backoff / room)[source[higher]], t.arcs)
        mean = sum_by(source, g * y, t.states) + g_phi * y_phi
        return value, np.concatenate([y * (g - mean[source]), y_phi * (g_phi - mean)])

    start = np.log(np.concatenate([counts.arc + 1e-3, counts.backoff + 1e-3]))
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-16, "gtol": 1e-12, "maxcor": 40}
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return float(best.fun) / counts.sentences
