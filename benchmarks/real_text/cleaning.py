"""What every source needs: repaired characters, placeholders for addresses and names, and sentences."""

import html
import re
import unicodedata
from typing import NamedTuple

_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "’": "'", "‘": "'", "‚": "'", "´": "'"})
_MOJIBAKE = re.compile(r"[ÃÂ][\u0080-\u00bf€-™]|â€")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028\u2029\u2060\ufeff\ufffd]")
_PLACEHOLDERS = (
    (re.compile(r"[\w.+-]*\w@[\w-]+(?:\.[\w-]+)*"), "<email>"),
    (re.compile(r"(?:https?://|www\.)\S+|\b[\w-]+\.(?:com|org|net|io|br|gov)(?:\.\w\w)?(?:/\S*)?(?!\w)"), "<url>"),
    (re.compile(r"(?<!\w)@[\w-]+"), "<user>"),
    (re.compile(r"(?<!\w)(?:\+?\d{1,3}[ .-])?\(?\d{2,4}\)?[ .-]?\d{3,5}[ .-]\d{4}(?!\d)"), "<phone>"),
)
_WORD = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_END = re.compile(r"""(?<=[.!?…])["')\]]*\s+(?=["'(\[]?[^\W_a-zà-ÿ])""")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|Mr|Mrs|Ms|Dr|Dra|Prof|Profa|Sr|Sra|Srs|Sras|Srta|St|Jr|vs|etc|art|arts|Art|inc|nº|no|"
    r"V\.Exa|V\.Exas|S\.Exa|Exmo|Exma|pág|cf|Cf|Av|Gen|Gov|Sen|Dep)\.$"
)


class Message(NamedTuple):
    """Text of an author, by the author's name in the source."""

    author: str
    text: str


def clean(text: str, *, lines: bool = False) -> str:
    """The text with repaired characters and single spaces; `lines` keeps its lines apart.

    >>> clean("caf&eacute;  &amp;  “tea”"), clean("nÃ£o")
    ('café & "tea"', 'não')
    """
    text = html.unescape(html.unescape(text))
    if _MOJIBAKE.search(text):
        text = _repaired(text)
    text = unicodedata.normalize("NFC", text).translate(_QUOTES).replace("\r\n", "\n")
    if lines:
        return "\n".join(_CONTROL.sub("", line).replace("\xa0", " ") for line in text.split("\n"))
    return " ".join(_CONTROL.sub("", text.replace("\n", " ")).split())


def _repaired(text: str) -> str:
    """UTF-8 that was read as Windows-1252, read again; the text as it is if that fails."""
    try:
        return text.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return text


def anonymize(text: str) -> str:
    """The text with placeholders for addresses, @handles and numbers that look like telephone numbers.

    >>> anonymize("ask @ann or a.b@c.org, see http://x.org/1 or call 555-123-4567")
    'ask <user> or <email>, see <url> or call <phone>'
    """
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(lambda m, p=placeholder: p + _closing(m[0]) if p == "<url>" else p, text)  # type: ignore[misc]
    return text


def _closing(address: str) -> str:
    """The punctuation at the end of an address, which belongs to the sentence."""
    return address[len(address.rstrip(".,;:!?)\"'")) :]


def words(text: str) -> list[str]:
    """Maximal runs of letters; apostrophes and hyphens may be inside.

    >>> words("It's a well-known 2nd try")
    ["It's", 'a', 'well-known', 'nd', 'try']
    """
    return _WORD.findall(text)


def split_sentences(text: str) -> list[str]:
    """The sentences of running text: they end at `.`, `!`, `?` or `…` before a capital or a digit.

    >>> split_sentences("O Sr. Lima falou. Art. 5 vale! E agora?")
    ['O Sr. Lima falou.', 'Art. 5 vale!', 'E agora?']
    """
    result: list[str] = []
    begin = 0
    for match in _END.finditer(text):
        end = match.start() + len(match[0].rstrip())
        if not _ABBREVIATION.search(text[begin : match.start()]):
            result.append(text[begin:end].strip())
            begin = match.end()
    result.append(text[begin:].strip())
    return [sentence for sentence in result if sentence]
