"""The supplement and the whitelist, and the command that builds all files from a folder of checkouts."""

import gzip
import io
import json
import sys
import zipfile
from pathlib import Path

import pytest
from benchmarks.real_text import __main__ as command
from benchmarks.real_text import gitter, self_dialogue, supplement, whitelist, word_frequencies
from benchmarks.real_text.spelling import read_hunspell, read_words
from benchmarks.real_text.word_frequencies import Languages, frequencies
from tests.unit.real_text.mirror import assignment, checkout, csv_text, packed_words, post

from fedgram.core.errors import InputError
from fedgram.text.population import open_population

CONLLU = "# newdoc\n# text = The Red house , they said , is big .\n1\tThe\tthe\n\n# text = no capital at the start\n\n"


def test_sentences_of_treebanks(tmp_path: Path) -> None:
    files = {"d/CF1.conllu": CONLLU, "d/CP1.conllu": "# text = Uma frase de Portugal\n", "d/notes.txt": "# text = no"}
    made = checkout(tmp_path, "own/treebank", files)
    assert list(supplement.treebank(made, "d", "CF")) == supplement.conllu_texts(CONLLU)
    assert len(list(supplement.treebank(made, "d"))) == 3


def test_tagged_words_become_sentences(tmp_path: Path) -> None:
    first = ["De_PREP|+", "os_ART", "dois_NUM", ",_,", "por_PREP|+", "a_ART", "lei_N", ",_,", "um_ART", "sai_V", "._."]
    tagged = "\n".join([*first, "Além_PREP|+", "de_PREP", "ser_V", "!_!", ""])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("mac_morpho/a.txt", tagged.encode("latin-1"))
        archive.writestr("mac_morpho/README", "no_N\n._.\n")
    made = checkout(tmp_path, "nltk/nltk_data", {"packages/corpora/mac_morpho.zip": packed.getvalue()})
    assert list(supplement.mac_morpho(made)) == ["Dos dois, pela lei, um sai.", "Além de ser!"]


@pytest.mark.parametrize(
    ("sentence", "stays"),
    [
        ("The red house is big.", True),
        ('"The red house is big."', True),
        ("4 houses are red and big.", True),
        ("the red house is big.", False),
        ("Too short here.", False),
        ("THE RED house is big.", False),
        ("The Big Red House Again.", False),
        (" ".join(["The", *["word"] * 80]), False),
    ],
)
def test_only_well_cased_sentences_stay(sentence: str, stays: bool) -> None:
    seen: set[str] = set()
    assert list(supplement.well_cased([sentence, sentence.upper(), sentence], 4, seen)) == [sentence] * stays


def test_frequencies_of_a_packed_list() -> None:
    content = packed_words([], ["the", "é"], ["a" * 40], [])
    assert frequencies(content, "x") == pytest.approx({"the": 8.99, "é": 8.99, "a" * 40: 8.98})
    for broken in (content[:-5], b"\x90", b"\xc0", b"\x92\x80\x90", packed_words(["x"]).replace(b"cB", b"dB")):
        with pytest.raises(InputError, match="not a word list"):
            frequencies(broken, "x")


def test_a_line_reads_as_the_language_of_its_words() -> None:
    languages = Languages({"en": {"the": 7.0, "ok": 5.5, "sky": 5.0}, "pt": {"céu": 5.0, "ok": 5.3, "o": 7.0}})
    assert languages.reads_as("en", "the sky, ok")
    assert languages.reads_as("pt", "ok")
    assert not languages.reads_as("pt", "the sky")
    assert not languages.reads_as("en", "asdf qwer the")
    assert not languages.reads_as("en", "123")


def test_forms_by_suffix_and_prefix_rules(tmp_path: Path) -> None:
    rules = "SET UTF-8\nFLAG UTF-8\nSFX B Y 2\nSFX B 0 s [^ã][aeo]\nSFX B ão ões ão\nPFX R Y 1\nPFX R 0 re .\n"
    (tmp_path / "x.aff").write_text(rules)
    (tmp_path / "x.dic").write_text("5\ncasa/B\nleão/B\nmar\nfazer/R\tpo:v\nnova/BR\n")
    words = read_hunspell(tmp_path / "x.dic")
    for known in ("casa", "casas", "leão", "leões", "mar", "fazer", "refazer", "renovas"):
        assert known in words, known
    for unknown in ("mars", "leãos", "recasa", "recasas", "ões", "fazers", "5", ""):
        assert unknown not in words, unknown
    (tmp_path / "x.aff").write_text("FLAG num\n")
    with pytest.raises(InputError, match="not supported"):
        read_hunspell(tmp_path / "x.dic")


def test_words_stay_that_are_known_or_frequent() -> None:
    frequency = {"the": 7.0, "house": 5.0, "yolo": 3.0, "rare": 1.0, "gone": 1.0, "x1": 5.0, "é": 5.0, "meeting": 3.0}
    kept = whitelist.frequent_words(frequency, whitelist.ENGLISH, {"rare"}.__contains__, foreign={"meeting": 4.5})
    assert list(kept) == ["the", "house", "yolo", "rare"]
    assert not whitelist.ENGLISH.allows("a" * 31)
    assert whitelist.ENGLISH.allows("don't")
    assert not whitelist.ENGLISH.allows("'tis-")


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "mirror"
    turns = [assignment(f"W{i}", i) | {"Answer.sentence3": f"the red house and {'big ' * 20}page"} for i in range(30)]
    checkout(folder, self_dialogue.REPOSITORY, {"corpus/x.csv": csv_text(*turns), "blocked_workers.txt": "W9\n"})
    chat = "".join(post(f"u{i}", f"2016-01-0{i}", "i like the red house " * i, i) for i in range(1, 9))
    checkout(folder, gitter.REPOSITORY, {f"archives/{room}.tsv": chat for room in ("Casual", "Boston")})
    lists = {name: ["i", "like", "the", "red", "house"] if name == "en" else [] for name in word_frequencies.LANGUAGES}
    packed = {f"small_{name}": packed_words(*[[]] * 300, words) for name, words in lists.items()}
    packed |= {"large_en": packed_words(*[[]] * 300, ["the", "house", "x1"])}
    data = {f"wordfreq/data/{name}.msgpack.gz": gzip.compress(content) for name, content in packed.items()}
    checkout(folder, word_frequencies.REPOSITORY, data)
    checkout(folder, "gucorpling/amalgum", {"amalgum/news/dep/1.conllu": CONLLU})
    return folder


def test_the_command_builds_the_inputs_of_a_run(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "debs" / "usr" / "share" / "dict"
    words.mkdir(parents=True)
    (words / "american-english-large").write_text("Zebra\nzebra's\nhouse\n")
    (words / "american-english-huge").write_text("the\n")
    output, key = tmp_path / "out", tmp_path / "key"
    given = ["en_us", "--mirror", mirror, "--debs", tmp_path / "debs", "--key-file", key, "--output", output]
    monkeypatch.setattr(sys, "argv", ["real_text", *map(str, given)])
    assert command.main() == 0
    about = json.loads(capsys.readouterr().out)
    people = open_population(output / "users.parquet")
    assert len(people) == sum(source["users"] for source in about["users"]["by_source"].values()) > 0
    assert about["users"]["by_source"]["self_dialogue"]["users"] == 1  # the others say the same
    assert about["users"]["by_source"]["gitter"]["users"] == 5  # of 20 words or more
    assert (output / "supplement.txt").read_text() == "The Red house, they said, is big.\n"
    assert (output / "whitelist.txt").read_text().split() == ["the", "house", "zebra"]
    assert len(about["users"]["commits"]["rspeer/wordfreq"]) == 40
    assert key.stat().st_mode & 0o077 == 0
    first = (output / "users.parquet").read_bytes()
    assert command.main() == 0
    assert (output / "users.parquet").read_bytes() == first


def test_what_is_missing_is_named_in_one_line(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["real_text", "pt_br", "--mirror", str(mirror), "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [*common, "--parts", "supplement"])
    assert command.main() == 2
    assert "git clone https://github.com/nltk/nltk_data" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*common, "--parts", "whitelist", "--debs", str(tmp_path)])
    assert command.main() == 2
    assert "apt-get download wbrazilian hunspell-pt-br" in capsys.readouterr().err
    (tmp_path / "key").write_bytes(b"short")
    monkeypatch.setattr(
        sys, "argv", ["real_text", "en_us", *common[2:], "--parts", "users", "--key-file", f"{tmp_path}/key"]
    )
    assert command.main() == 2
    assert "16 to 64 bytes" in capsys.readouterr().err


def test_words_of_a_list_are_in_lower_case(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("\ufeffParis\n\nhouse\n", encoding="utf-8")
    assert read_words(tmp_path / "words") == {"paris", "house"}
