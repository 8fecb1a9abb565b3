"""The files of public git checkouts, read with git. A checkout may be bare, and may lack some large files."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedgram.core.errors import FedgramError, InputError

_OFFLINE = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


class Checkout(NamedTuple):
    """A git checkout of the repository `name` (owner/name)."""

    name: str
    folder: Path

    @property
    def commit(self) -> str:
        """The commit whose files are read."""
        return self._git("rev-parse", "HEAD").decode().strip()

    def paths(self, under: str, suffix: str = "") -> list[str]:
        """The paths of the files in a folder with this suffix, in order."""
        names = self._git("ls-tree", "-r", "-z", "--name-only", "HEAD", under).decode().split("\0")
        return sorted(name for name in names if name and name.endswith(suffix))

    def read(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The files at these paths with their contents. Files that the checkout lacks are named on standard error."""
        return self._objects({f"HEAD:{path}": path for path in paths})

    def read_one(self, path: str) -> bytes:
        """The content of a file that must be there."""
        for _, content in self.read([path]):
            return content
        raise InputError(self.folder / path, "is not in the checkout", remedy=f"clone {self.name} completely")

    def read_all_versions(self, under: str, suffix: str) -> Iterator[tuple[str, bytes]]:
        """Every version of the files in a folder, in all commits, newest first."""
        log = self._git("log", "--all", "--raw", "--no-abbrev", "--no-renames", "--format=", "--", under).decode()
        found: dict[str, str] = {}
        for line in log.splitlines():
            about, _, path = line.partition("\t")
            blob = about.split()[3]
            if path.endswith(suffix) and blob.strip("0"):
                found.setdefault(blob, path)
        return self._objects(found)

    def _git(self, *arguments: str) -> bytes:
        done = subprocess.run(["git", "-C", str(self.folder), *arguments], capture_output=True, env=_OFFLINE)
        if done.returncode:
            raise InputError(self.folder, f"git cannot read it ({done.stderr.decode(errors='replace').strip()[:200]})")
        return done.stdout

    def _objects(self, names: dict[str, str]) -> Iterator[tuple[str, bytes]]:
        command = ["git", "-C", str(self.folder), "cat-file", "--batch"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_OFFLINE) as git:
            assert git.stdin is not None
            assert git.stdout is not None
            for name, path in names.items():
                git.stdin.write(name.encode() + b"\n")
                git.stdin.flush()
                answer = git.stdout.readline().split()
                if len(answer) == 3 and answer[1] == b"blob":
                    content = git.stdout.read(int(answer[2]) + 1)[:-1]
                    yield path, content
                else:
                    print(f"{self.name}: {path} is not in the checkout; it is left out", file=sys.stderr)


def open_checkout(mirror: Path, name: str) -> Checkout:
    """The checkout of owner/name, at `<owner>+<name>` in the folder, or one level deeper in `repo`."""
    place = mirror / name.replace("/", "+")
    for folder in (place / "repo", place):
        if (folder / ".git").exists() or (folder / "HEAD").is_file():
            return Checkout(name, folder)
    raise FedgramError(f"{place}: there is no checkout; run: git clone https://github.com/{name} {place}")
