"""Converts an OpenFst automaton of another type to a vector automaton, in a process of its own with limits.

OpenFst does not check its input: a damaged file ends the process that reads it. So another process reads it, one that
may use only so much memory and time. `python -m fedgram.formats.convert_fst FILE MEMORY` is that process.
"""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

from fedgram.core.errors import InputError, MissingDependencyError
from fedgram.core.unpacking import unpacked_limit

_TYPES = re.compile(
    r"const(8|16|64)?|compact(8|16|64)?_(acceptor|string|weighted_string|unweighted|unweighted_acceptor)|ngram"
)
_SECONDS = 60
_OWN_MEMORY = 1 << 29  # of Python and OpenFst
_NO_OPENFST = 3


def as_vector(path: str | Path, kind: str) -> bytes:
    """The bytes of the automaton, which is of this type, as a vector automaton with standard arcs."""
    if not _TYPES.fullmatch(kind):
        remedy = "convert it with `fstconvert --fst_type=vector`"
        raise InputError(path, f"is an OpenFst automaton of the type {kind!r:.40}", remedy=remedy)
    limit = unpacked_limit(Path(path).stat().st_size)
    command = [sys.executable, "-P", "-m", "fedgram.formats.convert_fst", str(Path(path).absolute()), str(limit)]
    python_path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": python_path}, stdin=subprocess.DEVNULL, capture_output=True,
            check=False, timeout=2 * _SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(path, f"takes OpenFst more than {2 * _SECONDS} s to read") from None
    if done.returncode == _NO_OPENFST:
        raise MissingDependencyError("reading .fst files of types other than vector", "fst")
    if done.returncode or len(done.stdout) > limit:
        raise InputError(path, "is damaged, or not an OpenFst automaton with standard arcs")
    return done.stdout


def _convert(path: str, limit: int) -> int:
    for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, _SECONDS)):
        resource.setrlimit(what, (most, most))
    resource.setrlimit(resource.RLIMIT_AS, (_OWN_MEMORY + 2 * limit,) * 2)
    try:
        import pywrapfst
    except ImportError:
        return _NO_OPENFST
    converted: bytes = pywrapfst.convert(pywrapfst.Fst.read(path), "vector").write_to_string()
    sys.stdout.buffer.write(converted)
    return 0


if __name__ == "__main__":
    sys.exit(_convert(sys.argv[1], int(sys.argv[2])))
