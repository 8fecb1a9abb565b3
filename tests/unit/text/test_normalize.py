"""The normaliser, on typical messages."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.text.normalize import PLACEHOLDERS, normalize, uncase


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Hello there", [["Hello", "there"]]),
        ("don’t  stop", [["don't", "stop"]]),
        ("it's well-known, e-mail me", [["it's", "well-known", "e-mail", "me"]]),
        ("'quoted' words-- and - dashes", [["quoted", "words", "and", "dashes"]]),
        ("São Paulo é ótimo! Você vem?", [["São", "Paulo", "é", "ótimo"], ["Você", "vem"]]),
        ("Sa\u0303o", [["São"]]),
        ("one\ntwo", [["one"], ["two"]]),
        ("Mr. Smith met Dr. J. Lee. They left", [["Mr", "Smith", "met", "Dr", "J", "Lee"], ["They", "left"]]),
        ("so did I. Then we left", [["so", "did", "I"], ["Then", "we", "left"]]),
        ("wait... what?! ok", [["wait"], ["what"], ["ok"]]),
        ("see https://a.b/c?d=e. or www.x.org", [["see", "<url>", "or", "<url>"]]),
        ("mail a.b+c@d-e.co.uk now", [["mail", "<email>", "now"]]),
        ("hi @some_one!", [["hi", "<user>"]]),
        ("at 10:30am on 3/4, 1,000.50 or 2nd", [["at", "<number>", "on", "<number>", "<number>", "or", "<number>"]]),
        ("Às 10h30 na praça, 2x4", [["Às", "<number>", "na", "praça", "<number>"]]),
        ("gr8 H2O l8r", [["gr8", "H2O", "l8r"]]),
        ("<user> said <url>", [["<user>", "said", "<url>"]]),
        ("#fun 😀 yes", [["fun", "yes"]]),
        ("zero\u200bwidth", [["zerowidth"]]),
        ("", []),
        ("... !!! 😀", []),
        ("node.js is fine", [["node", "js", "is", "fine"]]),
    ],
)
def test_examples(text: str, sentences: list[list[str]]) -> None:
    assert normalize(text) == sentences


@given(st.text())
def test_words_are_words_and_normalising_again_changes_nothing(text: str) -> None:
    for sentence in normalize(text):
        assert sentence
        for word in sentence:
            assert word in PLACEHOLDERS or not (word[0].isdecimal() or any(c.isspace() for c in word))
            assert unicodedata.normalize("NFC", word) == word
        assert [w for s in normalize(" ".join(sentence)) for w in s] == sentence


def test_uncase() -> None:
    assert [uncase(w) for w in ("New", "YORK", "ÁGUA", "<url>")] == ["new", "york", "água", "<url>"]


@pytest.mark.parametrize("word", ["<UNK>", "<S>", "</S>", "<Unk>"])
def test_no_word_becomes_a_special_word_in_lower_case(word: str) -> None:
    assert uncase(word) == word
