"""Changes to valid input: of bytes, of lines and words, of JSON values, and of files, with right checksums.

Each is a function of a random generator and the input, so a number names a mutation for good.
"""

import json
import math
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from fedgram.core.storage import content_digest
from fedgram.fgram.frame import _HEADER_SUM, HEADER_BYTES, _header_sum, checksum

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
TOKENS = (
    b"", b"\0", b"\n", b"\r\n", b"\t", b" ", b"-inf", b"nan", b"1e999", b"-1e-999", b"99999999999999", b"<s>", b"</s>",
    b"<unk>", b"\\data\\", b"\\end\\", b"ngram 1=", b"\\2-grams:", "\u2028".encode(), "\x85".encode(), "\xa0".encode(),
    b"\xff\xfe", b"\xef\xbb\xbf", "\U0001f600".encode(), b"a" * 70_000, b"0" * 5_000, b"1" * 5_000, b'"', b"'", b"{",
    b"[" * 3_000, b"}", b"\\ud800", b"=", b"-" * 300, b"<" * 500, b"From ", b"[12/12/2020, 10:00:00] ", b"\x1b[31m",
    b"e" * 40 + b"+", b"2020-99-99", b"0x", b"inf", b"a." * 3_000, "a\u0301\u0323".encode() * 500, b"multipart/" * 40,
    b"(" * 2_000, b"boundary=", b"@" * 100, b"-1", b"1.5",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e308, math.nan, math.inf, 10**30, "", "\0", "\ud800", "x" * 100, [], {}, [[]], {"a": {}},
    [None], "<b>", "ab" * 32, -(2**63), 2**64,
)  # fmt: skip
TYPES = ("i1", "u1", "i4", "i8", "f4", "f8", "f2", "?", "u8")


def mutate_bytes(r: Random, whole: bytes) -> bytes:
    """Change, cut, repeat, insert or overwrite some bytes."""
    d = bytearray(whole)
    for _ in range(r.choice((1, 1, 2, 4, 8))):
        d = d or bytearray(b"x")
        i, kind, width = r.randrange(len(d)), r.randrange(9), r.choice((1, 2, 4, 8))
        if kind == 0:
            d[i] ^= 1 << r.randrange(8)
        elif kind == 1:
            d[i] = r.randrange(256)
        elif kind == 2:
            del d[i : i + r.randrange(1, 64)]
        elif kind == 3:
            d[i:i] = d[i : i + r.randrange(1, 64)]
        elif kind == 4:
            d[i : i + width] = (r.choice(NUMBERS) % 256**width).to_bytes(width, "little")
        elif kind == 5:
            del d[i:]
        elif kind == 6:
            d[i:i] = r.randbytes(r.randrange(1, 16))
        elif kind == 7:
            i -= i % width
            value = int.from_bytes(d[i : i + width], "little") + r.choice((-16, -1, 1, 16, 255))
            d[i : i + width] = (value % 256**width).to_bytes(width, "little")
        else:
            j, size = r.randrange(len(d)), r.randrange(1, 128)
            d[i : i + size] = d[j : j + size]
    return bytes(d)


def mutate_text(r: Random, d: bytes) -> bytes:
    """Drop, repeat, swap and cut lines, and put odd words into them."""
    for _ in range(r.choice((1, 1, 2, 3, 6))):
        lines, kind = d.split(b"\n"), r.randrange(8)
        i, j = r.randrange(len(lines)), r.randrange(len(lines))
        if kind == 0:
            del lines[i]
        elif kind == 1:
            lines.insert(i, lines[j])
        elif kind in (2, 3):
            blank = b" \t"[kind - 2 : kind - 1]
            words = lines[i].split(blank)
            words[r.randrange(len(words))] = r.choice(TOKENS)
            lines[i] = blank.join(words)
        elif kind == 4:
            place = r.randrange(len(lines[i]) + 1)
            lines[i] = lines[i][:place] + r.choice(TOKENS) + lines[i][place:]
        elif kind == 5:
            return mutate_bytes(r, d)
        elif kind == 6:
            lines[i], lines[j] = lines[j], lines[i]
        else:
            del lines[i + 1 :]
        d = b"\n".join(lines)
    return d


def mutate_value(r: Random, value: Any) -> Any:
    """Change one value somewhere inside a JSON value."""
    if not isinstance(value, dict | list) or not value or r.random() < 0.1:
        return r.choice(VALUES)
    changed = value.copy()
    key = r.choice(list(changed)) if isinstance(changed, dict) else r.randrange(len(changed))
    if r.random() < 0.2:
        del changed[key]
    elif isinstance(changed, dict) and r.random() < 0.1:
        changed[r.choice(("", "zz", f"{key}x"))] = changed[key]
    else:
        changed[key] = mutate_value(r, changed[key])
    return changed


def mutate_json(r: Random, d: bytes) -> bytes:
    """Change values of a JSON text, or the text."""
    if r.random() < 0.3:
        return mutate_text(r, d)
    value = json.loads(d)
    for _ in range(r.choice((1, 2, 3))):
        value = mutate_value(r, value)
    return json.dumps(value, ensure_ascii=r.random() < 0.5).encode(errors="surrogatepass")


def mutate_artefact(r: Random, d: bytes) -> bytes:
    """Change fields and arrays of an artefact, and give it a right checksum; sometimes change its bytes instead."""
    if r.random() < 0.2:
        return mutate_bytes(r, d)
    size = int.from_bytes(d[:8], "little")
    about = json.loads(json.loads(d[8 : 8 + size])["__metadata__"]["fedgram"])
    arrays = {name: array.copy() for name, array in load(d).items()}
    for _ in range(r.choice((1, 1, 2, 4))):
        if not arrays or r.randrange(9) == 0:
            about["fields"] = mutate_value(r, about["fields"])
        else:
            name = r.choice(sorted(arrays))
            arrays[name] = _mutated_array(r, arrays.pop(name))
            if r.random() < 0.05:
                del arrays[name]
    try:
        about["digest"] = content_digest(about["fields"], arrays)
        return save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, {"fedgram": json.dumps(about)})
    except (TypeError, ValueError):  # such as a lone surrogate, which has no bytes
        return mutate_bytes(r, d)


def _mutated_array(r: Random, array: Any) -> Any:
    kind = r.randrange(8) if array.ndim else 7
    if kind == 0:
        with np.errstate(all="ignore"):
            return array.astype(r.choice(TYPES))
    if kind == 1:
        return array[: r.randrange(len(array) + 1)]
    if kind == 2:
        return array.reshape(1, *array.shape)
    if kind == 3:
        return np.concatenate([array, array[: r.randrange(len(array) + 1)]])
    flat = array.reshape(-1)
    for _ in range(r.choice((1, 2, 8)) if len(flat) else 0):
        i = r.randrange(len(flat))
        with np.errstate(all="ignore"):
            if flat.dtype.kind == "f":
                flat[i] = r.choice((0, -0.0, math.nan, math.inf, -math.inf, 1e30, -1e30, 1, 5e-324))
            elif flat.dtype.kind == "b":
                flat[i] = not flat[i]
            else:
                most, least, at = np.iinfo(flat.dtype).max, np.iinfo(flat.dtype).min, int(flat[i])
                value = r.choice((0, 1, 2, most, least, at + 1, at - 1, int(flat[r.randrange(len(flat))]), len(flat)))
                flat[i] = min(max(value, least), most)
    return array


def mutate_fgram(r: Random, whole: bytes) -> bytes:
    """Change numbers of the header or bits of the sections, and make the checksums right."""
    if r.random() < 0.05:
        return mutate_bytes(r, whole)
    d, kind = bytearray(whole), r.randrange(3)
    if kind == 0:
        for _ in range(r.choice((1, 2, 3))):
            i = r.randrange(24, HEADER_BYTES) // 4 * 4
            value = int.from_bytes(d[i : i + 4], "little")
            new = r.choice((*NUMBERS, value + 1, value - 1, value * 2, value // 2, value + 8, value - 8))
            d[i : i + 4] = (new % 2**32).to_bytes(4, "little")
    else:
        for _ in range(r.choice((1, 4, 32, 200))):
            d[r.randrange(HEADER_BYTES, len(d))] = r.randrange(256)
        if kind == 2:
            i, size = r.randrange(HEADER_BYTES, len(d)) // 8 * 8, 8 * r.randrange(1, 200)
            d[i : i + size] = (r.choice((b"\0", b"\xff")) * size)[: len(d[i : i + size])]
    d[12:16] = len(d).to_bytes(4, "little")
    d[16:20] = int(checksum(np.frombuffer(bytes(d[HEADER_BYTES:]), np.uint64))).to_bytes(4, "little")
    d[_HEADER_SUM] = _header_sum(bytes(d[:HEADER_BYTES]))
    return bytes(d)
