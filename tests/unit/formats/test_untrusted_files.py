"""Damaged and forged files: every reader refuses them in one line and never crashes."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.reference.random_models import random_model

from fedgram.core.errors import FedgramError, InputError
from fedgram.core.storage import Artefact, write_artefact
from fedgram.formats.artefact import KIND, VERSION, read_ngram
from fedgram.formats.models import read_model, write_model
from fedgram.formats.vector_fst import automaton_type
from fedgram.text.corpus import read_corpus
from fedgram.text.vocabulary import Vocabulary

pywrapfst = pytest.importorskip("pywrapfst", reason="pynini is not installed")


def mutated(whole: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(whole)
    for place in rng.integers(0, len(whole), int(rng.integers(1, 4))).tolist():
        kind, size = int(rng.integers(3)), int(rng.integers(1, 20))
        if kind == 0:
            data[place : place + 1] = bytes([int(rng.integers(256))])
        elif kind == 1:
            del data[place : place + size]
        else:
            data[place:place] = data[place : place + size]
    return bytes(data)


@pytest.mark.parametrize("suffix", [".arpa", ".arpa.gz", ".fst", ".ngram"])
def test_mutated_models_are_read_or_refused(suffix: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / f"model{suffix}"
    write_model(random_model(np.random.default_rng(1), order=3), path)
    whole, refused = path.read_bytes(), 0
    for _ in range(300):
        path.write_bytes(mutated(whole, rng))
        try:
            read_model(path)
        except FedgramError:
            refused += 1
    assert refused > 200


def test_mutated_gzip_text_is_read_or_refused(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "text.gz"
    whole = gzip.compress(b"some words here\nand more of them\n" * 50)
    for _ in range(200):
        path.write_bytes(mutated(whole, rng))
        try:
            read_corpus([path])
        except FedgramError:
            continue


def artefact(path: Path, **changes: object) -> Path:
    """An `.ngram` file with a valid checksum and some changed content."""
    model = random_model(np.random.default_rng(1), order=3)
    t = model.topology
    arrays = {
        "words": np.frombuffer("\n".join(model.vocabulary.words).encode(), np.uint8), "first_arc": t.first_arc,
        "label": t.label, "dest": t.dest, "backoff": t.backoff, "log_weight": model.log_weight,
        "log_backoff": model.log_backoff,
    }  # fmt: skip
    fields = {"start": changes.pop("start", t.start)}
    write_artefact(path, Artefact(KIND, VERSION, fields, arrays | changes))  # type: ignore[arg-type]
    return path


def test_forged_artefacts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.ngram"
    t = read_ngram(artefact(path)).topology
    deep = int(np.flatnonzero(t.backoff > 0)[0])
    for changes in (
        {"start": deep}, {"start": 10**9}, {"start": 1.5}, {"start": "x"},
        {"dest": t.dest + 1000}, {"dest": t.dest - 5}, {"label": t.label + 1000}, {"label": -t.label},
        {"backoff": t.backoff + 10**6}, {"backoff": t.backoff[::-1].copy()}, {"backoff": t.backoff.reshape(1, -1)},
        {"first_arc": t.first_arc * 2}, {"first_arc": -t.first_arc}, {"first_arc": t.first_arc[:3].copy()},
        {"log_weight": np.full(t.arcs, np.nan)}, {"log_weight": np.full(t.arcs, 1.0)},
        {"log_backoff": np.zeros((t.states, 1))}, {"words": np.zeros(3, np.uint8)}, {"words": np.zeros(3)},
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"m\.ngram"):
            read_ngram(artefact(path, **changes))


def test_fields_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.ngram"
    for fields in ([], [1], "start", None, 7, {"start": None}, {"start": [0]}, {"start": True}, {}):
        write_artefact(path, Artefact(KIND, VERSION, fields, {}))  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"m\.ngram"):
            read_ngram(path)


def test_automata_that_lie_about_their_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.fst"
    write_model(random_model(np.random.default_rng(1), order=3), path)
    whole = path.read_bytes()
    header = 4 + 4 + len("vector") + 4 + len("standard") + 4 + 4 + 8
    for offset, value in [(8, 2**62), (8, -1), (0, 10**9), (0, -1)]:
        broken = bytearray(whole)
        broken[header + offset : header + offset + 8] = struct.pack("<q", value)
        path.write_bytes(broken)
        with pytest.raises(InputError):
            read_model(path)


@pytest.mark.parametrize("kind", ["const", "compact_acceptor"])
def test_automata_of_other_types_are_read_in_a_process_that_may_crash(kind: str, tmp_path: Path) -> None:
    """OpenFst ends with SIGSEGV or SIGABRT on damaged automata; this process must go on."""
    path, rng = tmp_path / "m.fst", np.random.default_rng(0)
    write_model(random_model(np.random.default_rng(1), order=3), path)
    model, other = read_model(path), tmp_path / "other.fst"
    pywrapfst.convert(pywrapfst.Fst.read(str(path)), kind).write(str(other))
    whole = other.read_bytes()
    assert automaton_type(whole, other)[0] == kind
    np.testing.assert_array_equal(read_model(other).log_weight, model.log_weight)
    refused = 0
    for place in rng.integers(20, 120, 6).tolist():
        other.write_bytes(whole[:place] + b"\xff\xff\xff\x7f" + whole[place + 4 :])
        try:
            read_model(other)
        except InputError:
            refused += 1
    assert refused > 2


def test_automata_of_unknown_types_are_refused_by_their_header(tmp_path: Path) -> None:
    path = tmp_path / "m.fst"
    write_model(random_model(np.random.default_rng(1), order=3), path)
    whole = path.read_bytes()
    for kind, arcs, problem in (
        (b"../abc", b"standard", "automaton of the type"),
        (b"vector", b"log64...", "has arcs of"),
    ):
        path.write_bytes(whole.replace(b"vector", kind, 1).replace(b"standard", arcs, 1))
        with pytest.raises(InputError, match=problem):
            read_model(path)


def test_a_word_of_megabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-1 </s>\n-1 " + "x" * 3_000_000 + "\n\n\\end\\\n")
    with pytest.raises(InputError, match=":6: the word has more than 65,536 bytes"):
        read_model(path)


def test_a_word_with_a_blank_of_unicode_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "m.arpa"
    for blank in "\xa0\u2028\u3000\x85":
        path.write_text(f"\\data\\\nngram 1=3\n\n\\1-grams:\n-1 </s>\n-1 a\n-1 b{blank}c\n\n\\end\\\n", "utf-8")
        with pytest.raises(InputError, match=":7: the word contains a blank of Unicode"):
            read_model(path)


def test_words_contain_no_white_space() -> None:
    for bad in ("", "two words", "tab\there", "line\nend"):
        with pytest.raises(FedgramError, match="empty or contains white space"):
            Vocabulary.of(["fine", bad])
