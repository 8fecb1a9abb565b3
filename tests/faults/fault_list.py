"""The list of faults: one TOML file per package, and one table per fault, named by what it breaks.

    [the-norm-limit-stretches-short-updates]
    file = "training/fedavg_device.py"       # below src/fedgram
    old = "min(1.0, limit / norm)"           # occurs exactly once in the file
    new = "limit / norm"
    tests = ["unit/training/test_fedavg_run.py::test_…"]   # below tests; the few that cover the place

A fault that cannot matter has `survives`, the reason why no test can see it.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Of these, every fault must be killed.
CRITICAL = (
    "federated/secure/",
    "federated/mechanism.py",
    "federated/validation.py",
    "privacy/",
    "core/storage.py",
    "core/checkpoint.py",
    "pipeline/workspace.py",
)


@dataclass(frozen=True)
class Fault:
    """A change of one place of the code that breaks what it is named after."""

    package: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def title(self) -> str:
        """`PACKAGE/NAME`, as the command takes it."""
        return f"{self.package}/{self.name}"

    @property
    def path(self) -> str:
        """The file, from the root of the project."""
        return f"src/fedgram/{self.file}"

    @property
    def module(self) -> str:
        """The name of the module."""
        return f"fedgram.{self.file.removesuffix('.py').replace('/', '.')}"

    @property
    def test_files(self) -> list[str]:
        """The files of its tests."""
        return sorted({test.split("::")[0] for test in self.tests})

    @property
    def is_critical(self) -> bool:
        """Whether a survivor is never allowed here."""
        return self.file.startswith(CRITICAL)

    def planted(self, source: str) -> str:
        """The source with the fault."""
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.title}: its old text occurs {source.count(self.old)} times in {self.file}, not once"
            )
        return source.replace(self.old, self.new)


def load_faults(folder: Path = HERE) -> list[Fault]:
    """All faults, by package and in the order of the files."""
    faults = []
    for path in sorted(folder.glob("*.toml")):
        for name, fields in tomllib.loads(path.read_text()).items():
            tests = tuple(f"tests/{test}" for test in fields.pop("tests"))
            faults.append(Fault(path.stem, name, tests=tests, **fields))
    return faults
