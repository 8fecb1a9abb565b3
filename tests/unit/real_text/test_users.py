"""From messages to a population: what is kept, and under which name and split."""

from collections import Counter
from pathlib import Path

import pytest
from benchmarks.real_text.cleaning import Message, words
from benchmarks.real_text.supplement import CORPORA
from benchmarks.real_text.users import (
    SOURCES,
    Source,
    build,
    prepare,
    pseudonym_and_split,
    within_limits,
    without_repeats,
    without_similar_essays,
)

PROSE = Source("prose", "own/prose", lambda *_: iter(()))
CHAT = PROSE._replace(is_chat=True)
TURNS = PROSE._replace(is_prose=False)
KEY = b"k" * 32


def numbered(count: int, word: str = "a") -> str:
    return " ".join(word + "b" * i for i in range(count))


def test_prose_is_split_and_turns_are_not() -> None:
    text = "One two. Three four! see http://x.org"
    assert prepare(PROSE, [Message("u", text)]) == {"u": ["One two.", "Three four! see <url>"]}
    assert prepare(TURNS, [Message("u", text)]) == {"u": ["One two. Three four! see <url>"]}
    assert prepare(CHAT, [Message("u", text)]) == {"u": ["One two. Three four! see <url>"]}
    long = f"{numbered(40)}. Another"
    assert prepare(CHAT, [Message("u", long)]) == {"u": [f"{numbered(40)}.", "Another"]}


def test_rows_without_words_or_with_too_many_are_dropped() -> None:
    rows = ["12345", "!!!", "<url>", "a 1234567890", numbered(121), "fine"]
    assert prepare(PROSE, [Message("u", row) for row in rows]) == {"u": ["fine"]}
    assert len(prepare(TURNS, [Message("u", numbered(121))])["u"]) == 1


def test_long_repeats_are_dropped_over_all_users() -> None:
    long, short = numbered(8), numbered(7)
    seen: set[str] = set()
    first = without_repeats({"a": [long, short], "b": [long.upper() + "!", short]}, seen)
    assert first == {"a": [long, short], "b": [short]}
    assert without_repeats({"c": [long]}, seen) == {"c": []}


def test_essays_that_share_much_with_earlier_ones_are_dropped() -> None:
    seen: set[tuple[str, ...]] = set()
    own, other = numbered(100), numbered(100, "x")
    half = " ".join([*own.split()[:50], *other.split()[:50]])
    tenth = " ".join([*own.split()[:12], *numbered(90, "y").split()])
    rows = {"a": [own], "b": [half], "c": [tenth], "d": [other]}
    assert list(without_similar_essays(rows, seen)) == ["a", "c", "d"]


def test_limits_of_a_user() -> None:
    rows = {"much": [numbered(30)] * 3, "little": [numbered(19)], "enough": [numbered(20)]}
    kept = within_limits(rows, 60)
    assert {author: sum(len(words(row)) for row in text) for author, text in kept.items()} == {"much": 60, "enough": 20}


def test_pseudonyms_and_splits_depend_on_the_key_alone() -> None:
    made = [pseudonym_and_split(KEY, f"s:{i}") for i in range(5000)]
    assert made == [pseudonym_and_split(KEY, f"s:{i}") for i in range(5000)]
    assert len({pseudonym for pseudonym, _ in made}) == 5000
    shares = Counter(split for _, split in made)
    assert [shares[s] / 5000 for s in ("train", "dev", "test")] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    assert pseudonym_and_split(b"x" * 32, "s:0") != made[0]


def test_users_are_built_from_all_sources() -> None:
    texts = {"one": [Message("ann", numbered(25)), Message("bob", "short")], "two": [Message("ann", numbered(25))]}
    sources = [PROSE._replace(name="one"), PROSE._replace(name="two")]
    people = build("en_us", sources, lambda source: texts[source.name], KEY)
    assert [(user.source, user.rows) for user in people] == [("one", [numbered(25)])]
    assert people[0].pseudonym.startswith("en")
    assert "ann" not in people[0].pseudonym


def test_sources_have_different_names_and_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    for language, sources in SOURCES.items():
        assert len({source.name for source in sources}) == len(sources)
        repositories = [s.repository for s in sources] + [c.repository for c in CORPORA[language]]
        assert [name for name in repositories if name not in page] == []
