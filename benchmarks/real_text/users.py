"""From messages by author to the rows of a population: filters, limits, pseudonyms and splits."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.real_text import camara, essay_br, gitter, self_dialogue, uol
from benchmarks.real_text.checkouts import Checkout
from benchmarks.real_text.cleaning import Message, anonymize, clean, split_sentences, words
from benchmarks.real_text.word_frequencies import Languages

MIN_USER_WORDS = 20
MAX_ROW_WORDS = 120
MAX_UNSPLIT_WORDS = 40  # chat lines with more words are split into sentences
MIN_LETTER_SHARE = 0.6
MIN_REPEAT_WORDS = 8  # shorter rows may occur again: people say the same short things
MAX_SHARED = 0.2  # of an essay's word 5-grams with an earlier essay
Rows = dict[str, list[str]]
"""Rows by author, in order."""


class Source(NamedTuple):
    """A source of users' text, and how its text is prepared."""

    name: str
    repository: str
    read: Callable[[Checkout, Languages], Iterator[Message]]
    max_user_words: int = 20_000
    is_prose: bool = True  # running text, which is split into sentences
    is_chat: bool = False
    is_essays: bool = False


def _plain(read: Callable[[Checkout], Iterator[Message]]) -> Callable[[Checkout, Languages], Iterator[Message]]:
    return lambda checkout, _: read(checkout)


def _chat(language: str, checkout: Checkout, languages: Languages) -> Iterator[Message]:
    return gitter.messages(checkout, language, languages)


SOURCES = {
    "en_us": (
        Source("self_dialogue", self_dialogue.REPOSITORY, _plain(self_dialogue.messages), is_prose=False),
        Source("gitter", gitter.REPOSITORY, partial(_chat, "en"), is_chat=True),
    ),
    "pt_br": (
        Source("uol", uol.REPOSITORY, _plain(uol.messages), is_essays=True),
        Source("essay-br", essay_br.REPOSITORY, _plain(essay_br.messages), is_essays=True),
        Source("gitter", gitter.REPOSITORY, partial(_chat, "pt"), is_chat=True),
        Source("camara", camara.REPOSITORY, _plain(camara.messages), max_user_words=6_000),
    ),
}


class User(NamedTuple):
    """A user of the population, under a pseudonym."""

    pseudonym: str
    split: str
    source: str
    rows: list[str]


def prepare(source: Source, messages: Iterable[Message]) -> Rows:
    """The rows of each author, cleaned, without addresses and names of accounts, and fit to be kept."""
    result: Rows = {}
    for message in messages:
        text = anonymize(clean(message.text))
        splits = source.is_prose and (not source.is_chat or len(words(text)) > MAX_UNSPLIT_WORDS)
        for row in split_sentences(text) if splits else [text]:
            if _is_text(row) and (not source.is_prose or len(words(row)) <= MAX_ROW_WORDS):
                result.setdefault(message.author, []).append(row)
    return result


def _is_text(row: str) -> bool:
    bare = re.sub(r"<\w+>", "", row).replace(" ", "")
    letters = sum(c.isalpha() for c in bare)
    return bool(words(re.sub(r"<\w+>", "", row))) and letters >= MIN_LETTER_SHARE * len(bare)


def without_similar_essays(rows: Rows, seen: set[tuple[str, ...]]) -> Rows:
    """The essays that share at most `MAX_SHARED` of their word 5-grams with earlier ones; `seen` collects these."""
    result: Rows = {}
    for author, text in rows.items():
        spelled = [word.lower() for word in words(" ".join(text))]
        grams = set(zip(*(spelled[i:] for i in range(5)), strict=False))
        if len(grams & seen) <= MAX_SHARED * len(grams):
            result[author] = text
            seen |= grams
    return result


def without_repeats(rows: Rows, seen: set[str]) -> Rows:
    """The rows without those that occurred before, if they are long; case and punctuation do not count."""
    result: Rows = {}
    for author, text in rows.items():
        kept = result[author] = []
        for row in text:
            spelled = words(row.lower())
            key = " ".join(spelled)
            if len(spelled) < MIN_REPEAT_WORDS or key not in seen:
                kept.append(row)
                seen.add(key)
    return result


def within_limits(rows: Rows, max_user_words: int) -> Rows:
    """The rows of each author up to a number of words; authors with too few words are left out."""
    result: Rows = {}
    for author, text in rows.items():
        total, kept = 0, []
        for row in text:
            total += len(words(row))
            if total > max_user_words:
                break
            kept.append(row)
        if sum(len(words(row)) for row in kept) >= MIN_USER_WORDS:
            result[author] = kept
    return result


def build(
    language: str, sources: Iterable[Source], read: Callable[[Source], Iterable[Message]], key: bytes
) -> list[User]:
    """The users of a language, sorted by pseudonym."""
    result, repeats = [], set[str]()
    essays: set[tuple[str, ...]] = set()
    for source in sources:
        rows = prepare(source, read(source))
        if source.is_essays:
            rows = without_similar_essays(rows, essays)
        rows = within_limits(without_repeats(rows, repeats), source.max_user_words)
        for author, text in rows.items():
            pseudonym, split = pseudonym_and_split(key, f"{source.name}:{author}")
            result.append(User(language[:2] + pseudonym, split, source.name, text))
    return sorted(result)


def pseudonym_and_split(key: bytes, author: str) -> tuple[str, str]:
    """A pseudonym that tells nothing without the key, and a split: 80 % train, 10 % dev, 10 % test."""
    digest = hashlib.blake2b(author.encode(), key=key, digest_size=16).digest()
    bucket = int.from_bytes(digest[8:]) % 10
    return digest[:6].hex(), "train" if bucket < 8 else "dev" if bucket == 8 else "test"
