"""Sentences of public text without users: plain text, Wikipedia dumps, Tatoeba's files and subtitles.

The format of a file is recognised by its first lines, and packed files are unpacked:

- a Wikipedia dump (`pages-articles.xml.bz2`): the articles, without templates, tables, references and markup; also the
  output of WikiExtractor, whose `<doc>` lines are left out;
- Tatoeba's sentence files: number, tab, language, tab, sentence; also two columns;
- subtitles (`.srt`): without numbers, times and tags;
- any other file is plain text. A line may have many sentences, and a blank line ends one.

Sentences are split into words as users' messages are (`normalize`). Scripts that this cannot do are refused: those that
write no blanks between words, and those whose vowels are marks.
"""

import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast
from xml.etree import ElementTree

from fedgram.core.errors import InputError
from fedgram.text.corpus import open_text
from fedgram.text.normalize import normalize, uncase

_HEAD_BYTES = 1 << 16
_MAX_LINE = 1 << 20
_TATOEBA = re.compile(r"\d+\t(?:[a-z]{2,4}\t)?[^\t]+")
_TIMES = re.compile(r"\d\d:\d\d:\d\d[,.]\d{3} --> ")
_TAG = re.compile(r"<[^<>]{0,500}>|\{\\[^{}]{0,100}\}")
_NOT_PROSE = re.compile(
    r"<(ref|math|gallery|table|timeline|syntaxhighlight|score)\b[^<>]{0,500}(?<!/)>.{0,20000}?</\1>", re.DOTALL
)
_COMMENT = re.compile(r"<!--.{0,20000}?-->", re.DOTALL)
_INNERMOST = re.compile(r"\{\{[^{}]*\}\}|\{\|[^{}]*\|\}")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_NAMED_LINK = re.compile(r"\[\[[^\[\]|:]{1,30}:[^\[\]]*\]\]")
_WEB_LINK = re.compile(r"\[\S{1,500}(?: ([^\[\]]*))?\]")
_MAX_NESTING = 20
_NO_BLANKS = ("CJK UNIFIED", "HIRAGANA", "KATAKANA", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")


def public_sentences(paths: Sequence[str | Path]) -> Iterator[list[str]]:
    """The sentences of all files, as words; the first lines of each file are checked for scripts that are refused."""
    for path in paths:
        with open_text(path) as raw:
            file = cast(io.BufferedReader, raw)
            head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES].decode(errors="replace")
            for number, text in enumerate(_texts(file, head, path)):
                if number == 0 or number % 1000 == 0:
                    _check_script(text, path)
                yield from normalize(text)


def _texts(file: BinaryIO, head: str, path: str | Path) -> Iterator[str]:
    if "<mediawiki" in head[:1000]:
        yield from _articles(file, path)
        return
    first = [line for line in head.splitlines()[:20] if line.strip()]
    if any(_TIMES.match(line) for line in first):
        yield from _paragraphs(line for line in _lines(file, path) if not (line.isdigit() or _TIMES.match(line)))
    elif len(first) > 1 and all(_TATOEBA.fullmatch(line) for line in first[:-1]):
        yield from (line.rpartition("\t")[2] for line in _lines(file, path))
    else:
        yield from (_TAG.sub(" ", line) for line in _lines(file, path))


def _lines(file: BinaryIO, path: str | Path) -> Iterator[str]:
    number = 0
    while raw := file.readline(_MAX_LINE):
        number += 1
        try:
            yield raw.removeprefix(b"\xef\xbb\xbf").decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InputError(path, "is not UTF-8 text", line=number, remedy="convert it to UTF-8") from None


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    """Lines up to a blank one as one text: a subtitle's sentence may go over two lines."""
    together: list[str] = []
    for line in lines:
        if line.strip():
            together.append(_TAG.sub(" ", line))
        elif together:
            yield " ".join(together)
            together = []
    if together:
        yield " ".join(together)


def _articles(file: BinaryIO, path: str | Path) -> Iterator[str]:
    """The text of the articles of a dump: pages of namespace 0 that are no redirects."""
    try:
        namespace, is_article = "", False
        for event, element in ElementTree.iterparse(file, events=("start", "end")):
            name = element.tag.rpartition("}")[2]
            if event == "start":
                is_article = is_article if name != "page" else True
                continue
            if name == "ns":
                namespace = element.text or ""
            elif name == "redirect":
                is_article = False
            elif name == "text" and is_article and namespace in ("", "0"):
                yield from _prose(element.text or "").split("\n")
            elif name == "page":
                element.clear()
    except ElementTree.ParseError as error:
        raise InputError(path, "is not a complete XML dump", line=error.position[0]) from None


def _prose(text: str) -> str:
    """An article without the markup of MediaWiki; headings and items of lists are left out.

    >>> _prose("{{Box|a={{b}}}}'''Rain''' falls from [[cloud|clouds]].<ref>x</ref>")
    'Rain falls from clouds.'
    """
    text = _NOT_PROSE.sub(" ", _COMMENT.sub(" ", text))
    for _ in range(_MAX_NESTING):
        text, found = _INNERMOST.subn(" ", text)
        if not found:
            break
    for _ in range(3):
        text = _LINK.sub(r"\1", _NAMED_LINK.sub(" ", text))
    text = _TAG.sub(" ", _WEB_LINK.sub(r"\1", text)).replace("'''''", "").replace("'''", "").replace("''", "")
    kept = (line.strip() for line in text.split("\n"))
    return "\n".join(line for line in kept if line and line[0] not in "=*#:;|!{}")


def _check_script(text: str, path: str | Path) -> None:
    letters = [c for c in text[:2000] if unicodedata.category(c)[0] in "LM"]
    if len(letters) < 10:
        return
    names = Counter(unicodedata.name(c, "") for c in letters)
    unspaced = sum(n for name, n in names.items() if name.startswith(_NO_BLANKS))
    marks = sum(unicodedata.category(c) in ("Mn", "Mc") and not "\u0300" <= c <= "\u036f" for c in letters)
    remedy = "fedgram knows scripts with blanks between words and vowels that are letters"
    if unspaced > len(letters) / 2:
        raise InputError(path, "is in a script without blanks between words, which is not supported", remedy=remedy)
    if marks > len(letters) / 10:
        raise InputError(path, "is in a script whose vowels are marks, which is not supported", remedy=remedy)


def with_true_case(sentences: list[list[str]]) -> list[list[str]]:
    """The sentences, where a capital that only begins a sentence is dropped.

    The first word gets the form that is most frequent within sentences, if any is there.

    >>> with_true_case([["The", "cat"], ["Ann", "saw", "the", "cat"], ["See", "Ann"]])
    [['the', 'cat'], ['Ann', 'saw', 'the', 'cat'], ['See', 'Ann']]
    """
    forms: dict[str, Counter[str]] = {}
    for word, count in Counter(word for sentence in sentences for word in sentence[1:]).items():
        forms.setdefault(uncase(word), Counter())[word] += count
    usual = {lower: max(found, key=lambda form: (found[form], form)) for lower, found in forms.items()}
    return [[usual.get(uncase(sentence[0]), sentence[0]), *sentence[1:]] for sentence in sentences]
