"""Synthetic users: phrase grammars, and typists who type sentences from them."""
