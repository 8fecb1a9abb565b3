"""A plain reader of AOSP's static dictionaries, written from the description of their format."""

import struct
from pathlib import Path


def read_dict(path: Path) -> tuple[dict[str, str], dict[str, int], dict[str, list[tuple[str, int]]]]:
    """(header attributes, frequency of every word, next words of every word with their four bits)."""
    data = path.read_bytes()
    magic, version, _, size = struct.unpack_from(">IHHI", data)
    assert (magic, version) == (0x9BC13AFE, 202)
    texts, at = [], 12
    while at < size:
        text, at = _string(data, at)
        texts.append(text)
    body = data[size:]
    frequency: dict[str, int] = {}
    by_address: dict[int, str] = {}
    pending: dict[str, list[tuple[int, int]]] = {}
    stack = [(0, "")]
    while stack:
        at, prefix = stack.pop()
        count, at = (body[at], at + 1) if body[at] < 0x80 else ((body[at] & 0x7F) << 8 | body[at + 1], at + 2)
        for _ in range(count):
            address, flags, at = at, body[at], at + 1
            if flags & 0x20:
                text, at = _string(body, at)
            else:
                text, at = _character(body, at)
            word = prefix + text
            if flags & 0x10:
                frequency[word], at = body[at], at + 1
                by_address[address] = word
            if children := flags >> 6:
                stack.append((at + int.from_bytes(body[at : at + children], "big"), word))
                at += children
            while flags & 0x04:
                attributes, at = body[at], at + 1
                width = attributes >> 4 & 3
                distance = int.from_bytes(body[at : at + width], "big")
                target = at - distance if attributes & 0x40 else at + distance
                pending.setdefault(word, []).append((target, attributes & 15))
                at += width
                if not attributes & 0x80:
                    break
    pairs = {word: [(by_address[a], steps) for a, steps in rows] for word, rows in pending.items()}
    return dict(zip(texts[::2], texts[1::2], strict=True)), frequency, pairs


def _character(data: bytes, at: int) -> tuple[str, int]:
    if data[at] >= 0x20:
        return chr(data[at]), at + 1
    return chr(int.from_bytes(data[at : at + 3], "big")), at + 3


def _string(data: bytes, at: int) -> tuple[str, int]:
    text = ""
    while data[at] != 0x1F:
        character, at = _character(data, at)
        text += character
    return text, at + 1
