"""Differential privacy: noise for the sums of rounds, correlated noise for training, and accounting in one ledger."""
