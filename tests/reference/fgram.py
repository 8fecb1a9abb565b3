"""A plain reader of `lm.fgram`, written from docs/formats/fgram.md: slow, and without numpy."""

import math
import struct
from pathlib import Path

State = tuple[int, ...]


class Fgram:
    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        self.bits = int.from_bytes(data, "little")
        assert data[:8] == b"\x89FGRAM\r\n"
        self.order, self.b, self.backoff_bits, self.derived = data[24:28]
        (self.V,) = struct.unpack_from("<I", data, 28)
        self.tiers = [0, *(end for end in struct.unpack_from("<4I", data, 32) if end)]
        symbols, text_bits, alphabet, buckets, text = struct.unpack_from("<5I", data, 48)
        self.levels = [struct.unpack_from("<2I2f6I", data, 80 + 48 * n) for n in range(self.order)]
        self.books = [struct.unpack_from(f"<{1 << self.b}f", data, level[4]) for level in self.levels]
        self.words, self.keys = self._read_words(data, symbols, alphabet, buckets, text, text_bits)

    def get(self, at: int, width: int) -> int:
        return self.bits >> at & ((1 << width) - 1)

    def sequence(self, at: int, k: int, most: int) -> list[int]:
        w = max((most // k).bit_length() - 1, 0)
        high = k + (most >> w) + 1
        ones = [i for i in range(high) if self.get(at + i, 1)]
        low = at + (high + 63) // 64 * 64
        return [(place - i) << w | self.get(low + i * w, w) for i, place in enumerate(ones)]

    def _read_words(
        self, data: bytes, symbols: int, alphabet: int, buckets: int, text: int, text_bits: int
    ) -> tuple[list[str], list[str]]:
        rows = [struct.unpack_from("<IBBH3I", data, alphabet + 20 * s) for s in range(symbols)]
        codes, code, last = {}, 0, 0
        for length, s in sorted((row[1], s) for s, row in enumerate(rows) if row[1]):
            code <<= length - last
            codes[format(code, f"0{length}b")] = s
            code, last = code + 1, length
        words: list[list[int]] = []
        for bucket, start in enumerate(self.sequence(8 * buckets, -(-self.V // 16), text_bits)):
            at = 8 * text + start
            for i in range(16 * bucket, min(16 * bucket + 16, self.V)):
                word: list[int] = []
                if i % 16:
                    word, at = words[-1][: self.get(at, 4)], at + 4
                while True:
                    bits = ""
                    while bits not in codes:
                        bits, at = bits + str(self.get(at, 1)), at + 1
                    if codes[bits] == 0:
                        break
                    word.append(codes[bits])
                words.append(word)
        spelled = ["".join(chr(rows[s][0]) for s in word) for word in words]
        keys = ["".join(chr(c) for s in word for c in rows[s][4 : 4 + rows[s][2]]) for word in words]
        return spelled, keys

    def set(self, at: int, n: int, u: int) -> tuple[list[int], int]:
        if u < 4 * n:
            return [x for x in range(u) if self.get(at + x, 1)], at + u
        if n == 0:
            return [], at
        w = max((11 * u // 16).bit_length() - n.bit_length(), 0)
        high = n + (u - 1 >> w)
        ones = [i for i in range(high) if self.get(at + i, 1)]
        low = at + high
        return [(place - i) << w | self.get(low + i * w, w) for i, place in enumerate(ones)], low + n * w

    def codes(self, at: int, n: int) -> list[int]:
        return [self.get(at + i * self.b, self.b) for i in range(n)]

    def segment(self, at: int, n: int, u: int) -> tuple[list[int], list[int], int]:
        if n <= 128:
            numbers, at = self.set(at, n, u)
            return numbers, self.codes(at, n), at + n * self.b
        wide = (u - 1).bit_length()
        end_width = (n * (self.b + wide + 4)).bit_length()
        entry, blocks = wide + end_width + self.b, -(-n // 128)
        firsts = [self.get(at + j * entry, wide) for j in range(blocks)] + [u]
        all_numbers, all_codes, place = [], [], at + blocks * entry
        for j in range(blocks):
            size = min(128, n - 128 * j)
            others, place = self.set(place, size - 1, firsts[j + 1] - firsts[j] - 1)
            all_numbers += [firsts[j], *(firsts[j] + 1 + x for x in others)]
            all_codes += self.codes(place, size)
            place += size * self.b
            assert self.get(at + j * entry + wide, end_width) == place - at - blocks * entry
            assert self.get(at + j * entry + wide + end_width, self.b) == max(all_codes[-size:])
        return all_numbers, all_codes, place

    def list(self, order: int, context: int, universe: int) -> tuple[dict[int, tuple[int, int]], int | None]:
        """({member: (position, code)}, backoff code) of a list."""
        _, contexts, _, _, _, lists, bits, pointers, _, _ = self.levels[order - 1]
        at = 8 * lists + self.sequence(8 * pointers, contexts, bits)[context]
        below = 0
        while not self.get(at + below, 1):
            below += 1
        m = 1 << below | self.get(at + below + 1, below)
        at += 2 * below + 1
        backoff = None
        if m > self.derived:
            backoff, at = self.get(at, self.backoff_bits), at + self.backoff_bits
        bounds, sizes, left = ([0, universe], [], m) if order > 2 else (self.tiers, [], m)
        for _ in bounds[2:]:
            width = left.bit_length()
            sizes.append(self.get(at, width))
            at, left = at + width, left - sizes[-1]
        members: dict[int, tuple[int, int]] = {}
        for first, end, n in zip(bounds, bounds[1:], [*sizes, left], strict=False):
            numbers, codes, at = self.segment(at, n, end - first)
            members.update(
                {first + x: (len(members) + i, c) for i, (x, c) in enumerate(zip(numbers, codes, strict=True))}
            )
        return members, backoff

    def child(self, order: int, ngram: int) -> int | None:
        if order == self.order:
            return None
        at = 8 * self.levels[order - 1][9]
        return sum(self.get(at + i, 1) for i in range(ngram)) if self.get(at + ngram, 1) else None

    def start(self) -> State:
        context = self.child(1, 1)
        return () if context is None else (context,)

    def step(self, state: State, word: int) -> tuple[float, State]:
        code = self.get(8 * self.levels[0][5] + word * self.b, self.b)
        log_p, x, universe = self.books[0][code] if code else -math.inf, word, self.V
        ngram, after, weights = self.child(1, word), [], []
        if ngram is not None:
            after.append(ngram)
        lower = {y: self.get(8 * self.levels[0][5] + y * self.b, self.b) for y in range(self.V)}
        found = True
        for i, context in enumerate(state, 1):
            members, backoff = self.list(i + 1, context, universe)
            if found and x in members:
                x, code = members[x]
                log_p = self.books[i][code]
                if len(after) == i and i + 1 < self.order:
                    level = self.levels[i]
                    ngram = self.child(i + 1, self.sequence(8 * level[8], level[1], level[0])[context] + x)
                    after += [] if ngram is None else [ngram]
            else:
                found = False
                weights.append(self.weight(i, members, backoff, lower))
            lower, universe = dict(members.values()), len(members)
        return sum(weights) + log_p, tuple(after)

    def weight(self, i: int, members: dict[int, tuple[int, int]], backoff: int | None, lower: dict[int, int]) -> float:
        if backoff is not None:
            return float(self.levels[i][2] + backoff * self.levels[i][3])
        rest = 1 - sum(math.exp(self.books[i][c]) for _, c in members.values())
        room = 1 - sum(math.exp(self.books[i - 1][lower[y]]) for y in members)
        return math.log(rest / room) if min(rest, room) >= 1e-9 else -99.0
