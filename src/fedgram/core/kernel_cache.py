"""The folder in which numba caches compiled kernels: one folder per version of the sources.

numba notices when the file of a kernel changes, but not when a file changes whose kernels or constants are compiled
into it. So the folder is named by a digest of the files that have kernels and of all files that these import, directly
or indirectly.

Folders of other versions are kept for a while, because other processes may still run that code. A folder's modification
time is the time when a process last started with it.
"""

import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from time import time

MAX_UNUSED_SECONDS = 24 * 60 * 60
MAX_OTHER_FOLDERS = 8
_IMPORT = re.compile(rb"^(?:from|import) fedgram\.([\w.]+)(?: import (\([^)]*\)|.*))?", re.MULTILINE)


def prepare_cache(package: Path) -> Path | None:
    """Create the cache folder of this version of the package, and remove folders that are no longer used.

    Returns None if the package's folder cannot be written to.
    """
    home = package / "__pycache__"
    own = home / f"kernels-{kernel_digest(package)[:16]}"
    try:
        own.mkdir(parents=True, exist_ok=True)
        os.utime(own)
    except OSError:
        return None
    _remove_unused(home, own)
    return own


def kernel_digest(package: Path) -> str:
    """The digest of all sources that compiled kernels can depend on."""
    digests = kernel_digests(package)
    lines = "".join(f"{path.as_posix()}\0{digests[path]}\n" for path in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def kernel_digests(package: Path) -> dict[Path, str]:
    """For each file that has kernels: the digest of all sources that its compiled kernels can depend on."""
    sources = {path.relative_to(package): path.read_bytes() for path in package.rglob("*.py")}
    digests: dict[Path, bytes] = {}
    needs: dict[Path, set[Path]] = {}
    results: dict[Path, str] = {}
    for start in sorted(path for path, content in sources.items() if b"fedgram.core.jit import" in content):
        found = {start}
        pending = [start]
        while pending:
            path = pending.pop()
            if path not in needs:
                needs[path] = _imported(sources[path]) & sources.keys()
                digests[path] = path.as_posix().encode() + b"\0" + hashlib.sha256(sources[path]).digest()
            new = needs[path] - found
            found |= new
            pending += new
        results[start] = hashlib.sha256(b"".join(digests[path] for path in sorted(found))).hexdigest()
    return results


def _imported(content: bytes) -> set[Path]:
    """The files that a source may import."""
    files: set[Path] = set()
    for module, names in _IMPORT.findall(content):
        place = Path(*module.decode().split("."))
        files |= {place.with_suffix(".py"), *(place / f"{name}.py" for name in re.findall(r"\w+", names.decode()))}
    return files


def _remove_unused(home: Path, own: Path) -> None:
    """Remove folders that no process started with for a day, and the oldest ones beyond the limit."""
    used: list[tuple[float, Path]] = []
    for folder in home.glob("kernels-*"):
        with suppress(OSError):  # another process has just removed it
            used.append((folder.stat().st_mtime, folder))
    others = sorted((pair for pair in used if pair[1] != own), reverse=True)
    for rank, (last_used, folder) in enumerate(others):
        if rank >= MAX_OTHER_FOLDERS or last_used < time() - MAX_UNUSED_SECONDS:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Move the folder out of the way, then remove it: a process that still uses it never sees it half removed."""
    with suppress(OSError):  # another process has just removed it
        moved = folder.rename(folder.with_name(f"{folder.name}.{os.getpid()}"))
        shutil.rmtree(moved, ignore_errors=True)
