"""Messages by user from Telegram Desktop and mbox."""

import json
from email.message import EmailMessage
from pathlib import Path

import pytest
from tests.unit.text.importing import SECRET, read, refused

from fedgram.text.chat_exports import Found


def test_found_shows_no_text() -> None:
    assert SECRET not in repr(Found("ann", SECRET, "a:1"))


# Telegram.


def _export(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return path


def _telegram(text: object, **fields: object) -> dict[str, object]:
    return {"id": 1, "type": "message", "from": "Ann", "from_id": "user1", "text": text, **fields}


def test_telegram_chat(tmp_path: Path) -> None:
    mention = {"type": "mention", "text": "@bob"}
    messages = [
        {"id": 1, "type": "service", "actor": "Ann", "action": "create_group", "text": SECRET},
        _telegram("hello\nthere"),
        _telegram(["hi ", mention, "!"], from_id="user2"),
        _telegram("old export", from_id=17),
        {"type": "message", "from": "Carl", "text": "no id"},
        _telegram("gone", **{"from": None}),
        _telegram(SECRET, from_id=None, **{"from": None}),
        _telegram("", photo="photo.jpg"),
        _telegram([]),
        _telegram(SECRET, forwarded_from="Bob"),
        _telegram(SECRET, from_id="channel9"),
        _telegram(SECRET, from_id=[1]),
        _telegram([SECRET, 7]),
        _telegram({"text": 7}),
        {"type": "unsupported"},
        SECRET,
    ]
    source = _export(tmp_path / "result.json", {"name": "chat", "messages": messages})
    found, report = read(tmp_path)
    assert found == [
        ("user1", "hello\nthere"), ("user2", "hi @bob!"), ("17", "old export"), ("Carl", "no id"), ("user1", "gone"),
    ]  # fmt: skip
    assert report.skipped == {
        "service message": 1, "no user": 1, "no text": 2, "forwarded message": 1, "posted in the name of a channel": 1,
        "the user is neither a string nor an integer": 1, "the text is not a string": 2, "unknown kind of message": 1,
        "not a JSON object": 1,
    }  # fmt: skip
    assert report.first_places["no user"] == f"{source}:message 7"


def test_telegram_account(tmp_path: Path) -> None:
    chats = [{"messages": [_telegram("one")]}, {"messages": [_telegram("two", from_id="user2")]}, {"name": "empty"}]
    left = {"list": [{"messages": [_telegram("three")]}]}
    source = _export(tmp_path / "export.json", {"about": "x", "chats": {"list": chats}, "left_chats": left})
    assert read(source)[0] == [("user1", "one"), ("user2", "two"), ("user1", "three")]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (f'{{"messages": [\n"{SECRET}"', ":2: is not JSON; "),
        ('{"messages": ' + "[" * 100_000, "is not readable as JSON"),
        ('["' + SECRET + '"]', "is not an export of Telegram Desktop"),
        ('{"chats": ["' + SECRET + '"]}', "is not an export of Telegram Desktop"),
        ('{"messages": []}', "contains no messages in the format telegram"),
    ],
)
def test_broken_telegram_export_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "result.json").write_text(content, encoding="utf-8")
    assert problem in str(refused(tmp_path / "result.json", format="telegram"))


def test_telegram_export_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(f'{{"messages": ["{SECRET}"]}}'.encode("utf-16"))
    assert "is not UTF-8 text" in str(refused(tmp_path, format="telegram"))


# Mail.


def _mbox(path: Path, *mails: bytes) -> Path:
    path.write_bytes(b"".join(b"From MAILER Mon Jan  1 10:00:00 2020\n" + mail + b"\n" for mail in mails))
    return path


def _mail(text: str, sender: str = "Ann <Ann@Example.ORG>") -> bytes:
    return f"From: {sender}\nContent-Type: text/plain; charset=utf-8\n\n{text}\n".encode()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("hello\nthere\n", "hello\nthere"),
        ("hi\n\n-- \nAnn\nzanzibar street", "hi"),
        ("hi\n-- not a signature", "hi\n-- not a signature"),
        ("On Mon, 1 Jan 2020, Bob wrote:\n> zanzibar\n>> zanzibar\n\nyes, I do", "yes, I do"),
        ("yes\n\nOn Mon, 1 Jan 2020 Bob Example\n<bob@example.org> wrote:\n\n> zanzibar\n\n> more\nno", "yes\nno"),
        ("Em seg., 1 de jan., Bob escreveu:\n> zanzibar\nsim", "sim"),
        ("Am 1. Januar schrieb Bob:\n> zanzibar\nja", "ja"),
        ("On reflection I wrote:\nthis", "On reflection I wrote:\nthis"),
        ("yes\n-----Original Message-----\nFrom: Bob\nzanzibar", "yes"),
        ("fyi\n---------- Forwarded message ---------\nzanzibar", "fyi"),
        ("fyi\nBegin forwarded message:\nzanzibar", "fyi"),
        ("yes\nFrom: Bob\nSent: Monday\nzanzibar", "yes"),
        ("From: here\nto there", "From: here\nto there"),
    ],
)
def test_own_words_of_a_mail(tmp_path: Path, body: str, text: str) -> None:
    found, report = read(_mbox(tmp_path / "a.mbox", _mail(body)))
    assert found == [("ann@example.org", text)]
    assert (report.files[0].format, report.users) == ("mbox", 1)
    assert read(_mbox(tmp_path / "b.mbox", _mail(body.replace("\n", "\r\n"))))[0] == found


def test_parts_and_encodings(tmp_path: Path) -> None:
    enclosed = EmailMessage()
    enclosed["From"] = "bob@example.org"
    enclosed.set_content(SECRET)
    both = EmailMessage()
    both["From"] = "Ann Ünal <ann@example.org>"
    both.set_content("só isto", charset="iso-8859-1")
    both.add_alternative(f"<p>{SECRET}</p>", subtype="html")
    both.add_attachment(SECRET, filename="a.txt")
    only_enclosed = EmailMessage()
    only_enclosed["From"] = "ann@example.org"
    only_enclosed.add_attachment(enclosed)
    page = EmailMessage()
    page["From"] = "ann@example.org"
    page.set_content(f"<p>{SECRET}</p>", subtype="html")
    page.add_attachment(SECRET, filename="a.txt")
    source = _mbox(tmp_path / "a.mbox", both.as_bytes(), only_enclosed.as_bytes(), page.as_bytes())
    found, report = read(source)
    assert found == [("ann@example.org", "só isto")]
    assert report.skipped == {"no text/plain part": 2}
    assert report.first_places == {"no text/plain part": f"{source}:message 2"}


def test_broken_mails_are_counted(tmp_path: Path) -> None:
    plain = b"From: ann@example.org\nContent-Type: text/plain; charset="
    mails = [
        _mail("from a list", "ann at example.org (Ann)"),
        _mail(SECRET, "ann@example.org, bob@example.org"),
        _mail(SECRET, "Ann"),
        b"Subject: no sender\n\n" + SECRET.encode() + b"\n",
        plain + b"utf-8\n\nol\xe9\n",
        plain + b"klingon\n\nhi\n",
        plain + b"hex\n\nhi\n",
        plain + b"utf-8\nContent-Transfer-Encoding: base64\n\naaaaa\n",
        _mail(f"> {SECRET}"),
    ]
    found, report = read(_mbox(tmp_path / "a.mbox", *mails))
    assert found == [("ann@example.org", "from a list")]
    assert report.skipped == {
        "more than one sender": 1, "no user": 2, "text in an unknown or broken encoding": 4, "no text": 1
    }  # fmt: skip


def test_broken_mbox_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.mbox"
    for content in ("", SECRET):
        source.write_text(content, encoding="utf-8")
        assert "is not an mbox file" in str(refused(source, format="mbox"))
    _mbox(source, _mail(f"> {SECRET}"))
    assert "contains no messages in the format mbox (skipped: no text 1)" in str(refused(source, format="mbox"))
