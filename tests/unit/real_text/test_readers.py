"""Readers of users' text: each on a few generated lines in the format of its source."""

import bz2
import doctest
import subprocess
from pathlib import Path

import pytest
from benchmarks.real_text import camara, checkouts, cleaning, essay_br, gitter, self_dialogue, supplement, uol
from benchmarks.real_text.checkouts import open_checkout
from benchmarks.real_text.cleaning import Message, anonymize, clean
from benchmarks.real_text.word_frequencies import Languages
from tests.unit.real_text.mirror import assignment, checkout, csv_text, post

from fedgram.core.errors import FedgramError

ENGLISH = ["i", "like", "the", "red", "house", "it", "is", "big", "hello", "see"]
PORTUGUESE = ["eu", "gosto", "da", "casa", "vermelha"]
LANGUAGES = Languages({"en": dict.fromkeys(ENGLISH, 6.0), "pt": dict.fromkeys(PORTUGUESE, 6.0)})


@pytest.mark.parametrize("module", [cleaning, gitter, supplement], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module: object) -> None:
    tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried.attempted
    assert not tried.failed


def test_a_checkout_gives_the_files_of_its_commit(tmp_path: Path) -> None:
    made = checkout(tmp_path, "own/texts", {"a/1.txt": "old", "b.txt": "b"}, {"a/1.txt": "new", "a/2.csv": "c"})
    assert made.paths("a") == ["a/1.txt", "a/2.csv"]
    assert made.paths("a", ".csv") == ["a/2.csv"]
    assert list(made.read(["b.txt", "a/1.txt"])) == [("b.txt", b"b"), ("a/1.txt", b"new")]
    assert sorted(made.read_all_versions("a", ".txt")) == [("a/1.txt", b"new"), ("a/1.txt", b"old")]
    assert len(made.commit) == 40


def test_a_bare_repository_is_a_checkout_too(tmp_path: Path) -> None:
    made = checkout(tmp_path / "first", "own/texts", {"a.txt": "text"})
    place = tmp_path / "second" / "own+texts" / "repo"
    subprocess.run(["git", "clone", "--quiet", "--bare", str(made.folder), str(place)], check=True)
    assert open_checkout(tmp_path / "second", "own/texts").read_one("a.txt") == b"text"


def test_what_a_checkout_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkout(tmp_path, "own/texts", {"a.txt": "a"})
    assert list(made.read(["gone.txt", "a.txt"])) == [("a.txt", b"a")]
    assert "own/texts: gone.txt is not in the checkout" in capsys.readouterr().err
    with pytest.raises(FedgramError, match="clone own/texts completely"):
        made.read_one("gone.txt")
    with pytest.raises(FedgramError, match=r"git clone https://github\.com/own/other .*own\+other"):
        checkouts.open_checkout(tmp_path, "own/other")


def test_self_dialogues_come_in_the_order_of_submission(tmp_path: Path) -> None:
    late, early = assignment("W1", 1, second=30), assignment("W1", 2, second=10)
    rejected, blocked = assignment("W2", 3, "Rejected"), assignment("W3", 4)
    files = {"corpus/x/1.csv": csv_text(late, rejected), "corpus/y/2.csv": csv_text(early, blocked, late)}
    made = checkout(tmp_path, self_dialogue.REPOSITORY, {**files, "blocked_workers.txt": "W3\n"})
    texts = ["one, 2", "two", "ten", "one, 1", "two", "ten"]
    assert list(self_dialogue.messages(made)) == [Message("W1", text) for text in texts]


MARKED = "@bob77 I like the **red** house :smile:\n> quoted\n```\ncode\n```\nvar x = 1;"


def test_chat_lines_are_prose_of_the_language(tmp_path: Path) -> None:
    content = (
        post("bob77", "2016-02-01", "it is big", 2)
        + post("Annika", "2016-01-01", MARKED, 1)
        + post("camperbot", "2016-01-02", "it is big", 3)
        + post("bob77", "2016-02-02", "eu gosto da casa vermelha", 4)
        + post("bob77", "2016-02-03", "hello annika see it", 5)
        + post("bob77", "2016-02-04", "zzz qqq xxx", 6)
        + "a row with too few columns\n"
    )
    made = checkout(tmp_path, gitter.REPOSITORY, {"archives/Casual.tsv": content, "archives/Other.tsv": content})
    assert list(gitter.messages(made, "en", LANGUAGES)) == [
        Message("id-Annika", "I like the red house"),
        Message("id-bob77", "it is big"),
        Message("id-bob77", "hello <user> see it"),
    ]


def test_no_room_is_named_twice() -> None:
    for rooms in gitter.ROOMS.values():
        assert len(rooms) == len(set(rooms))
    assert not set(gitter.ROOMS["en"]) & set(gitter.ROOMS["pt"])


def test_essays_of_an_xml_file(tmp_path: Path) -> None:
    content = """<?xml version="1.0" ?><prompts><prompt><essays>
        <essay><title>T</title><url>u/1</url><original>\nUm parágrafo.\n\nOutro.\n</original><fixed>x</fixed></essay>
        <essay><original>Sem endereço.</original></essay><essay><url>u/3</url></essay>
        </essays></prompt></prompts>"""
    made = checkout(tmp_path, uol.REPOSITORY, {"uol_redacoes_xml/essays.xml.bz2": bz2.compress(content.encode())})
    expected = [Message("u/1", "Um parágrafo."), Message("u/1", "Outro."), Message("1", "Sem endereço.")]
    assert list(uol.messages(made)) == expected


def test_essays_of_all_versions_of_a_csv_file(tmp_path: Path) -> None:
    first, second, broken = "['Um.', 'Dois.']", "['Três.', '']", "['Quatro"
    rows = [{"prompt": "1", "essay": essay, "score": "9"} for essay in (first, second, broken, "3")]
    old, new = {"essay-br/splits/test.csv": csv_text(*rows[:1])}, {"essay-br/splits/test.csv": csv_text(*rows)}
    found = list(essay_br.messages(checkout(tmp_path, essay_br.REPOSITORY, old, new)))
    assert [message.text for message in found] == ["Um.", "Dois.", "Três."]
    assert found[0].author == found[1].author != found[2].author


def test_debates_by_speaker_without_remarks_and_formulas(tmp_path: Path) -> None:
    folder = "processamento-analise-dados/data/process-data"
    later = csv_text({"data": "02/07/2019", "autor": "ANA", "discurso": "Concedo a palavra. Eu (Palmas.) discordo."})
    earlier = csv_text(
        {"id": "1", "data": "09/04/2019", "autor": "ANA", "discurso": "Bom dia. Sr. Lima, obrigada."},
        {"id": "1", "data": "09/04/2019", "autor": "NA", "discurso": "Ninguém."},
        {"id": "1", "data": "ontem", "autor": "RUI", "discurso": "Sem dia."},
    )
    made = checkout(tmp_path, camara.REPOSITORY, {f"{folder}/a.csv": later, f"{folder}/b.csv": earlier})
    texts = ["Bom dia.", "Sr. Lima, obrigada.", "Eu   discordo."]
    assert list(camara.messages(made)) == [Message("ANA", text) for text in texts]


def test_cleaning_keeps_what_people_typed() -> None:
    assert clean("I  don’t\tknow…\x07 &lt;3") == "I don't know… <3"
    assert clean("Ãlvaro Ã") == "Ãlvaro Ã"  # not UTF-8 that was misread
    assert clean("a\r\nb\x00c", lines=True) == "a\nbc"
    assert anonymize("me@host and +1 555 123 4567") == "<email> and <phone>"
    assert anonymize("not 2016-2017 or 10 000") == "not 2016-2017 or 10 000"
    assert anonymize("see www.x.org/a?b=1, (or x.com).") == "see <url>, (or <url>)."
