"""N-gram models as backoff automata: building, smoothing, pruning, merging, approximating, scoring, sampling.

Everything is arrays: a `Topology` in compressed rows, and weights beside it. No networks here.
"""
