"""From a neural model to n-gram models: capitalisation, sampling and approximation."""
