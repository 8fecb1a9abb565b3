"""Phrase grammars: small hand-written weighted grammars of everyday messages, with known probabilities.

A grammar file is UTF-8 text:

    # a comment
    topic food 1.5                      the lines below are sentences of this topic, which has the weight 1.5
    2* let's get {meal} [with {person}] tonight
    set meal                            the lines below are alternatives, separated by ` | `
    pizza | 3* tacos | ~

`{name}` is one alternative of a set, `[…]` is present with probability 1/2, `2*` makes an alternative twice as likely,
and `~` is empty. A set may use other sets, but not itself. Words have their own capitals, but not the capital of the
sentence start.

A compiled grammar is stored in arrays: the alternatives of each nonterminal and the symbols of each alternative. A
symbol s ≥ 0 is a word; a symbol s < 0 is the nonterminal −1 − s.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import log
from pathlib import Path

import numpy as np

from fedgram.core.arrays import FloatArray, IntArray, LongArray, Ragged
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.jit import kernel
from fedgram.core.random import uniform_at

LANGUAGES = ("en_us", "pt_br")
MAX_WORDS = 64
_TOKEN = re.compile(r"\{(\w+)\}|\[([^\]]*)\]|([^\s\[\]{}]+)")
_WEIGHT = re.compile(r"(\d+(?:\.\d+)?)\*\s+")


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A compiled grammar; topic k is nonterminal k."""

    words: tuple[str, ...]
    topics: tuple[str, ...]
    topic_share: FloatArray
    first_alternative: LongArray
    cumulative: FloatArray
    first_symbol: LongArray
    symbol: IntArray

    def sentences(self, topics: IntArray, key: np.uint64, first: int = 0) -> Ragged:
        """One sentence per topic, as ids of `words`; sentence i depends only on its topic, the key and first + i."""
        values, offsets = _expand(
            topics, self.first_alternative, self.cumulative, self.first_symbol, self.symbol, key, first
        )
        return Ragged(values, offsets)

    def log_prob(self, sentence: Sequence[str], topic_share: FloatArray | None = None) -> float:
        """The log-probability of a sentence under the mixture of topics, over all its derivations; −inf without any."""
        ids = [self._index().get(word, -1) for word in sentence]
        share = self.topic_share if topic_share is None else topic_share
        reach: dict[tuple[int, int], dict[int, float]] = {}
        total = sum(s * self._inside(k, 0, ids, reach).get(len(ids), 0.0) for k, s in enumerate(share))
        return log(total) if total > 0 else -np.inf

    def _index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def _inside(
        self, nonterminal: int, begin: int, ids: list[int], reach: dict[tuple[int, int], dict[int, float]]
    ) -> dict[int, float]:
        """The possible ends of a derivation of the nonterminal that starts at `begin`, with their probabilities."""
        if (nonterminal, begin) in reach:
            return reach[nonterminal, begin]
        ends: dict[int, float] = {}
        first, last = self.first_alternative[nonterminal], self.first_alternative[nonterminal + 1]
        for a in range(first, last):
            p = float(self.cumulative[a] - (self.cumulative[a - 1] if a > first else 0.0))
            places = {begin: p}
            for s in self.symbol[self.first_symbol[a] : self.first_symbol[a + 1]].tolist():
                places = self._advance(s, places, ids, reach)
                if not places:
                    break
            for end, q in places.items():
                ends[end] = ends.get(end, 0.0) + q
        reach[nonterminal, begin] = ends
        return ends

    def _advance(
        self, symbol: int, places: dict[int, float], ids: list[int], reach: dict[tuple[int, int], dict[int, float]]
    ) -> dict[int, float]:
        if symbol >= 0:
            return {i + 1: p for i, p in places.items() if i < len(ids) and ids[i] == symbol}
        following: dict[int, float] = {}
        for i, p in places.items():
            for end, q in self._inside(-1 - symbol, i, ids, reach).items():
                following[end] = following.get(end, 0.0) + p * q
        return following


@kernel
def _expand(
    topics: IntArray, first_alternative: LongArray, cumulative: FloatArray, first_symbol: LongArray, symbol: IntArray,
    key: np.uint64, first: int,
) -> tuple[IntArray, LongArray]:  # fmt: skip
    values, offsets = np.empty(len(topics) * 12 + MAX_WORDS, np.int32), np.zeros(len(topics) + 1, np.int64)
    stack = np.empty(4096, np.int32)
    size = 0
    for s in range(len(topics)):
        if size + MAX_WORDS > len(values):
            values = np.concatenate((values, np.empty_like(values)))
        depth, draws, begin = 1, 0, size
        stack[0] = -1 - topics[s]
        while depth:
            depth -= 1
            x = stack[depth]
            if x >= 0:
                if size - begin < MAX_WORDS:
                    values[size] = x
                    size += 1
                continue
            low, high = first_alternative[-1 - x], first_alternative[-x]
            a = low + np.searchsorted(cumulative[low:high], uniform_at(key, first + s, draws), side="right")
            a = min(a, high - 1)
            draws += 1
            if depth + first_symbol[a + 1] - first_symbol[a] > len(stack):
                stack = np.concatenate((stack, np.empty(first_symbol[a + 1] - first_symbol[a] + len(stack), np.int32)))
            for i in range(first_symbol[a + 1] - 1, first_symbol[a] - 1, -1):
                stack[depth] = symbol[i]
                depth += 1
        offsets[s + 1] = size
    return values[:size].copy(), offsets


def load_grammar(language: str) -> Grammar:
    """The grammar of a language that is part of the package."""
    if language not in LANGUAGES:
        raise FedgramError(f"no grammar for the language {language!r}; choose one of {', '.join(LANGUAGES)}")
    source = files("fedgram.text.synthetic") / "phrases" / f"{language}.grammar"
    return parse_grammar(source.read_text("utf-8"), f"{language}.grammar")


def parse_grammar(text: str, name: str | Path = "grammar") -> Grammar:
    """Compile a grammar. Undefined sets, cycles and malformed lines are refused."""
    rules, shares = _read_rules(text, name)
    _refuse_cycles(rules, name)
    ordered = [*shares, *(rule for rule in rules if rule not in shares)]
    compiler = _Compiler(list(shares), {rule: k for k, rule in enumerate(ordered)})
    for rule in ordered:
        compiler.add(compiler.number[rule], rules[rule])
    return compiler.finish(np.array(list(shares.values())))


Rules = dict[str, list[tuple[float, str]]]


def _read_rules(text: str, name: str | Path) -> tuple[Rules, dict[str, float]]:
    """The alternatives of each set and of each `topic NAME`, and the weights of the topics."""
    rules: Rules = {}
    shares: dict[str, float] = {}
    current: list[tuple[float, str]] | None = None
    splits = False
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        directive = re.fullmatch(r"(topic|set)\s+(\w+)(?:\s+(\d+(?:\.\d+)?))?", line)
        if directive and (directive[1] == "topic") == (directive[3] is not None):
            key = f"topic {directive[2]}" if directive[1] == "topic" else directive[2]
            if key in rules:
                raise InputError(name, f"{line.split()[1]!r} is defined twice", line=number)
            current = rules.setdefault(key, [])
            splits = directive[1] == "set"
            if directive[3]:
                shares[key] = float(directive[3])
            continue
        if current is None:
            raise InputError(name, "a phrase is before the first topic or set", line=number)
        if re.search(r"[\[\]{}]", re.sub(r"\{\w+\}|\[[^\[\]]*\]", "", re.sub(r"\{\w+\}", "", line))):
            raise InputError(name, "a bracket is not closed, or is inside another", line=number)
        for alternative in line.split(" | ") if splits else [line]:
            weight = _WEIGHT.match(alternative.strip() + " ")
            body = alternative.strip()[weight.end() :] if weight else alternative.strip()
            current.append((float(weight[1]) if weight else 1.0, "" if body == "~" else body))
    _refuse_undefined(rules, shares, name)
    return rules, shares


def _refuse_undefined(rules: Rules, shares: dict[str, float], name: str | Path) -> None:
    if not shares:
        raise InputError(name, "has no topic")
    for rule, alternatives in rules.items():
        if not alternatives or sum(weight for weight, _ in alternatives) <= 0:
            raise InputError(name, f"{rule!r} has no alternatives")
        for _, body in alternatives:
            for used in re.findall(r"\{(\w+)\}", body):
                if used not in rules:
                    raise InputError(name, f"{rule!r} uses the set {used!r}, which is not defined")


def _refuse_cycles(rules: Rules, name: str | Path) -> None:
    done: set[str] = set()

    def visit(rule: str, path: tuple[str, ...]) -> None:
        if rule in path:
            raise InputError(name, f"the set {rule!r} uses itself")
        if rule not in done:
            for _, body in rules[rule]:
                for used in re.findall(r"\{(\w+)\}", body):
                    visit(used, (*path, rule))
            done.add(rule)

    for rule in rules:
        visit(rule, ())


class _Compiler:
    def __init__(self, topics: list[str], number: dict[str, int]) -> None:
        self.topics, self.number = topics, number
        self.word: dict[str, int] = {}
        self.bodies: dict[int, list[tuple[float, list[int]]]] = {}

    def add(self, nonterminal: int, alternatives: list[tuple[float, str]]) -> None:
        self.bodies[nonterminal] = [(weight, self._symbols(body)) for weight, body in alternatives]

    def _symbols(self, body: str) -> list[int]:
        symbols = []
        for used, optional, word in _TOKEN.findall(body):
            if used:
                symbols.append(-1 - self.number[used])
            elif optional:
                fresh = len(self.number)
                self.number[f"[{fresh}]"] = fresh
                self.bodies[fresh] = [(1.0, []), (1.0, self._symbols(optional))]
                symbols.append(-1 - fresh)
            else:
                symbols.append(self.word.setdefault(word, len(self.word)))
        return symbols

    def finish(self, shares: FloatArray) -> Grammar:
        alternatives = [self.bodies[k] for k in range(len(self.number))]
        cumulative = []
        for body in alternatives:
            weights = np.array([weight for weight, _ in body])
            cumulative.append(np.cumsum(weights) / weights.sum())
        symbols = [s for body in alternatives for _, s in body]
        return Grammar(
            tuple(self.word),
            tuple(topic.removeprefix("topic ") for topic in self.topics),
            shares / shares.sum(),
            np.concatenate([[0], np.cumsum([len(body) for body in alternatives])]).astype(np.int64),
            np.concatenate(cumulative),
            np.concatenate([[0], np.cumsum([len(s) for s in symbols])]).astype(np.int64),
            np.array([x for s in symbols for x in s], np.int32),
        )
