"""Counting a text's n-grams on a topology, spelled out: one label after the other, by n-grams as tuples."""

from collections import Counter

from fedgram.automata.build import ngrams_of
from fedgram.automata.topology import Topology
from fedgram.core.arrays import Ragged
from fedgram.text.vocabulary import BOS, EOS

NGram = tuple[int, ...]


def ngrams(topology: Topology) -> list[NGram]:
    """The n-grams of all arcs, in their order."""
    return [tuple(row.tolist()) for row in ngrams_of(topology)]


def longest_reads(topology: Topology, sentences: Ragged) -> Counter[NGram]:
    """C(x, q): every label belongs to the longest of the topology's n-grams that ends with it."""
    known, counts = set(ngrams(topology)), Counter[NGram]()
    for sentence in sentences:
        text = (BOS, *sentence.tolist(), EOS)
        for end in range(2, len(text) + 1):
            fits = [text[begin:end] for begin in range(end) if text[begin:end] in known]
            if fits:
                counts[fits[0]] += 1
    return counts


def all_occurrences(topology: Topology, sentences: Ragged) -> Counter[NGram]:
    """S(x, q): how often each of the topology's n-grams stands in the text."""
    known, counts = set(ngrams(topology)), Counter[NGram]()
    for sentence in sentences:
        text = (BOS, *sentence.tolist(), EOS)
        for end in range(2, len(text) + 1):
            counts.update(text[begin:end] for begin in range(end) if text[begin:end] in known)
    return counts
