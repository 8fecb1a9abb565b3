"""Artefact files: written atomically, versioned, with a checksum, and without code.

An artefact is a safetensors file, so any language can read its arrays. Its metadata entry `fedgram` is a JSON object:
`kind` and `version` say what the file is, `fields` holds small values, and `digest` is the SHA-256 of the fields and
arrays. Equal content gives equal bytes.
"""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isinf
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from fedgram.core.arrays import ByteArray
from fedgram.core.errors import InputError

_UMASK = os.umask(0o077)  # it can only be read by setting it, so this is done once, at import
os.umask(_UMASK)

_TYPES = {  # numpy's types by their names in a safetensors file, in the order of that library
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_RANK = {dtype: rank for rank, dtype in enumerate(_TYPES.values())}
_MAX_HEADER_BYTES = 100_000_000  # as in the safetensors library


@contextmanager
def atomic_write(path: str | Path, *, durable: bool = True, private: bool = False) -> Iterator[BinaryIO]:
    """Write a binary file that appears at `path` when the block ends; if the block fails, nothing changes.

    The file is written in the same folder under a temporary name, flushed to disk, and renamed; an existing file is
    replaced. With `durable=False` it is not flushed, so a power cut may lose it. With `private`, only its owner may
    read it.
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # a special file or pipe, such as /dev/stdout, cannot be replaced
        if path.is_dir():
            raise InputError(path, "is a folder; give the name of a file to write")
        with path.open("wb") as file:
            yield file
        return
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:  # name the requested file, not the temporary one
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(temporary).chmod(0o600 if private else 0o666 & ~_UMASK)
        Path(temporary).replace(path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:  # such as: the disk is full
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def flush(path: Path) -> None:
    """Flush a file, or the list of files in a folder, to disk, so that it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """JSON values by name and arrays by name: the data that is stored or sent."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def part(self, prefix: str) -> "Record":
        """The values and arrays whose names start with `prefix` and a dot; the result's names omit that prefix."""
        start = f"{prefix}."
        return Record(
            {name.removeprefix(start): value for name, value in self.fields.items() if name.startswith(start)},
            {name.removeprefix(start): array for name, array in self.arrays.items() if name.startswith(start)},
        )

    @staticmethod
    def joined(**parts: "Record") -> "Record":
        """Several records as one; `part` is the inverse."""
        fields = {f"{prefix}.{name}": v for prefix, part in parts.items() for name, v in part.fields.items()}
        arrays = {f"{prefix}.{name}": a for prefix, part in parts.items() for name, a in part.arrays.items()}
        return Record(fields, arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Artefact:
    """The content of one artefact file."""

    kind: str
    version: int
    fields: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


def content_digest(fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of the fields and of the arrays' names, types, shapes and bytes; the order of insertion has no effect."""
    sha = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        sha.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        sha.update(_raw(array))
    return sha.hexdigest()


def limit_to_json(limit: float) -> float | None:
    """A limit as a JSON value: infinity, which JSON lacks, becomes None."""
    return None if isinf(limit) else limit


def limit_from_json(value: float | None) -> float:
    """The limit that `limit_to_json` wrote: None means no limit."""
    return inf if value is None else value


def artefact_to_bytes(artefact: Artefact) -> bytes:
    """The content of an artefact file."""
    header, arrays, _ = _serialize(artefact)
    return b"".join([header, *map(_raw, arrays)])


def write_artefact(path: str | Path, artefact: Artefact) -> str:
    """Write the artefact and return its digest."""
    header, arrays, digest = _serialize(artefact)
    with atomic_write(path) as file:
        file.write(header)
        for array in arrays:
            file.write(_raw(array))
    return digest


def _raw(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _serialize(artefact: Artefact) -> tuple[bytes, list[NDArray[Any]], str]:
    """The header, the arrays in the order of the file, and the digest; the bytes are those of the safetensors library.

    The types with the largest values come first, so that every array is aligned.
    """
    digest = content_digest(artefact.fields, artefact.arrays)
    about = {"kind": artefact.kind, "version": artefact.version, "fields": artefact.fields, "digest": digest}
    arrays = {name: np.ascontiguousarray(array) for name, array in artefact.arrays.items()}
    header: dict[str, Any] = {"__metadata__": {"fedgram": json.dumps(about, sort_keys=True)}}
    end = 0
    for name in sorted(arrays, key=lambda name: (-_RANK[arrays[name].dtype.str], name)):
        array, first, end = arrays[name], end, end + arrays[name].nbytes
        header[name] = {"dtype": _NAMES[array.dtype.str], "shape": array.shape, "data_offsets": [first, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [arrays[name] for name in header if name in arrays], digest


def artefact_from_bytes(content: bytes, name: str | Path, *, kind: str, version: int) -> Artefact:
    """Parse the content of an artefact file; error messages call it `name`."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        about = json.loads(header["__metadata__"]["fedgram"])
        arrays = load(content)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(name, f"is damaged or not a fedgram artefact ({error})", remedy="write it again") from None
    return _checked(about, arrays, name, kind, version)


def read_artefact(path: str | Path, *, kind: str, version: int) -> Artefact:
    """Read an artefact. Damaged files, other kinds and other versions are refused."""
    path = Path(path)
    path.open("rb").close()  # raises the usual OSError for a missing or unreadable file
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["fedgram"])
            if about["kind"] == kind and about["version"] == version:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            else:
                arrays = {}
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(path, f"is damaged or not a fedgram artefact ({error})", remedy="write it again") from None
    return _checked(about, arrays, path, kind, version)


def map_artefact(path: str | Path, *, kind: str, version: int) -> Artefact:
    """Read an artefact as `read_artefact` does, with arrays that are mapped into memory and read-only.

    The whole file is read once, for its checksum.
    """
    path = Path(path)
    path.open("rb").close()  # raises the usual OSError for a missing or unreadable file
    try:
        content = np.memmap(path, np.uint8, "r").view(np.ndarray)
        header, data = _split_header(content)
        about = json.loads(header.pop("__metadata__")["fedgram"])
        arrays = _mapped_arrays(header, data)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(path, f"is damaged or not a fedgram artefact ({error})", remedy="write it again") from None
    return _checked(about, arrays, path, kind, version)


def _split_header(content: ByteArray) -> tuple[dict[str, Any], ByteArray]:
    """The header of a safetensors file, and the bytes that follow it."""
    length = int.from_bytes(content[:8].tobytes(), "little")
    if length > _MAX_HEADER_BYTES or 8 + length > len(content):
        raise ValueError("the header is longer than the file")
    if length % 8:
        raise ValueError("the arrays are not aligned")
    return json.loads(content[8 : 8 + length].tobytes().decode()), content[8 + length :]


def _mapped_arrays(header: Mapping[str, Any], data: ByteArray) -> dict[str, NDArray[Any]]:
    """The arrays of a header as views of `data`. They must fill it without gaps, overlaps or misaligned values."""
    arrays: dict[str, NDArray[Any]] = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (first, last) = np.dtype(_TYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
        if any(type(number) is not int or number < 0 for number in (*shape, first, last)):
            raise ValueError("a shape or an offset is not a whole number")
        if first != end or last > len(data) or last - first != math.prod(shape) * dtype.itemsize:
            raise ValueError("the arrays' sizes and offsets do not fit together")
        if first % dtype.itemsize:
            raise ValueError("the arrays are not aligned")
        if dtype == np.bool_ and data[first:last].max(initial=0) > 1:
            raise ValueError("a truth value is neither 0 nor 1")
        arrays[name] = data[first:last].view(dtype).reshape(shape)
        end = last
    if end != len(data):
        raise ValueError("the arrays end before the file does")
    return arrays


def _checked(about: Any, arrays: Mapping[str, NDArray[Any]], name: str | Path, kind: str, version: int) -> Artefact:
    try:
        found, found_version, fields, digest = about["kind"], about["version"], about["fields"], about["digest"]
    except (KeyError, TypeError) as error:
        raise InputError(name, f"is damaged or not a fedgram artefact ({error})", remedy="write it again") from None
    if found != kind:
        raise InputError(name, f"contains a {found!r:.40}, not a {kind!r}")
    if not isinstance(fields, dict):
        raise InputError(name, "is damaged: its fields are not named values", remedy="write it again")
    if found_version != version:
        remedy = "create it again, or use the version of fedgram that wrote it"
        raise InputError(name, f"has format version {found_version!r:.40}, not {version}", remedy=remedy)
    try:
        intact = content_digest(fields, arrays) == digest
    except (RecursionError, TypeError, ValueError):  # fields that can be read but not serialised again
        intact = False
    if not intact:
        raise InputError(name, "is damaged: its content does not match its checksum", remedy="write it again")
    return Artefact(kind, version, fields, arrays)
