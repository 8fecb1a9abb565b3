"""KenLM's binary format, built from an ARPA file by KenLM's own `build_binary`."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.formats.arpa import write_arpa

LIBIME = "libime_slm_build_binary"  # the same program, as libime (fcitx5) brings it
STRUCTURES = {"probing": ["probing"], "trie": ["-a", "64", "-q", "8", "-b", "8", "trie"]}


def write_kenlm(model: NGramModel, path: str | Path, *, structure: str = "probing", builder: str | None = None) -> None:
    """Write the model as KenLM's probing hash table or as its 8-bit quantised trie."""
    found = find_builder(builder)
    with tempfile.TemporaryDirectory() as folder:
        arpa, binary = Path(folder) / "model.arpa", Path(folder) / "model.binary"
        write_arpa(model, arpa)
        command = [found, *STRUCTURES[structure], str(arpa), str(binary)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError as error:
            raise FedgramError(f"{found} cannot be run: {error.strerror}") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise FedgramError(f"{found} failed: {lines[-1] if lines else 'no error message'}")
        with atomic_write(path) as file:
            file.write(binary.read_bytes())


def find_builder(builder: str | None = None) -> str:
    """Where KenLM's program is, or the one of this name."""
    found = shutil.which(builder or "build_binary")
    if not found:
        raise FedgramError(_missing(builder))
    return found


def _missing(builder: str | None) -> str:
    """What is said of a program that is not there or cannot be run."""
    if builder is None:
        remedy = "set --build-binary (docs/exports.md says how to get it), or export arpa"
        return f"KenLM's build_binary is not on the PATH; {remedy}"
    if "/" in builder:
        problem = "is not a program that can be run" if Path(builder).exists() else "is not there"
        return f"{builder} {problem}; --build-binary takes KenLM's build_binary, or {LIBIME}"
    remedy = (
        "install libime (Debian: apt install libime-bin)" if builder == LIBIME else "docs/exports.md says how to get it"
    )
    return f"{builder} is not on the PATH; {remedy}, or give its whole path"
