"""Sentences of Wikipedia dumps, Tatoeba's files, subtitles and plain text."""

import bz2
from pathlib import Path

import pytest

from fedgram.core.errors import InputError
from fedgram.text.public_text import public_sentences, with_true_case

DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="sv">
<siteinfo><sitename>Wikipedia</sitename></siteinfo>
<page><title>Regn</title><ns>0</ns><revision><text xml:space="preserve">{{Infobox|a={{b|c}}}}
'''Regn''' faller från [[moln|molnen]].&lt;ref name="x"/&gt; Det är vått.&lt;ref&gt;Bok, 1990&lt;/ref&gt;
[[Fil:a.jpg|thumb|En [[bild]]]]
== Se även ==
* [[Snö]]
{| class="t"
| cell
|}
[http://example.org En länk] finns.&lt;!-- dold --&gt;</text></revision></page>
<page><title>Diskussion:Regn</title><ns>1</ns><revision><text>Inte detta.</text></revision></page>
<page><title>Rg</title><ns>0</ns><redirect title="Regn"/><revision><text>#OMDIRIGERING [[Regn]]</text></revision></page>
</mediawiki>"""
SUBTITLES = """1
00:00:01,000 --> 00:00:02,000
<i>Vad gör
du här?</i>

2
00:00:03,000 --> 00:00:04,000
Ingenting.
"""


def words(path: Path) -> list[str]:
    return [" ".join(sentence) for sentence in public_sentences([path])]


def test_a_wikipedia_dump(tmp_path: Path) -> None:
    path = tmp_path / "svwiki-pages-articles.xml.bz2"
    path.write_bytes(bz2.compress(DUMP.encode()))
    assert words(path) == ["Regn faller från molnen", "Det är vått", "En länk finns"]
    path.write_text(DUMP[:600])
    with pytest.raises(InputError, match="is not a complete XML dump"):
        words(path)


def test_subtitles_tatoeba_and_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(SUBTITLES)
    assert words(path) == ["Vad gör du här", "Ingenting"]
    path.write_text("12\tswe\tJag vet inte.\n13\tswe\tKom hit!\n14\tswe\tHej\n")
    assert words(path) == ["Jag vet inte", "Kom hit", "Hej"]
    path.write_text("12\tJag vet inte.\n13\tKom hit!\n")
    assert words(path) == ["Jag vet inte", "Kom hit"]
    path.write_text('<doc id="1" title="Regn">\nRegn faller. Det är vått.\n</doc>\n')
    assert words(path) == ["Regn faller", "Det är vått"]
    path.write_bytes("Hej\nfrån\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.txt:2: is not UTF-8"):
        words(path)


def test_scripts_that_cannot_be_split_into_words_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text, problem in (
        ("今日は良い天気ですね。散歩に行きましょう。", "without blanks"),
        ("मुझे नहीं पता कि क्या हुआ", "vowels are marks"),
    ):
        path.write_text(text + "\n")
        with pytest.raises(InputError, match=problem):
            words(path)
    path.write_text("אני לא יודע מה קרה. בוא הנה\n")  # from right to left
    assert words(path) == ["אני לא יודע מה קרה", "בוא הנה"]


def test_capitals_that_only_begin_a_sentence_are_dropped() -> None:
    text = [["Det", "är", "Anna"], ["Anna", "vet", "det"], ["Ofta"]]
    assert with_true_case(text) == [["det", "är", "Anna"], ["Anna", "vet", "det"], ["Ofta"]]
