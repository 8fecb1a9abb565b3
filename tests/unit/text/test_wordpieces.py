"""Word pieces: codes of words, training from frequencies against SentencePiece on text, and refusals."""

import io
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import SHARED

from fedgram.core.errors import FedgramError, InputError, MissingDependencyError
from fedgram.text.wordpieces import MARK, WordPieces, check_codes, load_pieces, pieces_per_token, train_pieces

sentencepiece: Any = pytest.importorskip("sentencepiece")
STEMS = ["a", "be", "ção", "d'", "dé", "fi", "g", "ho", "ja", "ka", "lo", "mê", "na", "nho", "ou", "pa", "que", "ra"]
ENDINGS = ["", "s", "r", "m", "ndo", "mos", "va", "ção", "ções", "-me", "-se", "n't", "ês", "zinho"]
OPTIONS = {
    "model_type": "unigram",
    "normalization_rule_name": "identity",
    "treat_whitespace_as_suffix": True,
    "character_coverage": 1.0,
    "split_by_unicode_script": False,
    "split_by_number": False,
    "unk_id": 0,
    "bos_id": -1,
    "eos_id": -1,
    "num_threads": 1,
    "minloglevel": 2,
}


def zipfian_words(count: int, seed: int = 0) -> dict[str, int]:
    """Stems with endings; shorter words are more frequent, as in a language."""
    rng = random.Random(seed)
    words = {"".join(rng.choices(STEMS, k=rng.randint(1, 3))) + rng.choice(ENDINGS) for _ in range(count)}
    return {word: 2 + 10 * count // (rank + 1) for rank, word in enumerate(sorted(words, key=lambda w: (len(w), w)))}


def oracle(lines: Sequence[str], path: Path, **options: Any) -> Path:
    """A model that SentencePiece trains on its own."""
    model = io.BytesIO()
    settings_ = {**OPTIONS, "sentence_iterator": iter(lines), "model_writer": model, **options}
    sentencepiece.SentencePieceTrainer.train(**settings_)
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture(scope="module")
def words() -> dict[str, int]:
    return zipfian_words(1500)


@pytest.fixture(scope="module")
def pieces(words: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> WordPieces:
    return train_pieces(words, size=300, path=tmp_path_factory.mktemp("pieces") / "pieces.model")


def assert_prefix_free(codes: Sequence[tuple[int, ...]]) -> None:
    known = set(codes)
    assert len(known) == len(codes)
    assert not any(code[:length] in known for code in codes for length in range(len(code)))


def test_codes_are_prefix_free_and_only_the_last_piece_is_final(pieces: WordPieces, words: dict[str, int]) -> None:
    codes = check_codes(pieces, list(words))
    assert_prefix_free([tuple(code.tolist()) for code in codes])
    for word, code in zip(words, codes, strict=True):
        assert pieces.is_final[code].tolist() == [False] * (len(code) - 1) + [True]
        assert pieces.encode(word) == code.tolist()
        assert pieces.decode(code) == [word]
    assert pieces.decode(codes.values) == list(words)


def test_an_inventory_says_what_it_holds(pieces: WordPieces) -> None:
    assert pieces.size == len(pieces.pieces) == len(pieces.scores) == len(pieces.is_final) == 300
    assert pieces.pieces[pieces.unknown] == "<unk>"
    assert all(MARK not in piece[:-1] for piece in pieces.pieces)
    assert np.all(np.delete(pieces.scores, pieces.unknown) < 0)
    assert repr(pieces) == f"WordPieces(300 pieces, {pieces.is_final.sum()} final)"
    assert not pieces.scores.flags.writeable


def test_unfinished_and_unknown_pieces_decode(pieces: WordPieces) -> None:
    whole, part = pieces.encode("daba"), next(i for i, final in enumerate(pieces.is_final) if not final and i)
    assert pieces.decode([*whole, part]) == ["daba", pieces.pieces[part]]
    assert pieces.decode([]) == []
    assert pieces.decode(pieces.encode("da日")) == ["da<unk>"]


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text("abcé'-ñ日1٣\u0301😀", min_size=1, max_size=20), st.floats(0, 1e6, allow_subnormal=False), min_size=1
    ).filter(lambda frequency: max(frequency.values()) > 0),
    st.integers(0, 60),
)
def test_any_vocabulary_gets_codes(
    tmp_path_factory: pytest.TempPathFactory, frequency: dict[str, float], extra: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "pieces.model"
    size = len(set("".join(frequency))) + 2 + extra
    try:
        train_pieces(frequency, size=size, path=path)
    except FedgramError as error:
        smallest, size = map(int, re.findall(r"from (\d+) to (\d+)$", str(error))[0])
        assert smallest == len(set("".join(frequency))) + 2 <= size
        train_pieces(frequency, size=size, path=path)
    loaded = load_pieces(path)
    assert loaded.size == size
    codes = loaded.encode_words(list(frequency))
    assert_prefix_free([tuple(code.tolist()) for code in codes])
    assert loaded.decode(codes.values) == list(frequency)
    assert loaded.unknown not in codes.values


def test_frequencies_give_the_model_of_the_text(words: dict[str, int], pieces: WordPieces, tmp_path: Path) -> None:
    tokens = [word for word, count in words.items() for _ in range(count)]
    random.Random(1).shuffle(tokens)
    text = [" ".join(tokens[i : i + 7]) for i in range(0, len(tokens), 7)]
    expected = load_pieces(oracle(text, tmp_path / "text.model", vocab_size=300))
    assert pieces.pieces == expected.pieces
    np.testing.assert_allclose(pieces.scores, expected.scores, rtol=1e-4)


def test_candidates_need_the_frequencies(earnest: list[str], tmp_path: Path) -> None:
    text = [line.lower() for line in earnest]
    words = Counter(" ".join(text).split())
    rows = [f"{word}\t{count}" for word, count in words.items()]
    pieces = train_pieces(words, size=600, path=tmp_path / "pieces.model")
    from_text = load_pieces(oracle(text, tmp_path / "text.model", vocab_size=600))
    unweighted = load_pieces(oracle(rows, tmp_path / "rows.model", vocab_size=600, input_format="tsv"))
    assert pieces_per_token(pieces, words) == pytest.approx(pieces_per_token(from_text, words), rel=0.01)
    assert pieces_per_token(pieces, words) < 1.65
    assert pieces_per_token(unweighted, words) > 3.5


def test_fractions_are_scaled(words: dict[str, int], pieces: WordPieces, tmp_path: Path) -> None:
    shares = {word: count / 12345.6 for word, count in words.items()}
    scaled = train_pieces(shares, size=300, path=tmp_path / "shares.model")
    assert pieces_per_token(scaled, words) == pytest.approx(pieces_per_token(pieces, words), rel=0.05)


def test_same_frequencies_give_the_same_bytes(words: dict[str, int], tmp_path: Path) -> None:
    train_pieces(words, size=200, path=tmp_path / "one.model")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "words.tsv").write_text("".join(f"{word}\t{count}\n" for word, count in reversed(words.items())))
    code = (
        "import sys; from pathlib import Path; from fedgram.text.unigrams import read_unigrams; "
        "from fedgram.text.wordpieces import train_pieces; "
        "train_pieces(read_unigrams(sys.argv[1]), size=200, path=Path(sys.argv[2]))"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "words.tsv"), str(tmp_path / "two.model")]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "elsewhere"), "PYTHONHASHSEED": "7"}
    done = subprocess.run(arguments, env=environment, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "two.model").read_bytes()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert b"seeds" not in (tmp_path / "one.model").read_bytes()


def test_rare_characters_survive_any_frequency(tmp_path: Path) -> None:
    frequency = {"the": 10**9, "ação": 1, "d'água": 1, "naïve-ß": 0}
    pieces = train_pieces(frequency, size=20, path=tmp_path / "pieces.model")
    check_codes(pieces, ["the", "ação", "d'água", "naïve-ß", "ßão"])


def test_special_words_are_passed_over(tmp_path: Path) -> None:
    frequency = {"ab": 600.0, "abc": 700.0, "<unk>": 9.0, "<s>": 9.0, "</s>": 9.0}
    assert "<" not in train_pieces(frequency, size=6, path=tmp_path / "pieces.model").pieces


def test_sizes_out_of_range_are_refused(words: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "pieces.model"
    path.write_bytes(b"as it was")
    characters = len(set("".join(words)))
    with pytest.raises(FedgramError, match=rf"hold the {characters} char.* from {characters + 2} to at most \d+$"):
        train_pieces(words, size=characters + 1, path=path)
    with pytest.raises(FedgramError, match=rf"do not fill 50000 pieces; choose a size from {characters + 2} to \d+$"):
        train_pieces(words, size=50_000, path=path)
    assert path.read_bytes() == b"as it was"
    assert train_pieces(words, size=characters + 2, path=path).size == characters + 2
    assert [p.name for p in tmp_path.iterdir()] == ["pieces.model"]


@pytest.mark.parametrize(
    ("frequency", "message"),
    [
        ({}, "no word has a frequency above 0"),
        ({"a": 0.0}, "no word has a frequency above 0"),
        ({"<unk>": 5.0}, "no word has a frequency above 0"),
        ({"a": -1.0}, "negative or not finite"),
        ({"a": float("nan")}, "negative or not finite"),
        ({"a": 1, "b c": 1, "d▁": 1, "▁▂▃▄▅": 1, "": 1, "\ud800": 1}, "5 of 6 words are empty or contain a space"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(frequency: Mapping[str, float], message: str, tmp_path: Path) -> None:
    with pytest.raises(FedgramError, match=message):
        train_pieces(frequency, size=10, path=tmp_path / "pieces.model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["", "a b", " a", "a▁b", "▁", "\udfff"])
def test_what_is_not_a_word_has_no_code(pieces: WordPieces, word: str) -> None:
    with pytest.raises(FedgramError, match="1 of 2 words cannot be encoded"):
        pieces.encode_words(["ba", word])


def test_words_without_a_code_of_their_own_are_counted_not_named(pieces: WordPieces) -> None:
    with pytest.raises(
        FedgramError, match=r"the 4 words .* 2 have characters .* 0 do not decode .* 1 have a code"
    ) as e:
        check_codes(pieces, ["secret日", "ba", "語", "ba"])
    assert "secret" not in str(e.value)

    class Faulty:
        def encode(self, words: list[str], **_: object) -> list[list[int]]:
            return [[5, 6], [5, 6, 7], [5, 8]][: len(words)]

    with pytest.raises(FedgramError, match="3 do not decode to themselves, and 1 have a code that"):
        check_codes(replace(pieces, processor=Faulty()), ["x", "y", "z"])


def test_damaged_and_foreign_models_are_refused(
    words: dict[str, int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good.model"
    train_pieces(words, size=100, path=good)
    lines = list(words)
    foreign = {
        "prefix": oracle(lines, tmp_path / "1", vocab_size=100, treat_whitespace_as_suffix=False),
        "folding": oracle(lines, tmp_path / "2", vocab_size=100, normalization_rule_name="nmt_nfkc_cf"),
        "bytes": oracle(lines, tmp_path / "3", vocab_size=400, byte_fallback=True),
    }
    for name, message in [("prefix", "mark ▁ elsewhere"), ("folding", "changes words"), ("bytes", "has byte pieces")]:
        with pytest.raises(InputError, match=message):
            load_pieces(foreign[name])
    for content in (b"", b"not a model", good.read_bytes()[:-40], good.read_bytes()[:500]):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(InputError, match="bad: is damaged or not a SentencePiece model"):
            load_pieces(tmp_path / "bad")
    with pytest.raises(FileNotFoundError):
        load_pieces(tmp_path / "none")
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingDependencyError, match=r"fedgram\[pieces\]"):
        train_pieces({"ab": 1}, size=4, path=tmp_path / "pieces.model")


def test_importing_is_light() -> None:
    code = "import sys, fedgram.text.wordpieces; sys.exit('sentencepiece' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_english_keyboard_words(tmp_path: Path) -> None:
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    whitelist, users = SHARED / "en_us_whitelist.txt", SHARED / "en_us_users.parquet"
    if not (whitelist.is_file() and users.is_file()):
        pytest.skip("the English data is not part of the project; set FEDGRAM_SHARED_DATA to its folder")
    table = parquet.read_table(users, columns=["text"], filters=[("split", "=", "train")])
    frequency = Counter(re.findall("[a-z'-]+", "\n".join(table["text"].to_pylist()).lower()))
    pieces = train_pieces(frequency, size=4000, path=tmp_path / "pieces.model")
    assert pieces.size == 4000
    assert pieces_per_token(pieces, frequency) <= 1.7
    words = whitelist.read_text("utf-8").split()
    codes = check_codes(pieces, words)
    assert pieces.decode(codes.values) == words
    assert len({code.tobytes() for code in codes}) == len(words)
