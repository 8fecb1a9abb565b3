"""Messages by user from WhatsApp's exports, in the forms of many languages."""

from pathlib import Path

import pytest
from tests.unit.text.importing import SECRET, read, refused


def _chat(path: Path, *lines: str) -> Path:
    path.write_bytes("\n".join(lines).encode())
    return path


@pytest.mark.parametrize(
    "stamp",
    [
        "12/31/20, 10:15 PM - ",
        "12/31/20, 10:15\u202fPM - ",
        "12/31/2020, 10:15 pm - ",
        "12/31/20, 22:15 - ",
        "[12/31/20, 10:15:30 PM] ",
        "[12/31/20, 10:15:30\u202fPM] ",
        "\u200e[12/31/20, 10:15:30\u202fPM] ",
        "[31/12/2020, 22:15:30] ",
        "31/12/2020 22:15 - ",
        "31/12/2020, 22:15 - ",
        "31/12/20 22:15 - ",
        "20/6/2017 8:28 p.\u00a0m. - ",
        "[31/12/2019, 2:14:40 a.m.] ",
        "31.12.20, 22:15 - ",
        "[31.12.20, 22:15:30] ",
        "2020-12-31, 22:15 - ",
        "[2020-12-31, 22:15:30] ",
        "[2020/12/31 22:15:30] ",
        "[12.3.2022 klo 14.08.18] ",
        "31-12-20 22:15 - ",
        "2020/12/31 下午10:15 - ",
        "2020. 12. 31. 오후 10:15 - ",
        "٣١\u200f/١٢\u200f/٢٠٢٠، ١٠:١٥ م - ",
        "31.12.20 г., 22:15 ч. - ",
        "31/12/20, 10:15\u202fμ.μ. - ",
        "2020-12-31 22 h 15 - ",
        "22:15, 31/12/2020 - ",
    ],
)
def test_layouts(tmp_path: Path, stamp: str) -> None:
    lines = [
        f"{stamp}Messages and calls are end-to-end encrypted. Tap to learn more.",
        f"{stamp}Ann Example: hello: there",
        f"{stamp}\u202a+55\u00a011 99999-9999\u202c: olá",
        "",
        "e até logo - 10:15",
        f"{stamp}Bob: \r",
        "after a line\r",
    ]
    source = _chat(tmp_path / "chat.txt", *lines)
    found, report = read(source)
    expected = [("Ann Example", "hello: there"), ("+55 11 99999-9999", "olá\n\ne até logo - 10:15")]
    assert found == [*expected, ("Bob", "\nafter a line")]
    assert (report.files[0].format, report.skipped, report.users) == ("whatsapp", {"system message": 1}, 3)
    assert report.first_places == {"system message": f"{source}:1"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<Media omitted>", "media or attachment"),
        ("<Mídia oculta>", "media or attachment"),
        ("<Arquivo de mídia oculto>", "media or attachment"),
        ("<Medien ausgeschlossen>", "media or attachment"),
        ("<Multimedia omitido>", "media or attachment"),
        ("image omitted", "media or attachment"),
        ("\u200eimage omitted", "media or attachment"),
        ("\u200eGIF omitted", "media or attachment"),
        ("\u200eimagem ocultada", "media or attachment"),
        ("imagem ocultada", "media or attachment"),
        ("Bild weggelassen", "media or attachment"),
        ("<attached: 00000012-PHOTO-2020-12-31.jpg>", "media or attachment"),
        ("\u200e<attached: 00000012-PHOTO-2020-12-31.jpg>", "media or attachment"),
        ("\u200e<anexado: 00000012-PHOTO-2020-12-31.jpg>", "media or attachment"),
        ("\u200eIMG-20201231-WA0001.jpg (file attached)", "media or attachment"),
        ("IMG-20201231-WA0001.jpg (arquivo anexado)", "media or attachment"),
        ("report.pdf • \u200e3 pages \u200edocument omitted", "media or attachment"),
        ("\u200ereport.pdf • \u200e3 pages \u200edocument omitted", "media or attachment"),
        ("null", "media or attachment"),
        ("<Без медиафайлов>", "media or attachment"),
        ("<Media har utelämnats>", "media or attachment"),
        ("<Archivo omitido>", "media or attachment"),
        ("<Fichier omis>", "media or attachment"),
        ("<Media omessi>", "media or attachment"),
        ("<ficheiro não revelado>", "media or attachment"),
        ("<Medya dahil edilmedi>", "media or attachment"),
        ("<media tidak disertakan>", "media or attachment"),
        ("<pominięto multimedia>", "media or attachment"),
        ("< Média vynechána >", "media or attachment"),
        ("<Uten vedlegg>", "media or attachment"),
        ("<Εξαίρεση πολυμέσων>", "media or attachment"),
        ("<медіа пропущено>", "media or attachment"),
        ("<تم استبعاد الوسائط>", "media or attachment"),
        ("< پيوست نما/آهنگ حذف شد >", "media or attachment"),
        ("<מדיה הושמטה>", "media or attachment"),
        ("<メディアは含まれていません>", "media or attachment"),
        ("<미디어 파일을 생략한 대화내용>", "media or attachment"),
        ("<省略多媒體檔案>", "media or attachment"),
        ("<मीडिया के बिना>", "media or attachment"),
        ("<สื่อถูกลบ>", "media or attachment"),
        ("<video message omitted>", "media or attachment"),
        ("\u200e<words of a language that is not listed>", "media or attachment"),
        ("doc.pdf (bestand bijgevoegd)", "media or attachment"),
        ("Данное сообщение удалено", "deleted message"),
        ("このメッセージは削除されました", "deleted message"),
        ("Missed voice call", "system message"),
        ("Chamada de vídeo perdida", "system message"),
        ("This message was deleted", "deleted message"),
        ("This message was deleted.", "deleted message"),
        ("\u200eYou deleted this message.", "deleted message"),
        ("Mensagem apagada", "deleted message"),
        ("Essa mensagem foi apagada", "deleted message"),
        ("\u200eAnn added Bob", "system message"),
        ("", "no text"),
    ],
)
def test_placeholders_are_counted(tmp_path: Path, text: str, reason: str) -> None:
    source = _chat(tmp_path / "chat.txt", f"31/12/20, 22:15 - Ann: {text}", "31/12/20, 22:15 - Bob: hi")
    found, report = read(source)
    assert found == [("Bob", "hi")]
    assert report.skipped == {reason: 1}


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("<Media omitted>\nlook at this", "look at this"),
        ("IMG-1.jpg (file attached)\nlook\nthere", "look\nthere"),
        ("look at this \u200eimage omitted", "look at this"),
        ("look at this \u200e<attached: 1.jpg>", "look at this"),
        ("hello \u200e<This message was edited>", "hello"),
        ("olá <Mensagem editada>", "olá"),
        ("hej \u200e<Det här meddelandet redigerades>", "hej"),
        ("I like <this message>", "I like <this message>"),
        ("<3", "<3"),
        ("<b>", "<b>"),
        ("<something>", "<something>"),
        ("<insert my excuse here>", "<insert my excuse here>"),
        ("<omitted>", "<omitted>"),
        ("<media>", "<media>"),
        ("<notes: list.txt>", "<notes: list.txt>"),
        ("a <Media omitted>", "a <Media omitted>"),
        ("a missed voice call again", "a missed voice call again"),
        ("the image omitted a lot", "the image omitted a lot"),
        ("see\nimage omitted", "see\nimage omitted"),
        ("a <b> c", "a <b> c"),
        ("@\u2068Bob\u2069 hi", "@\u2068Bob\u2069 hi"),
    ],
)
def test_what_was_typed_is_kept(tmp_path: Path, written: str, text: str) -> None:
    assert read(_chat(tmp_path / "chat.txt", f"31/12/20, 22:15 - Ann: {written}"))[0] == [("Ann", text)]


@pytest.mark.parametrize(
    "line",
    [
        "Ann added Bob",
        'Ann changed the subject from "A" to "Lunch: today"',
        "Ann changed the subject to “Lunch: today”",
        "Your security code with Ann changed.",
    ],
)
def test_system_messages_and_their_further_lines_are_skipped(tmp_path: Path, line: str) -> None:
    stamp = "12/31/20, 10:15 PM - "
    found, report = read(_chat(tmp_path / "chat.txt", stamp + line, "more of it", stamp + "Ann: hi"))
    assert found == [("Ann", "hi")]
    assert report.skipped == {"system message": 1}


def test_lines_before_the_first_message_are_counted(tmp_path: Path) -> None:
    source = _chat(tmp_path / "chat.txt", SECRET, "", SECRET, "31/12/20, 22:15 - Ann: hi")
    found, report = read(source, format="whatsapp")
    assert found == [("Ann", "hi")]
    assert report.skipped == {"text before the first message": 2}
    assert report.first_places == {"text before the first message": f"{source}:1"}


def test_folder_of_chats(tmp_path: Path) -> None:
    _chat(tmp_path / "1.txt", "31/12/20, 22:15 - Ann: one")
    (tmp_path / "WhatsApp Chat - Bob").mkdir()
    _chat(
        tmp_path / "WhatsApp Chat - Bob" / "_chat.txt", "[31.12.20, 22:15:30] Bob: two", "[31.12.20, 22:15:31] Ann: 3"
    )
    _chat(tmp_path / ".2.txt", "31/12/20, 22:15 - Ann: hidden")
    found, report = read(tmp_path)
    assert found == [("Ann", "one"), ("Bob", "two"), ("Ann", "3")]
    assert (report.files[0].format, report.users) == ("whatsapp", 2)


def test_broken_chats_are_refused(tmp_path: Path) -> None:
    assert "is empty" in str(refused(tmp_path, format="whatsapp"))
    source = _chat(tmp_path / "chat.txt", f"{SECRET}: {SECRET}")
    assert "no line starts with a date and a time" in str(refused(source, format="whatsapp"))
    _chat(source, f"31/12/20, 22:15 - {SECRET}")
    assert "contains no messages in the format whatsapp (skipped: system message 1)" in str(
        refused(source, format="whatsapp")
    )
    source.write_bytes(f"31/12/20, 22:15 - Ann: {SECRET}\nol".encode() + b"\xe9\n")
    assert refused(source, format="whatsapp").line == 2


@pytest.mark.parametrize("typed", ["18:30 12.05.2024 - Party: bring food", "[18:30, 12.05.2024] Party: bring food"])
def test_a_time_before_a_date_begins_no_message_in_a_chat_of_dates_before_times(tmp_path: Path, typed: str) -> None:
    stamp = "31.12.20, 22:15 - "
    found, report = read(_chat(tmp_path / "chat.txt", f"{stamp}Ann: come", typed, f"{stamp}Bob: yes"))
    assert found == [("Ann", f"come\n{typed}"), ("Bob", "yes")]
    assert report.users == 2


def test_dates_and_times_with_dots_may_come_in_either_order(tmp_path: Path) -> None:
    """The first line could be read both ways, the second one only with the time first."""
    lines = "10.15.30, 31.12.20 - Ann: one", "10.15.30, 1.2.20 - Bob: two"
    assert read(_chat(tmp_path / "chat.txt", *lines))[0] == [("Ann", "one"), ("Bob", "two")]


@pytest.mark.parametrize(
    "lines",
    [
        ("2020년 12월 31일 오후 10:15, 지민 : one", "2020년 12월 31일 오후 10:16, 수아 : two"),
        ("My chat", "31 Dec 2020 22:15:30 4 Ann: one", "", "31 Dec 2020 22:15:31 4 Bob: two"),
    ],
)
def test_a_chat_with_unknown_dates_is_not_the_text_of_one_user(tmp_path: Path, lines: tuple[str, ...]) -> None:
    _chat(tmp_path / "chat.txt", *lines)
    _chat(tmp_path / "diary.txt", "31/12/2020 22:15, my plan: a party", "Then 1 2 3 4 5 6: sleep", "at home")
    found, report = read(tmp_path)
    assert {user for user, _ in found} == {"diary"}
    problem = "looks like a chat of several users, with dates in an unknown form"
    assert [file.problem.partition("; ")[0] for file in report.unread if file.problem] == [problem]


def test_a_diary_that_looks_like_a_chat_can_be_imported_as_text(tmp_path: Path) -> None:
    lines = "2024-05-01 10:30 Breakfast: eggs", "2024-05-02 10:40 Breakfast: toast"
    _chat(tmp_path / "ann.txt", *lines)
    _chat(tmp_path / "bob.txt", "hi")
    found, report = read(tmp_path)
    assert found == [("bob", "hi")]
    assert "if one user wrote it, import its folder with --format text" in str(report.unread[0].problem)
    assert "otherwise write it as CSV with the columns user and text" in str(report.unread[0].problem)
    found, report = read(tmp_path, format="text")
    assert found == [*(("ann", line) for line in lines), ("bob", "hi")]
    assert not report.unread
