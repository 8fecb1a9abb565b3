"""A reader for OpenFst's binary vector automata, which checks every length before using it.

OpenFst does not check its input: a damaged file aborts the whole process. So files of this type, the most common one,
are read here. The layout is little-endian: a header (magic number, types of automaton and arcs, version, flags,
properties, start state, numbers of states and arcs); symbol tables for input and output, if the flags say so; then for
each state its final weight, its number of arcs, and the arcs (input, output, weight, destination).
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedgram.core.arrays import FloatArray, LongArray
from fedgram.core.errors import InputError

_MAGIC, _SYMBOLS_MAGIC = 2125659606, 2125658996
_INPUT_SYMBOLS, _OUTPUT_SYMBOLS = 1, 2
_ARC = np.dtype([("input", "<i4"), ("output", "<i4"), ("weight", "<f4"), ("dest", "<i4")])


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """A weighted automaton: final weights per state, arcs as parallel arrays, and the names of input labels."""

    start: int
    final: FloatArray
    source: LongArray
    label: LongArray
    weight: FloatArray
    dest: LongArray
    names: dict[int, str]


class _Reader:
    """A position in a byte string; it never moves past the end."""

    def __init__(self, data: bytes, path: str | Path) -> None:
        self.data, self.path, self.position = data, path, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.position + size > len(self.data):
            raise InputError(self.path, "is not a complete OpenFst automaton")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, layout: str) -> int:
        value: int = struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))[0]
        return value

    def text(self) -> str:
        return self.take(self.number("i")).decode(errors="replace")

    def symbols(self) -> dict[int, str]:
        if self.number("i") != _SYMBOLS_MAGIC:
            raise InputError(self.path, "has a damaged symbol table")
        self.text()
        self.number("q")
        names = {}
        for _ in range(self.number("q")):
            name = self.text()
            names[self.number("q")] = name
        return names


def automaton_type(data: bytes, path: str | Path) -> tuple[str, str]:
    """The type of the automaton and of its arcs, such as ("vector", "standard")."""
    reader = _Reader(data, path)
    if len(data) < 4 or reader.number("i") != _MAGIC:
        raise InputError(path, "is not an OpenFst automaton")
    return reader.text(), reader.text()


def read_vector_fst(data: bytes, path: str | Path) -> Automaton:
    """Parse a vector automaton with standard arcs."""
    reader = _Reader(data, path)
    reader.number("i")
    reader.text()
    reader.text()
    reader.number("i")
    flags = reader.number("i")
    reader.number("Q")
    start, states = reader.number("q"), reader.number("q")
    reader.number("q")
    names = reader.symbols() if flags & _INPUT_SYMBOLS else {}
    if flags & _OUTPUT_SYMBOLS:
        reader.symbols()
    if not 0 <= start < states or states > len(data):
        raise InputError(path, "has no valid start state")
    final, arcs, counts = np.empty(states), [], np.empty(states, np.int64)
    for q in range(states):
        final[q] = struct.unpack("<f", reader.take(4))[0]
        counts[q] = reader.number("q")
        arcs.append(reader.take(int(counts[q]) * _ARC.itemsize))
    table = np.frombuffer(b"".join(arcs), _ARC)
    dest = table["dest"].astype(np.int64)
    if len(dest) and not (dest.min() >= 0 and dest.max() < states):
        raise InputError(path, "has an arc to a state that does not exist")
    return Automaton(
        start,
        final,
        np.repeat(np.arange(states), counts),
        table["input"].astype(np.int64),
        table["weight"].astype(np.float64),
        dest,
        names,
    )
