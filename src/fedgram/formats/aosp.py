"""Dictionaries of the Android keyboards that are based on AOSP's LatinIME: HeliBoard, OpenBoard, FUTO and others.

`.combined` is the text that AOSP's `dicttool` compiles. `.dict` is the compiled form, format version 202: a Patricia
trie of words with frequencies. Each word has a list of next words: their relative addresses, and four bits that say how
much more frequent the next word is here than on its own. Numbers are big-endian.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.formats.word_pairs import WordPairs

MAGIC, VERSION = 0x9BC13AFE, 202
_END = 0x1F
_MULTIPLE, _TERMINAL, _BIGRAMS = 0x20, 0x10, 0x04
_NEXT, _NEGATIVE = 0x80, 0x40
_MAX_WORD = 48
_MAX_BYTES = 1 << 24


def write_combined(pairs: WordPairs, path: str | Path, *, locale: str, date: int = 0) -> None:
    """Write the text form, `.combined`."""
    head = f"dictionary=main:{locale.lower()},locale={locale},description=fedgram,date={date},version=54\n"
    with atomic_write(path) as file:
        file.write(head.encode())
        for word, log_p, following in zip(pairs.words, pairs.log_p.tolist(), pairs.following, strict=True):
            file.write(f" word={word},f={pairs.frequency(log_p)}\n".encode())
            for other, log_pair in following:
                file.write(f"  bigram={pairs.words[other]},f={pairs.frequency(log_pair)}\n".encode())


@dataclass(slots=True, eq=False)
class _Node:
    """A node of the trie: its characters, the word that ends here or −1, and its children."""

    characters: bytes
    several: bool
    word: int = -1
    children: list["_Node"] = field(default_factory=list)
    address: int = 0
    children_address: int = 0
    children_size: int = 3


def write_dict(pairs: WordPairs, path: str | Path, *, locale: str, date: int = 0) -> None:
    """Write the binary form, `.dict`."""
    order = sorted((word, i) for i, word in enumerate(pairs.words) if len(word) < _MAX_WORD)
    if not order:
        raise FedgramError("the model has no word that a dictionary can contain")
    arrays: list[list[_Node]] = []
    top = _nodes(order, 0)
    _collect(top, arrays)
    frequency = [pairs.frequency(p) for p in pairs.log_p.tolist()]
    by_word = {node.word: node for nodes in arrays for node in nodes if node.word >= 0}
    following = {
        word: [(other, pairs.frequency(p)) for other, p in pairs.following[word] if other in by_word]
        for word in by_word
    }
    sizes: dict[tuple[int, int], int] = {}  # the bytes of the address of each next word
    for _ in range(4):  # addresses only move closer together, so sizes that were large enough stay large enough
        end = _place(arrays, following, sizes)
        _shrink(arrays, by_word, following, sizes)
    end = _place(arrays, following, sizes)
    if end >= _MAX_BYTES:
        raise FedgramError(f"the dictionary has {end:,} bytes; the limit is {_MAX_BYTES:,}; keep fewer words")
    body = b"".join(_encode(arrays, by_word, following, frequency, sizes))
    attributes = {"dictionary": f"main:{locale.lower()}", "locale": locale, "description": "fedgram"}
    attributes |= {"date": str(date), "version": "54"}
    listed = b"".join(_string(key) + _string(value) for key, value in attributes.items())
    header = struct.pack(">IHHI", MAGIC, VERSION, 0, 12 + len(listed)) + listed
    with atomic_write(path) as file:
        file.write(header + body)


def _character(c: str) -> bytes:
    point = ord(c)
    return bytes([point]) if 0x20 <= point <= 0xFF else point.to_bytes(3, "big")


def _string(text: str) -> bytes:
    return b"".join(map(_character, text)) + bytes([_END])


def _nodes(words: list[tuple[str, int]], depth: int) -> list[_Node]:
    """The nodes for sorted words that share their first `depth` characters."""
    result, begin = [], 0
    while begin < len(words):
        end = begin
        while end < len(words) and words[end][0][depth] == words[begin][0][depth]:
            end += 1
        first, last = words[begin][0], words[end - 1][0]
        shared = depth + 1
        while shared < len(first) and shared < len(last) and first[shared] == last[shared]:
            shared += 1
        node = _Node(b"".join(map(_character, first[depth:shared])), shared - depth > 1)
        if len(first) == shared:
            node.word = words[begin][1]
            begin += 1
        node.children = _nodes(words[begin:end], shared)
        result.append(node)
        begin = end
    return result


def _collect(nodes: list[_Node], arrays: list[list[_Node]]) -> None:
    """All arrays of nodes, each before those of its children."""
    arrays.append(nodes)
    for node in nodes:
        if node.children:
            _collect(node.children, arrays)


def _place(
    arrays: list[list[_Node]], following: dict[int, list[tuple[int, int]]], sizes: dict[tuple[int, int], int]
) -> int:
    """Set the addresses of all nodes and arrays; returns the end."""
    at, starts = 0, {}
    for nodes in arrays:
        starts[id(nodes)] = at
        at += 1 if len(nodes) < 0x80 else 2
        for node in nodes:
            node.address = at
            at += 1 + len(node.characters) + node.several + (node.word >= 0)
            at += node.children_size if node.children else 0
            at += sum(1 + sizes.get((node.word, other), 3) for other, _ in following.get(node.word, ()))
    for nodes in arrays:
        for node in nodes:
            if node.children:
                node.children_address = starts[id(node.children)]
    return at


def _shrink(
    arrays: list[list[_Node]], by_word: dict[int, _Node], following: dict[int, list[tuple[int, int]]],
    sizes: dict[tuple[int, int], int],
) -> None:  # fmt: skip
    """Reduce the size of each address to what its distance needs."""
    for nodes in arrays:
        for node in nodes:
            at = node.address + 1 + len(node.characters) + node.several + (node.word >= 0)
            if node.children:
                node.children_size = min(node.children_size, _bytes_of(node.children_address - at))
                at += 3
            for other, _ in following.get(node.word, ()):
                farthest = abs(by_word[other].address - at) + 4 * len(following[node.word]) + 8
                sizes[node.word, other] = min(sizes.get((node.word, other), 3), _bytes_of(farthest))


def _bytes_of(distance: int) -> int:
    return 1 if distance <= 0xFF else 2 if distance <= 0xFFFF else 3


def _encode(
    arrays: list[list[_Node]], by_word: dict[int, _Node], following: dict[int, list[tuple[int, int]]],
    frequency: list[int], sizes: dict[tuple[int, int], int],
) -> Iterator[bytes]:  # fmt: skip
    for nodes in arrays:
        yield bytes([len(nodes)]) if len(nodes) < 0x80 else (0x8000 | len(nodes)).to_bytes(2, "big")
        for node in nodes:
            after = following.get(node.word, [])
            flags = (node.children_size << 6 if node.children else 0) | (_MULTIPLE if node.several else 0)
            flags |= (_TERMINAL if node.word >= 0 else 0) | (_BIGRAMS if after else 0)
            out = bytes([flags]) + node.characters + (bytes([_END]) if node.several else b"")
            if node.word >= 0:
                out += bytes([frequency[node.word]])
            if node.children:
                distance = node.children_address - node.address - len(out)
                out += distance.to_bytes(node.children_size, "big")
            for n, (other, pair) in enumerate(after):
                size = sizes[node.word, other]
                distance = by_word[other].address - node.address - len(out) - 1
                flags = (_NEXT if n + 1 < len(after) else 0) | (_NEGATIVE if distance < 0 else 0)
                flags |= size << 4 | steps_above(pair, frequency[other])
                out += bytes([flags]) + abs(distance).to_bytes(size, "big")
            yield out


def steps_above(pair: int, alone: int) -> int:
    """Four bits: how much more frequent a word is after another word than on its own, on AOSP's scale.

    >>> steps_above(255, 100), steps_above(90, 100)
    (15, 0)
    """
    step = (255 - alone) / 16.5
    return int(min(max((pair - 1 - alone - step / 2) / step, 0), 15)) if step else 0
