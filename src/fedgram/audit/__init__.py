"""Attacks on our own models: planted secrets, lower bounds on ε, membership, and what single updates show."""
