"""N-gram models as backoff automata: building, smoothing, pruning, merging, approximating, scoring and sampling.

A model is a set of arrays: a `Topology` in compressed sparse rows, and its weights. Neural networks are elsewhere.
"""
