"""What is installed, exactly: the lock file with hashes, and the list of components (SBOM).

    scripts/lock     writes requirements.lock: what fedgram[dev,oracles,build] needs, as it is installed in .venv, with
                     the hashes of its files for Python 3.11
    scripts/sbom     prints a CycloneDX list of the packages of requirements.lock as JSON

The hashes are those of pip's indexes, of all platforms, and of the files in pip's folders (find-links).
"""

import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

LOCK = Path("requirements.lock")
HEAD = """\
# Written by scripts/lock: every package that the scripts install, with the SHA-256 of its files.
# To change it: install what is needed into .venv, then run scripts/lock.
"""
ROOT = "fedgram[dev,oracles,build]"
_FOR_US = re.compile(r"\.tar\.gz|\.zip|-(py3\d*|py2\.py3|cp311)-[^-]+-[^-]+\.whl|-cp3\d+-abi3-[^-]+\.whl")


def canonical(name: str) -> str:
    """The name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def own_requirements(extras: set[str]) -> list[Requirement]:
    """What fedgram needs with some extras, by pyproject.toml."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for e in extras for line in project["optional-dependencies"][e])]
    return [needed for needed in map(Requirement, lines) if needed.marker is None or needed.marker.evaluate()]


def installed() -> dict[str, str]:
    """The versions of what `ROOT` needs, directly or not, as it is installed."""
    found: dict[str, str] = {}
    seen, waiting = set(), [Requirement(ROOT)]
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        if canonical(wanted.name) == "fedgram":
            waiting += own_requirements(wanted.extras)
            continue
        package = distribution(wanted.name)
        found[canonical(wanted.name)] = package.version
        for needed in map(Requirement, package.requires or []):
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
                waiting.append(needed)
    return dict(sorted(found.items()))


class Index:
    """Pip's own indexes and folders, asked through pip, so that its configuration holds."""

    def __init__(self) -> None:
        from pip._internal.commands import create_command

        self.command: Any = create_command("download")
        self.options, _ = self.command.parse_args(["x"])
        self.session = self.command._build_session(self.options)
        self.finder = self.command._build_package_finder(self.options, self.session)

    def links(self, name: str) -> Iterator[Any]:
        """The files of a package in all indexes and folders."""
        from pip._internal.index.collector import parse_links
        from pip._internal.models.link import Link

        collector = self.finder._link_collector
        for url in collector.search_scope.get_index_urls_locations(name):
            content = collector.fetch_response(Link(url))
            yield from parse_links(content) if content is not None else ()
        for folder in collector.search_scope.find_links:
            for path in sorted(Path(folder).iterdir()) if Path(folder).is_dir() else ():
                yield Link(path.absolute().as_uri())

    def files(self, name: str, version: str) -> dict[str, str]:
        """The SHA-256 of the files of a version, by file name; those for other versions of Python are left out."""
        public = version.partition("+")[0]
        start = re.compile(
            rf"{name.replace('-', '[-_.]+')}-{re.escape(public)}(\+\w+)?(?=-|\.tar|\.zip)", re.IGNORECASE
        )
        found = {
            link.filename: link.hash or hashlib.sha256(Path(link.file_path).read_bytes()).hexdigest()
            for link in self.links(name)
            if start.match(link.filename) and _FOR_US.search(link.filename)
        }
        if not found:
            raise SystemExit(f"no index has files of {name} {version}")
        return found


def lock_line(name: str, version: str, files: dict[str, str]) -> str:
    """A requirement with the hashes of its files; one that exists for Linux only is required there only."""
    only_linux = all("linux" in file for file in files)
    marker = " ; sys_platform == 'linux'" if only_linux else ""
    hashes = " ".join(f"--hash=sha256:{value}" for value in sorted(set(files.values())))
    return f"{name}=={version.partition('+')[0]}{marker} {hashes}"


def write_lock() -> None:
    """Write the lock file."""
    index, packages = Index(), installed()
    with ThreadPoolExecutor(8) as pool:
        files = pool.map(lambda row: index.files(*row), packages.items())
        lines = [lock_line(name, version, f) for (name, version), f in zip(packages.items(), files, strict=True)]
    LOCK.write_text(HEAD + "\n".join(lines) + "\n")


def locked() -> Iterator[tuple[str, str, list[str]]]:
    """The packages of the lock file: name, version, hashes."""
    for line in LOCK.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.split()[0].partition("==")
            yield name, version, re.findall(r"--hash=sha256:([0-9a-f]{64})", line)


def bill_of_materials() -> dict[str, Any]:
    """A CycloneDX 1.5 list of the locked packages; equal locks give equal lists."""
    components = [
        {
            "type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "properties": [{"name": "fedgram:sha256", "value": value} for value in hashes],
        }
        for name, version, hashes in locked()
    ]  # fmt: skip
    serial = uuid.uuid5(uuid.NAMESPACE_URL, hashlib.sha256(LOCK.read_bytes()).hexdigest())
    about = {"component": {"type": "application", "name": "fedgram", "bom-ref": "fedgram"}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
            "metadata": about, "components": components}  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        write_lock()
    else:
        print(json.dumps(bill_of_materials(), indent=1))
