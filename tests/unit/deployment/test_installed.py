"""A device installs what is signed, newer and whole, and keeps what it had whatever goes wrong."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.deployment.published_models import (
    PIECE,
    SECRET,
    WORDS,
    federation,
    install,
    packed,
    predicted,
    signed_release,
    small_pieces,
)

from fedgram.core.errors import InputError
from fedgram.deployment.folder import Folder
from fedgram.deployment.installed import LINK, STATE, ModelFolder, answer_release
from fedgram.deployment.releases import RefusedReleaseError, digest_of
from fedgram.fgram.reader import open_model


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)


@pytest.fixture
def home(tmp_path: Path) -> Folder:
    return federation(tmp_path / "fed")


@pytest.fixture
def models(tmp_path: Path) -> ModelFolder:
    return ModelFolder(tmp_path / "models")


def files(models: ModelFolder) -> set[str]:
    return {path.name for path in models.path.rglob("*") if path.is_file()}


def refused(models: ModelFolder, home: Folder, signed: bytes, piece: tuple[int, bytes] | None = None) -> str:
    """The reason and the line with which a device refuses; it must predict what it did before."""
    before = predicted(models), models.version()
    with pytest.raises(RefusedReleaseError) as why:
        models.answer(signed, home.release_key, SECRET, now=0.0, piece=piece)
    assert (predicted(models), models.version()) == before
    assert "\n" not in str(why.value)
    return f"{why.value.reason}: {why.value}"


def test_models_follow_each_other_and_the_one_before_is_kept(models: ModelFolder, home: Folder) -> None:
    assert models.current() is None
    for number in range(3):
        content = packed(number)
        assert len(content) > 2 * PIECE
        signed = signed_release(home, number + 1, [content])
        assert install(models, home, signed, content, now=float(number)).state == "installed"
        assert (predicted(models), models.version()) == (WORDS[number], number + 1)
        assert models.answer(signed, home.release_key, SECRET, now=9.0).state == "installed"  # sent again
        assert models.state().time == number
    kept = {f"{digest_of(packed(n))}.fgram" for n in (1, 2)}
    assert files(models) == {*kept, STATE, LINK}
    assert open_model(models.path / LINK).predict("see you", 1)[0].word == WORDS[2]


def test_a_rollback_is_a_new_release_and_fetches_nothing(models: ModelFolder, home: Folder) -> None:
    first, second = packed(0), packed(1)
    for version, content in ((1, first), (2, second)):
        install(models, home, signed_release(home, version, [content]), content)
    back = signed_release(home, 3, [first])
    assert models.answer(back, home.release_key, SECRET, now=5.0).state == "installed"
    assert (predicted(models), models.version(), models.state().time) == (WORDS[0], 3, 5.0)
    assert models.state().previous == digest_of(second)


def test_an_older_release_is_refused_even_by_a_device_outside_its_share(models: ModelFolder, home: Folder) -> None:
    first = signed_release(home, 1, [packed(0)])
    install(models, home, first, packed(0))
    outside = signed_release(home, 3, [packed(1)], [1e-12])
    assert models.answer(outside, home.release_key, SECRET, now=0.0).state == "outside"
    assert "older: release 1 is older than 3" in refused(models, home, first)
    assert "older" in refused(models, home, signed_release(home, 2, [packed(1)]))
    assert "another release 3" in refused(models, home, signed_release(home, 3, [packed(2)]))
    assert predicted(models) == WORDS[0]


def test_tampering_is_refused_wherever_it_happens(models: ModelFolder, home: Folder, tmp_path: Path) -> None:
    install(models, home, signed_release(home, 1, [packed(0)]), packed(0))
    content = packed(1)
    signed = signed_release(home, 2, [content])
    rng = Random(3)
    for at in (0, 63, 64, len(signed) - 1, *(rng.randrange(len(signed)) for _ in range(40))):
        changed = signed[:at] + bytes([signed[at] ^ 1]) + signed[at + 1 :]
        assert "bad signature" in refused(models, home, changed)
    for cut in (0, 10, 64, len(signed) - 1):
        assert "bad signature" in refused(models, home, signed[:cut])
    other = federation(tmp_path / "other")
    assert "not signed by the federation" in refused(models, home, signed_release(other, 2, [content]))
    assert "too large" in refused(models, home, signed + bytes(1 << 18))
    assert models.state().seen == 1
    piece = content[:PIECE]
    for wrong in (piece[:-1], piece + b"x", b"", bytes([piece[0] ^ 1]) + piece[1:], content[PIECE : 2 * PIECE]):
        assert "damaged piece: piece 1 of" in refused(models, home, signed, (0, wrong))
    assert install(models, home, signed, content).state == "installed"
    assert predicted(models) == WORDS[1]


def test_signed_nonsense_is_refused(models: ModelFolder, home: Folder) -> None:
    """The server may sign a file that is no model, or one of a format that this device does not know."""
    install(models, home, signed_release(home, 1, [packed(0)]), packed(0))
    for version, content in enumerate((b"no model", packed(1)[: 3 * PIECE], packed(1)[:-8]), 2):
        signed = signed_release(home, version, [content])
        with pytest.raises(RefusedReleaseError, match="cannot be read by the fedgram on this device"):
            install(models, home, signed, content)
        assert (predicted(models), models.version()) == (WORDS[0], 1)
        assert not list((models.path / "incoming").iterdir())


def test_pieces_in_the_wrong_order_are_asked_for_again(models: ModelFolder, home: Folder) -> None:
    content = packed(0)
    signed = signed_release(home, 1, [content])

    def send(number: int) -> int:
        piece = number, content[number * PIECE : (number + 1) * PIECE]
        return models.answer(signed, home.release_key, SECRET, now=0.0, piece=piece).piece

    assert [send(1), send(0), send(0), send(2), send(1)] == [0, 1, 1, 1, 2]
    incoming = models.path / "incoming" / digest_of(content)
    incoming.write_bytes(incoming.read_bytes() + b"half a piece of a killed process")
    assert install(models, home, signed, content).state == "installed"


def test_what_was_damaged_on_disk_is_replaced_by_the_one_before_and_fetched_again(
    models: ModelFolder, home: Folder
) -> None:
    for number in range(2):
        last = signed_release(home, number + 1, [packed(number)])
        install(models, home, last, packed(number))
    path = models.current()
    assert path is not None
    path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    assert predicted(models) == WORDS[0]
    assert models.answer(last, home.release_key, SECRET, now=0.0).state == "wants"
    assert open_model(models.path / LINK).predict("see you", 1)[0].word == WORDS[0]
    assert install(models, home, last, packed(1)).state == "installed"
    assert predicted(models) == WORDS[1]
    assert models.state().previous == digest_of(packed(0))


def test_pieces_that_rotted_are_thrown_away(models: ModelFolder, home: Folder) -> None:
    content = packed(0)
    signed = signed_release(home, 1, [content])
    models.answer(signed, home.release_key, SECRET, now=0.0, piece=(0, content[:PIECE]))
    (models.path / "incoming" / digest_of(content)).write_bytes(bytes(PIECE))
    with pytest.raises(RefusedReleaseError, match="its digest is not the released one"):
        install(models, home, signed, content)
    assert install(models, home, signed, content).state == "installed"


@pytest.mark.parametrize(
    "broken", [b"", b"{}x", b'{"seen": "1"}', b'{"model": "../../key"}', b"[1]", b'{"seen": true}']
)
def test_a_damaged_record_stops_installs_and_not_predictions(models: ModelFolder, home: Folder, broken: bytes) -> None:
    install(models, home, signed_release(home, 1, [packed(0)]), packed(0))
    (models.path / STATE).write_bytes(broken)
    assert predicted(models) == WORDS[0]
    with pytest.raises(InputError, match="is damaged"):
        models.answer(signed_release(home, 2, [packed(1)]), home.release_key, SECRET, now=0.0)
    assert models.version() == 0


class FullDisk:
    """The disk is full at the n-th system call that writes."""

    CALLS = ("write", "fsync", "ftruncate", "replace", "symlink")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails_at: int, number: int) -> None:
        self.calls, self._fails_at, self._errno = 0, fails_at, number
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls == self._fails_at:
                raise OSError(self._errno, os.strerror(self._errno))
            return call(*arguments, **more)

        return wrapped


@pytest.mark.parametrize(
    ("number", "reason", "every"),
    [
        (errno.ENOSPC, "disk full: the disk is full", 1),
        (errno.EIO, "cannot write: the folder cannot be written (OSError)", 5),
    ],
)
def test_a_full_disk_at_any_write_leaves_what_was_there(
    tmp_path: Path, home: Folder, number: int, reason: str, every: int
) -> None:
    first, second = signed_release(home, 1, [packed(0)]), signed_release(home, 2, [packed(1)])
    fails_at, reasons = 0, set()
    while True:
        fails_at += every
        models = ModelFolder(tmp_path / f"models-{fails_at}")
        install(models, home, first, packed(0))
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, fails_at, number)
            try:
                install(models, home, second, packed(1))
            except RefusedReleaseError as why:
                reasons.add(f"{why.reason}: {why}".split(";")[0])
        if disk.calls < fails_at:
            break
        assert predicted(models) in WORDS[:2]
        assert open_model(models.path / LINK).predict("see you", 1)[0].word in WORDS[:2]
        assert install(models, home, second, packed(1)).state == "installed"  # there is room again
        assert (predicted(models), models.version()) == (WORDS[1], 2)
    assert fails_at > 10
    assert reasons == {reason}


def kill_while_installing(models: ModelFolder, home: Folder, releases: list[tuple[bytes, bytes]], after: float) -> None:
    """Install releases in a process of its own, which is killed after so many seconds."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, b"x")
        for signed, content in releases:
            install(models, home, signed, content)
        os._exit(0)
    os.read(ready, 1)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready)
    os.close(told)


def many_releases(home: Folder) -> Iterator[tuple[int, bytes, bytes]]:
    version = 0
    while True:
        version += 1
        content = packed(version % len(WORDS))
        yield version, signed_release(home, version, [content]), content


@pytest.mark.parametrize("kills", [pytest.param(12), pytest.param(100, marks=pytest.mark.slow)])
def test_a_device_that_is_killed_while_it_installs_has_one_whole_model(
    models: ModelFolder, home: Folder, kills: int
) -> None:
    releases, rng, interrupted, before = many_releases(home), Random(kills), 0, 0
    _, signed, content = next(releases)
    install(models, home, signed, content)
    for _ in range(kills):
        batch = [next(releases) for _ in range(41)]
        kill_while_installing(models, home, [(s, c) for _, s, c in batch], rng.uniform(0.001, 0.04))
        version, state = models.version(), models.state()
        assert before <= version <= batch[-1][0]
        assert predicted(models) == WORDS[version % len(WORDS)]
        link = open_model(models.path / LINK).predict("see you", 1)[0].word
        assert link in (WORDS[version % len(WORDS)], WORDS[(version - 1) % len(WORDS)])
        interrupted += version < batch[-1][0]
        before = batch[-1][0]
        assert install(models, home, *batch[-1][1:]).state == "installed"
        assert predicted(models) == WORDS[before % len(WORDS)]
        assert len(files(models)) == 4
        assert state.seen <= before
    assert interrupted > kills / 2


def test_a_device_tells_the_server_a_fixed_word_and_its_own_log_the_reason(
    models: ModelFolder, home: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    content = packed(0)
    signed = signed_release(home, 1, [content])
    answer = answer_release(models, home.release_key, SECRET, {"release": signed})
    assert answer == {"model": b"0", "state": b"wants", "digest": digest_of(content).encode(), "wanted": b"0"}
    answer = answer_release(models, home.release_key, SECRET, {"release": signed, "number": b"0", "piece": b"no"})
    assert answer == {"model": b"0", "state": b"refused", "why": b"damaged piece"}
    assert capsys.readouterr().err == "fedgram: piece 1 of the model is damaged or truncated\n"
    assert answer_release(models, None, SECRET, {"release": signed})["why"] == b"no key"
    home.release_key.unlink()
    assert answer_release(models, home.release_key, SECRET, {"release": signed})["why"] == b"no key"
