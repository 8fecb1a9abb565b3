"""A copy of the project in which faults are planted one by one.

Compiled kernels must see a fault, also one in a file whose kernels or constants are compiled into theirs. So each fault
gets its own folder of compiled kernels, with those of the clean code whose sources, and everything that they import,
the fault leaves as they are. The copy keeps its place and its modification times, which numba checks.
"""

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.fault_list import ROOT, Fault

from fedgram.core.kernel_cache import kernel_digest, kernel_digests

_DIGESTS = "digests.json"


class Copy:
    """A copy of the project's files in a folder, and the folders of its compiled kernels.

    Folders are kept from run to run. A process takes the first one that no other process holds.
    """

    def __init__(self, folder: Path) -> None:
        home = self._take(folder)
        self.name = home.name
        self.root = home / "tree"
        self.package = self.root / "src" / "fedgram"
        self._kernels = home / "kernels"
        self._synchronize()
        self.clean_kernels = self._kernels / kernel_digest(self.package)[:16]
        if not self.clean_kernels.exists():
            self._prepare(self.clean_kernels)

    def _take(self, folder: Path) -> Path:
        for number in itertools.count():
            home = folder / f"copy-{number}"
            home.mkdir(parents=True, exist_ok=True)
            self._lock = (home / "lock").open("w")
            with suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return home
        raise AssertionError

    def _synchronize(self) -> None:
        """Make the copy equal to the project; files that are equal keep their modification time."""
        names = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        wanted = {name for name in names if (ROOT / name).is_file()}
        for path in [path for path in self.root.rglob("*.py") if path.relative_to(self.root).as_posix() not in wanted]:
            path.unlink()
        for name in wanted:
            source, target = ROOT / name, self.root / name
            if not target.exists() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def _prepare(self, folder: Path) -> None:
        """Link the compiled kernels of other versions whose sources are as they are now in the copy."""
        now = {path.as_posix(): digest for path, digest in kernel_digests(self.package).items()}
        others = sorted(self._kernels.glob("*/" + _DIGESTS), key=lambda path: path.stat().st_mtime, reverse=True)
        folder.mkdir(parents=True)
        missing = dict(now)
        for other in others:
            then = json.loads(other.read_text())
            same = {path for path, digest in missing.items() if then.get(path) == digest}
            linked = {path for path in same if self._link(path, other.parent, folder)}
            missing = {path: digest for path, digest in missing.items() if path not in linked}
        (folder / _DIGESTS).write_text(json.dumps(now))

    def _link(self, source: str, other: Path, folder: Path) -> bool:
        """Link the files of one source's kernels; numba replaces files as a whole, so the others keep theirs."""
        path = self.package / source
        place = f"{path.parent.name}_{hashlib.sha1(str(path.parent).encode()).hexdigest()}"  # as numba names folders
        found = list((other / place).glob(f"{path.stem}.*"))
        (folder / place).mkdir(exist_ok=True)
        for file in found:
            (folder / place / file.name).unlink(missing_ok=True)
            os.link(file, folder / place / file.name)
        return bool(found)

    @contextmanager
    def planted(self, fault: Fault, *, recompile: bool) -> Iterator[Path]:
        """Plant a fault, give the folder of the kernels with it, and take the fault out again."""
        target = self.root / fault.path
        clean = target.rename(target.with_suffix(".clean"))
        kernels = self._kernels / "planted" if recompile else self.clean_kernels
        try:
            target.write_text(fault.planted(clean.read_text()))
            if recompile:
                shutil.rmtree(kernels, ignore_errors=True)
                self._prepare(kernels)
            yield kernels
            if recompile:
                self._keep(kernels)
        finally:
            clean.replace(target)

    def _keep(self, kernels: Path) -> None:
        """Keep kernels that were compiled beside a fault, where it does not concern their sources."""
        clean, planted = (json.loads((folder / _DIGESTS).read_text()) for folder in (self.clean_kernels, kernels))
        for source in [source for source, digest in planted.items() if clean.get(source) == digest]:
            self._link(source, kernels, self.clean_kernels)


def tree_digest(root: Path) -> str:
    """The digest of all sources and tests."""
    sha = hashlib.sha256()
    for path in sorted([*root.glob("src/**/*.py"), *root.glob("tests/**/*.py")]):
        sha.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()
