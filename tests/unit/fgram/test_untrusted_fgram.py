"""Damaged, truncated and crafted files are refused, or queries stay within their bounds."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.reference.random_models import random_model, random_sentences, vocabulary

from fedgram.automata.build import count_ngrams
from fedgram.automata.smoothing import smooth
from fedgram.core.arrays import Ragged
from fedgram.core.errors import InputError, InvariantError
from fedgram.fgram.frame import HEADER_BYTES, checksum
from fedgram.fgram.pack import pack
from fedgram.fgram.reader import PackedModel, open_model


def sealed(data: bytes) -> bytes:
    """The bytes with matching checksums and size, whatever they hold."""
    raw = bytearray(data + bytes(-len(data) % 8))
    raw[12:16] = len(raw).to_bytes(4, "little")
    raw[16:20] = int(checksum(np.frombuffer(bytes(raw[HEADER_BYTES:]), np.uint64))).to_bytes(4, "little")
    raw[20:24] = bytes(4)
    raw[20:24] = int(checksum(np.frombuffer(bytes(raw[:HEADER_BYTES]), np.uint64))).to_bytes(4, "little")
    return bytes(raw)


def ask(ours: PackedModel) -> None:
    """Every kind of query; answers must be of the right kind."""
    state = ours.state(["w1", "w0"])
    for word in (0, 1, 2, len(ours) - 1):
        log_p, after = ours.step(state, word)
        assert not np.isnan(log_p)
        assert 0 <= after[0] < ours.header.order or ours.header.order == 1
    for prefix in ("", "w", "w1"):
        word_ids, _ = ours.predict_ids(state, 3, prefix)
        assert ((word_ids >= 0) & (word_ids < len(ours))).all()
        assert all(isinstance(ours.word(word_id), str) for word_id in word_ids.tolist())
    ours.log_probs(Ragged.from_rows([[len(ours) - 1, 0, 3], [1]]))
    with contextlib.suppress(InvariantError):  # unpacking reads everything
        assert len(ours.unpacked.log_unigram) == len(ours)


def write_models(folder: Path) -> list[bytes]:
    pack(random_model(np.random.default_rng(1), order=4), folder / "a.fgram")
    text = random_sentences(np.random.default_rng(2), words=700, sentences=900, length=12)
    pack(smooth(count_ngrams(text, vocabulary(700), order=3), "witten-bell"), folder / "b.fgram")
    return [(folder / name).read_bytes() for name in ("a.fgram", "b.fgram")]


def mutate(whole: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(whole)
    for place in rng.integers(8, len(whole), int(rng.integers(1, 5))).tolist():
        if rng.random() < 0.3:
            place = int(rng.integers(24, HEADER_BYTES))
        kind, size = int(rng.integers(4)), int(rng.integers(1, 20))
        if kind == 0:
            data[place : place + 1] = bytes([int(rng.integers(256))])
        elif kind == 1:
            data[place : place + size] = bytes([int(rng.choice([0, 255]))]) * len(data[place : place + size])
        elif kind == 2:
            data[place : place + 1] = bytes([data[place] ^ 1 << int(rng.integers(8))]) if place < len(data) else b""
        else:
            del data[place : place + 8 * size]
    return bytes(data)


def hostile(folder: Path, rounds: int) -> int:
    """Open and query mutated files whose checksums match; returns how many were refused."""
    rng, path, refused = np.random.default_rng(0), folder / "m.fgram", 0
    for i in range(rounds):
        path.write_bytes(sealed(mutate(MODELS[i % 2], rng)))
        try:
            ask(open_model(path))
        except InputError:
            refused += 1
    return refused


MODELS: list[bytes] = []


@pytest.fixture(scope="module", autouse=True)
def _models(tmp_path_factory: pytest.TempPathFactory) -> None:
    MODELS[:] = write_models(tmp_path_factory.mktemp("models"))


def test_a_sealed_file_is_itself(tmp_path: Path) -> None:
    for whole in MODELS:
        assert sealed(whole) == whole
        (tmp_path / "m.fgram").write_bytes(whole)
        ask(open_model(tmp_path / "m.fgram"))


def test_every_flipped_bit_of_the_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.fgram"
    for bit in range(8 * HEADER_BYTES):
        data = bytearray(MODELS[0])
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"m\.fgram"):
            open_model(path)


def test_every_flipped_byte_of_the_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.fgram"
    for place in range(HEADER_BYTES, len(MODELS[0])):
        data = bytearray(MODELS[0])
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        with pytest.raises(InputError, match="checksum"):
            open_model(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.fgram"
    for size in [*range(0, 600, 7), *range(600, len(MODELS[0]), 8), len(MODELS[0]) - 1]:
        path.write_bytes(MODELS[0][:size])
        with pytest.raises(InputError):
            open_model(path)


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_with_more_than_its_header_says_is_refused(verify: bool, tmp_path: Path) -> None:
    """Even if its content is not verified: what follows is not part of the model."""
    path, size = tmp_path / "m.fgram", len(MODELS[0])
    for more in (8, 800):
        path.write_bytes(MODELS[0] + bytes(more))
        with pytest.raises(InputError, match=f"has {size + more} bytes, but its header says {size}"):
            open_model(path, verify=verify)


def test_every_header_field_may_be_wrong(tmp_path: Path) -> None:
    path = tmp_path / "m.fgram"
    for place in range(24, HEADER_BYTES, 4):
        for value in (0, 1, 7, 2**16, 2**31 - 1, 2**32 - 1, 0x7F800000, 0x7FC00000):
            data = bytearray(MODELS[1])
            data[place : place + 4] = value.to_bytes(4, "little")
            path.write_bytes(sealed(bytes(data)))
            try:
                ask(open_model(path))
            except InputError:
                continue


def test_hostile_files_are_refused_or_answered(tmp_path: Path) -> None:
    assert 300 < hostile(tmp_path, 1500) < 1500


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_hostile_files(tmp_path: Path) -> None:
    assert 20_000 < hostile(tmp_path, 100_000) < 100_000


@pytest.mark.slow
def test_no_kernel_leaves_its_arrays(tmp_path: Path) -> None:
    """The same in another process, with bounds checks on every array access."""
    code = (
        "from pathlib import Path; from tests.unit.fgram import test_untrusted_fgram as t;"
        f"p = Path({str(tmp_path)!r}); t.MODELS[:] = t.write_models(p); print(t.hostile(p, 3000))"
    )
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 600


def test_other_files_are_not_models(tmp_path: Path) -> None:
    path = tmp_path / "x.fgram"
    for content in (b"", b"\\data\\\n", b"x" * 8000, b"x" * 8001):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"is not an lm\.fgram file"):
            open_model(path)
    path.write_bytes(sealed(MODELS[0][:8] + (2).to_bytes(4, "little") + MODELS[0][12:]))
    with pytest.raises(InputError, match="version 2"):
        open_model(path)
    with pytest.raises(FileNotFoundError):
        open_model(tmp_path / "none.fgram")
