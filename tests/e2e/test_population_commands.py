"""`fedgram data` and `fedgram unigrams` from end to end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgram.text.messages import messages_by_user

Command = Callable[..., Any]


@pytest.fixture
def users(tmp_path: Path, fedgram: Command) -> Path:
    path = tmp_path / "users.parquet"
    fedgram(
        "data", "synthesize", "--users", 60, "--seed", 1, "-o", path, "--supplement", tmp_path / "supplement.txt",
        "--sentences", 500, "--whitelist", tmp_path / "words.txt",
    )  # fmt: skip
    return path


def test_a_generated_population(users: Path, fedgram: Command) -> None:
    info = fedgram("data", "info", users, "--json")
    assert info["users"] == 60
    assert info["users_train"] + info["users_dev"] + info["users_test"] == 60
    again = users.parent / "again.population"
    fedgram("data", "synthesize", "--users", 60, "--seed", 1, "-o", again)
    assert fedgram("data", "info", again, "--json") == info
    assert len((users.parent / "supplement.txt").read_text().splitlines()) > 400
    words = (users.parent / "words.txt").read_text().split()
    assert words == sorted(set(words))
    text = users.parent / "test.txt"
    pooled = fedgram("data", "text", users, "--split", "train", "-o", text, "--uncased", "--json")
    assert pooled["sentences"] == len(text.read_text().splitlines())
    assert text.read_text() == text.read_text().lower()


def test_imports_say_what_they_left_out(tmp_path: Path, fedgram: Command, refused: Callable[..., str]) -> None:
    source = tmp_path / "chat.jsonl"
    source.write_text('{"user": "a", "text": "hi there"}\nnonsense\n{"user": "b", "text": "secret words"}\n')
    report = fedgram("data", "import", source, "-o", tmp_path / "users.parquet", "--json")
    assert (report["users"], report["messages"], report["skipped"]) == (2, 2, 1)
    assert next(iter(report["first_places"].values())).endswith("chat.jsonl:2")
    assert "secret" not in fedgram("data", "import", source, "-o", tmp_path / "users.parquet")
    assert fedgram("data", "info", tmp_path / "users.parquet", "--json")["words"] == 4
    (tmp_path / "plain.txt").write_text("just some text\n")
    assert "one text file per user" in refused("data", "import", tmp_path / "plain.txt", "-o", tmp_path / "x.parquet")
    assert "use .parquet" in refused("data", "import", source, "-o", tmp_path / "users.csv")
    assert 'no user is named "c"' in refused("data", "import", source, "--only", "c", "-o", tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


def test_a_folder_of_exports(tmp_path: Path, fedgram: Command) -> None:
    folder = tmp_path / "chats"
    folder.mkdir()
    (folder / "chat.txt").write_text("31/12/2020 22:15 - Ann: hi\n31/12/2020 22:16 - +55 11 9999: yes\n")
    (folder / "more.csv").write_text("user,text\nAnn,hello\nBob,hello\n")
    for number in range(50):
        (folder / f"photo{number}.bmp").write_bytes(b"x")
    shown = fedgram("data", "import", folder, "-o", tmp_path / "users.parquet")
    assert "read as whatsapp: 1 file, 2 users, 2 messages" in shown
    assert "not read, 50 files: unrecognised format" in shown
    assert shown.count("photo") == 40
    assert "and 10 more" in shown
    people = messages_by_user(tmp_path / "users.parquet")
    assert len(people) == 3
    assert not {"Ann", "Bob"} & people.keys()
    fedgram("data", "import", folder / "more.csv", "-o", tmp_path / "more.parquet")
    merged = fedgram(
        "data", "merge", tmp_path / "users.parquet", tmp_path / "more.parquet", "-o", tmp_path / "all.parquet", "--json"
    )
    assert (merged["users"], merged["users_again"]) == (3, 2)
    assert messages_by_user(tmp_path / "all.parquet").keys() == people.keys()
    fedgram("data", "import", folder, "--keep-names", "--exclude", "Bob", "-o", tmp_path / "users.parquet")
    assert messages_by_user(tmp_path / "users.parquet").keys() == {"Ann", "+55 11 9999"}


def test_running_text_takes_the_form_of_users_text(tmp_path: Path, fedgram: Command) -> None:
    raw, out = tmp_path / "raw.txt", tmp_path / "text.txt"
    raw.write_text("Dr. Lee isn’t in. Call at 5pm!\n\n—\nBye")
    result = fedgram("data", "normalize", raw, "-o", out, "--json")
    assert result == {"text": str(out), "sentences": 3}
    assert out.read_text() == "Dr Lee isn't in\nCall at <number>\nBye\n"
    fedgram("data", "normalize", raw, "-o", out, "--uncased")
    assert out.read_text().startswith("dr lee isn't in\n")


def test_collecting_unigrams(users: Path, fedgram: Command, refused: Callable[..., str]) -> None:
    folder = users.parent
    source: tuple[object, ...] = ("--users", users, "--whitelist", folder / "words.txt")
    collect = ("federated", "unigrams", "collect", *source, "--devices-per-round", 20)
    once = fedgram(*collect, "--rounds", 8, "-o", folder / "once.unigrams", "--json")
    assert (once["participations"], once["rounds"], once["reports"]) == (1, 3, 51)  # everybody has taken part
    collect = (*collect, "--participations", 0)
    result = fedgram(*collect, "--rounds", 8, "-o", folder / "U.unigrams", "--plots", folder / "plots", "--json")
    assert result["reports"] == 160
    assert result["participations"] > 1
    assert [len(values) for values in result["by_round"].values()] == [8, 8, 8, 8]
    assert result["by_round"]["unique"][-1] == result["unique"] > 100
    figures = sorted(path.name for path in (folder / "plots").iterdir())
    assert figures == ["convergence.json", "distribution-convergence.png", "tail-words.png"]
    assert (folder / "plots" / "tail-words.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "plots" / "convergence.json").read_text()) == result["by_round"]
    before = (folder / "U.unigrams").read_bytes()
    fedgram(*collect, "--rounds", 8, "-o", folder / "U.unigrams")
    assert (folder / "U.unigrams").read_bytes() == before
    masked = fedgram(*collect, "--rounds", 8, "-o", folder / "M.unigrams", "--secure-aggregation", "--json")
    assert (folder / "M.unigrams").read_bytes() == before
    assert masked["abandoned_rounds"] == 0
    assert masked["bytes_up"] > 160 * 7 * masked["whitelist"]
    info = fedgram("federated", "unigrams", "info", folder / "U.unigrams", "--top", 3, "--json")
    assert info["words"] == result["unique"]
    assert len(info["top"]) == 3
    (folder / "Capitals.txt").write_text("The\ncat\n")
    capitals = ("federated", "unigrams", "collect", "--users", users, "--whitelist", folder / "Capitals.txt", "-o")
    assert "1 words are not in lower case" in refused(*capitals, folder / "V.unigrams")
    (folder / "none.txt").write_text("zzzzz\n")
    nothing = (
        "federated",
        "unigrams",
        "collect",
        "--users",
        users,
        "--whitelist",
        folder / "none.txt",
        "--rounds",
        2,
        "-o",
    )
    assert "no device reported a word of the whitelist" in refused(*nothing, folder / "V.unigrams")
    assert "use .unigrams" in refused(*collect, "-o", folder / "V.txt")
    assert "from 1 to 1000, not inf" in refused(*collect, "--over-selection", "inf", "-o", folder / "V.unigrams")
    for bad in ("0", "-1", "many"):
        assert "--clip" in refused(*collect, "--clip", bad, "-o", folder / "V.unigrams")
    assert "no such file" in refused(*collect[:4], folder / "no.population", *collect[5:], "-o", folder / "V.unigrams")
    assert not (folder / "V.unigrams").exists()


def test_federated_unigrams_under_a_cased_model(users: Path, fedgram: Command) -> None:
    folder = users.parent
    fedgram(
        "federated", "unigrams", "collect", "--users", users, "--whitelist", folder / "words.txt",
        "--devices-per-round", 20, "--rounds", 3, "-o", folder / "U.unigrams",
    )  # fmt: skip
    fedgram("ngram", "train", folder / "supplement.txt", "-o", folder / "A_W.arpa", "--order", 2)
    result = fedgram(
        "federated",
        "unigrams",
        "capitalize",
        folder / "U.unigrams",
        folder / "A_W.arpa",
        "-o",
        folder / "c.tsv",
        "--json",
    )
    assert result["cased_words"] >= result["words"]
    cased = dict(line.split("\t") for line in (folder / "c.tsv").read_text().splitlines())
    assert float(cased.get("I", 0)) > float(cased.get("i", 0))
    replaced = fedgram(
        "ngram", "replace-unigrams", folder / "A_W.arpa", folder / "c.tsv", "-o", folder / "final.arpa", "--json"
    )
    assert replaced["words_added"] > 50
    fedgram("ngram", "replace-unigrams", folder / "A_W.arpa", folder / "U.unigrams", "-o", folder / "uncased.arpa")
