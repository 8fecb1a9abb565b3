"""Capitals: cased words, sentences and n-grams from uncased ones. Paper: §4.2 and §6."""
