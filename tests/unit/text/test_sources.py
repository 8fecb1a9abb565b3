"""Folders and zips of mixed exports: each file by its own format, users by name, pseudonyms and merging."""

import json
import stat
import zipfile
from pathlib import Path

import pytest
from tests.unit.text.importing import SECRET, read, refused, write

from fedgram.core.errors import FedgramError, InputError
from fedgram.text.importers import ImportOptions, read_messages
from fedgram.text.merging import merged_messages
from fedgram.text.messages import write_messages
from fedgram.text.population import open_population, population_from_messages, write_population
from fedgram.text.pseudonyms import default_key_file, pseudonym, read_key

KEY = b"0123456789abcdef"


def whatsapp(*names: str, minute: int = 10) -> str:
    return "".join(f"31/12/2020 22:{minute} - {name}: hello from {name}\n" for name in names)


def telegram(*names: str) -> str:
    messages = [
        {
            "id": i,
            "type": "message",
            "date": "2020-01-01T10:00:00",
            "from": name,
            "from_id": f"user{name}",
            "text": "hi",
        }
        for i, name in enumerate(names)
    ]
    return json.dumps({"name": "chat", "messages": messages}, indent=1)


def mbox(*names: str) -> str:
    return "".join(
        f"From MAILER Mon Jan  1 10:00:00 2020\nFrom: {name} <{name}@example.org>\nMessage-ID: <{name}>\n\nhi\n\n"
        for name in names
    )


def mixed_folder(folder: Path) -> Path:
    """Thirty people in every format."""
    write(folder / "WhatsApp Chat with Ann.txt", whatsapp("w1", "w2", "w3", "w4", "w5", "w6"))
    write(folder / "ChatExport_1" / "result.json", telegram("t1", "t2", "t3", "t4"))
    write(folder / "ChatExport_1" / "photos" / "photo_1.jpg", "x")
    write(folder / "ChatExport_2" / "result.json", telegram("t3", "t4", "t5", "t6", "t7"))
    write(folder / "mail" / "Sent.mbox", mbox("m1", "m2", "m3", "m4"))
    write(folder / "messages.csv", "user,text\n" + "".join(f"c{i},hello\n" for i in range(5)))
    write(folder / "messages.jsonl", "".join(f'{{"user": "j{i}", "text": "hello"}}\n' for i in range(5)))
    write(folder / "plain.txt", "hello\n")
    write(folder / "people" / "1.txt", "hello\n")
    with zipfile.ZipFile(folder / "WhatsApp Chat - Bob.zip", "w") as archive:
        archive.writestr("_chat.txt", "\ufeff[31.12.20, 22:15:30] z1: hello\n")
        archive.writestr("00000012-PHOTO.jpg", "x")
    write(folder / "notes.doc", SECRET)
    write(folder / "broken.csv", f'user,text\nann,"{SECRET}\n')
    return folder


def test_a_mixed_folder_gives_everybody_or_names_the_file(tmp_path: Path) -> None:
    folder = mixed_folder(tmp_path / "chats")
    found, report = read(folder)
    assert report.users == len({user for user, _ in found}) == 30
    read_as = {file.name.removeprefix(f"{folder}/"): file.format for file in report.files if not file.problem}
    assert read_as == {
        "ChatExport_1/result.json": "telegram", "ChatExport_2/result.json": "telegram", "mail/Sent.mbox": "mbox",
        "WhatsApp Chat - Bob.zip/_chat.txt": "whatsapp", "WhatsApp Chat with Ann.txt": "whatsapp",
        "messages.csv": "csv", "messages.jsonl": "jsonl", "people/1.txt": "text", "plain.txt": "text",
    }  # fmt: skip
    assert {file.name.removeprefix(f"{folder}/"): file.problem for file in report.unread} == {
        "ChatExport_1/photos/photo_1.jpg": "is a picture, sound, video or document",
        "WhatsApp Chat - Bob.zip/00000012-PHOTO.jpg": "is a picture, sound, video or document",
        "broken.csv": (
            "a quoted field is not closed or is longer than 128 KiB (line 2); double the quotes inside quoted fields"
        ),
        "notes.doc": "unrecognised format",
    }


def test_a_zip_is_read_like_the_folder_in_it(tmp_path: Path) -> None:
    folder = mixed_folder(tmp_path / "chats")
    for base in (folder, tmp_path):  # the files at the top, or in a folder of the zip's name
        archive = tmp_path / "chats.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in folder.rglob("*"):
                if path.is_file() and path.suffix != ".zip":
                    packed.write(path, path.relative_to(base))
            packed.writestr("__MACOSX/._plain.txt", "x")
        found, report = read(archive)
        assert sorted(found) == sorted(entry for entry in read(folder)[0] if entry[0] != "z1")
        assert len(report.unread) == 3


def test_what_a_zip_may_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("../../ann.jsonl", '{"user": "ann", "text": "hi"}')
        packed.writestr("bomb.jsonl", "0" * 100_000)
        packed.writestr("inner.zip", "x")
    monkeypatch.setenv("FEDGRAM_MAX_UNPACKED", "10K")
    found, report = read(archive)
    assert found == [("ann", "hi")]
    assert not (tmp_path.parent / "ann.jsonl").exists()
    problems = {file.name.rpartition("/")[2]: file.problem for file in report.unread}
    assert str(problems["bomb.jsonl"]).startswith("the zip file unpacks to more than")
    assert "within a zip file" in str(problems["inner.zip"])
    data = bytearray(archive.read_bytes())
    for cut in (data[:50], data[: len(data) // 2], b"PK"):
        archive.write_bytes(cut)
        assert "is not a complete zip file" in str(refused(archive))
    data[60:70] = bytes(10)
    archive.write_bytes(data)
    assert "could be read" in str(refused(archive))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "LZMA"])
def test_a_zip_that_is_packed_in_an_unusual_way_is_not_unpacked(tmp_path: Path, method: int) -> None:
    """Python unpacks a whole block of these at once, before its size is known."""
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("ann.jsonl", '{"user": "ann", "text": "hi"}')
        packed.writestr("bomb.jsonl", "0" * 100_000, compress_type=method)
    found, report = read(archive)
    assert found == [("ann", "hi")]
    assert ["packed in an unusual way" in str(file.problem) for file in report.unread] == [True]


def test_several_sources_and_exports_that_overlap(tmp_path: Path) -> None:
    first = write(tmp_path / "1.txt", whatsapp("Ann", "Bob", "Bob"))
    second = write(tmp_path / "2.txt", whatsapp("Ann", "Bob", "Bob") + whatsapp("Ann", minute=11))
    messages, report = read_messages([first, second])
    assert [message.user for message in messages] == ["Ann", "Bob", "Bob", "Ann"]
    assert report.skipped == {"repeated from another file": 3}
    messages, report = read_messages([first, first])
    assert len(list(messages)) == 3
    with pytest.raises(InputError, match="no such file"):
        list(read_messages([first, tmp_path / "none"])[0])


def test_users_by_name(tmp_path: Path) -> None:
    source = write(tmp_path / "chats" / "result.json", telegram("Ann", "Bob", "Cat"))
    write(tmp_path / "chats" / "chat.txt", whatsapp("Ann", "Dan"))
    assert [user for user, _ in read(source, only=("Ann",))[0]] == ["userAnn"]
    assert [user for user, _ in read(source, only=("userBob",))[0]] == ["userBob"]
    found, report = read(source.parent, exclude=("Ann", " Dan "))
    assert [user for user, _ in found] == ["userBob", "userCat"]
    assert report.skipped == {"left out by name": 3}
    assert not report.unread
    for options in ({"only": ("Eve",)}, {"exclude": ("Eve",)}):
        with pytest.raises(FedgramError, match='no user is named "Eve"'):
            read(source, **options)
    with pytest.raises(FedgramError, match="no messages are left"):
        read(source, exclude=("Ann", "Bob", "Cat"))


def test_pseudonyms_agree_by_key_and_say_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "chat.txt", whatsapp("Ann", "+55 11 99999-9999", "ann@example.org"))
    found, report = read(source, key=KEY)
    users = [user for user, _ in found]
    assert users == [pseudonym(name, KEY) for name in ("Ann", "+55 11 99999-9999", "ann@example.org")]
    assert len(set(users)) == 3
    assert not any("nn" in user or "99" in user for user in users)
    other = write(tmp_path / "other.csv", "user,text\nAnn,hello\n")
    assert read(other, key=KEY)[0][0][0] == users[0]
    assert read(other, key=KEY[::-1])[0][0][0] != users[0]
    assert str(KEY) not in repr(ImportOptions(key=KEY)) + repr(report)


def test_the_key_is_made_once_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = read_key(default_key_file())
    assert len(key) == 32
    assert read_key(default_key_file()) == key
    assert stat.S_IMODE(default_key_file().stat().st_mode) == 0o600
    with pytest.raises(InputError, match="is not a key"):
        read_key(write(tmp_path / "short", "abc"))


def test_merging(tmp_path: Path) -> None:
    rows = [("ann", "Hello there!", None), ("bob", "See you at 5. Bye", None)], [("ann", "Dr. Lee isn't in", None)]
    paths = [tmp_path / f"{i}.parquet" for i in range(2)]
    for path, messages in zip(paths, rows, strict=True):
        write_messages(path, messages)
    merged, report = merged_messages(paths, typed=True)
    found = list(merged)
    assert [(user, text) for user, text, _ in found] == [(user, text) for part in rows for user, text, _ in part]
    assert (report.users, report.shared, report.users_by_file) == (2, 1, [2, 1])
    both = population_from_messages(found)
    for path in paths:
        write_population(path.with_suffix(".population"), open_population(path))
    normalised, _ = merged_messages([path.with_suffix(".population") for path in paths], typed=False)
    assert population_from_messages(normalised).digest == both.digest
    with pytest.raises(InputError, match="holds no messages as they were typed"):
        merged_messages([tmp_path / "0.population"], typed=True)
    write_messages(tmp_path / "2.parquet", [("bob", "hi", "test"), ("cat", "hi", "dev")])
    write_messages(tmp_path / "3.parquet", [("bob", "hi", "dev")])
    with pytest.raises(InputError, match="a user is in the split"):
        list(merged_messages([tmp_path / "2.parquet", tmp_path / "3.parquet"], typed=True)[0])
