"""Federated learning of n-gram language models for keyboards.

The layers, lowest first: `core`, `text`, `automata`, `formats`, `cli`. Each imports only those below it.
"""

__version__ = "0.1.0"
