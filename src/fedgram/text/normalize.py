"""Splits typed text into sentences of words, in the same way on devices and on the server.

Text is converted to Unicode NFC. A word starts with a letter, may contain digits (gr8), and may have apostrophes and
hyphens inside. Addresses, handles and tokens that start with a digit become placeholders. Everything else separates
words. A sentence ends at a line end or at `.`, `!`, `?` or `…` before white space, except after an initial or a common
abbreviation. Capitals are kept; `uncase` is the paper's u(y).

The time grows with the length of the text, not with its square, whatever the text is. So the part of an address before
its `@` has at most 64 characters (RFC 5321), and a letter at most 30 combining marks (Unicode's stream-safe format).
"""

import re
import unicodedata
from collections.abc import Iterator

from fedgram.text.vocabulary import SPECIAL

PLACEHOLDERS = ("<url>", "<email>", "<user>", "<phone>", "<number>")
_LETTER = r"(?:[^\W\d_][\u0300-\u036f]*)"
_TOKEN = re.compile(
    rf"""(?P<placeholder><(?:url|email|user|phone|number)>)
       |(?P<url>(?:https?://|www\.)\S+)
       |(?P<email>[\w.+-]{{1,64}}@[\w-]++(?:\.[\w-]++)++)
       |(?P<user>(?<!\w)@\w+)
       |(?P<number>\d\w*(?:[.,:/-]\d\w*)*)
       |(?P<word>{_LETTER}\w*(?:['-]{_LETTER}\w*)*)
       |(?P<end>(?<![.!?…])[.!?…]++(?=\s|$|["')\]»”])|\n)""",
    re.VERBOSE,
)
_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'", "´": "'", "‐": "-", "‑": "-"})
_MAX_MARKS = 30
_MAY_HAVE_MORE = re.compile(rf"[^\w\s]{{{_MAX_MARKS + 1}}}")  # marks are neither letters nor blanks
_MARKS_WITHOUT_CLASS = "\u0f73\u0f75\u0f81"  # each becomes two marks
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_ABBREVIATIONS = frozenset(
    ["mr", "mrs", "ms", "dr", "prof", "st", "vs", "jr", "sr", "inc", "sra", "srta", "dra", "av", "obs"]
)


def nfc(text: str) -> str:
    r"""The text in Unicode NFC, with at most 30 combining marks in a row, because marks are sorted in quadratic time.

    >>> nfc("Sa\u0303o"), len(nfc("a" + "\u0323\u0301" * 500))
    ('São', 30)
    """
    if _MAY_HAVE_MORE.search(text):
        text = "".join(_with_few_marks(text))
    return unicodedata.normalize("NFC", text)


def _with_few_marks(text: str) -> Iterator[str]:
    marks = 0
    for character in text:
        is_mark = unicodedata.combining(character) or character in _MARKS_WITHOUT_CLASS
        marks = marks + 1 if is_mark else 0
        if marks <= _MAX_MARKS:
            yield character


def normalize(text: str) -> list[list[str]]:
    """The sentences of a message; sentences without words are left out.

    >>> normalize("Dr. Lee isn’t in New York... call me at 5pm! see http://x.org")
    [['Dr', 'Lee', "isn't", 'in', 'New', 'York'], ['call', 'me', 'at', '<number>'], ['see', '<url>']]
    """
    text = _INVISIBLE.sub("", nfc(text).translate(_APOSTROPHES))
    sentences: list[list[str]] = [[]]
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind in ("word", "placeholder"):
            sentences[-1].append(match[0])
        elif kind == "end":
            if sentences[-1] and (match[0] != "." or not _is_abbreviation(sentences[-1][-1])):
                sentences.append([])
        else:
            sentences[-1].append(f"<{kind}>")
    return [sentence for sentence in sentences if sentence]


def _is_abbreviation(word: str) -> bool:
    return (len(word) == 1 and word not in "IAaOoEeé") or word.lower() in _ABBREVIATIONS


def uncase(word: str) -> str:
    """u(y): the word in lower case and Unicode NFC; `<UNK>` and others that would become special words are unchanged.

    >>> uncase("ÉRICA"), uncase("<UNK>")
    ('érica', '<UNK>')
    """
    lower = nfc(word.lower())
    return word if lower in SPECIAL else lower


def last_sentence(text: str) -> list[str]:
    """The words of the sentence that is being typed; none if the text ends with a finished sentence.

    >>> last_sentence("Hi there! See you")
    ['See', 'you']
    """
    sentences = normalize(text)
    return [] if is_ended(text) or not sentences else sentences[-1]


def is_ended(text: str) -> bool:
    """Whether the next word begins a sentence."""
    return not text.strip() or text.rstrip()[-1] in ".!?…" or text.endswith("\n")
