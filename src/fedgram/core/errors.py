"""The exception tree. Whatever a user can cause is a `FedgramError`, and its text is one clear line.

The command line prints that line and exits with code 2; a traceback means a bug of ours.
"""

from pathlib import Path


class FedgramError(Exception):
    """Something the user can mend; the message says what, where and how."""


class InputError(FedgramError):
    """A file whose content cannot be accepted.

    >>> print(InputError("a.arpa", "the probability is not a number", line=7, remedy="write it again"))
    a.arpa:7: the probability is not a number; write it again
    """

    def __init__(self, path: str | Path, problem: str, *, line: int | None = None, remedy: str | None = None) -> None:
        self.path, self.line, self.problem, self.remedy = str(path), line, problem, remedy
        place = f"{path}:{line}" if line is not None else str(path)
        super().__init__(f"{place}: {problem}" + (f"; {remedy}" if remedy else ""))


class InvariantError(FedgramError):
    """Arrays that do not form the type they were given for."""


class MissingDependencyError(FedgramError):
    """A feature was asked for whose optional package is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an optional package; install it with: pip install 'fedgram[{extra}]'")
