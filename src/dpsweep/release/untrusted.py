"""Readers for a folder that an attacker may have written: regular files, strict JSON, plain tensors.

This code executes no content, follows no links, and uses no more memory than the limits below.
"""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dpsweep.release import CARD, CERTIFICATE, FROZEN, TOKENIZER, TRAINED, ReleaseError

LARGEST = {CERTIFICATE: 2**24, CARD: 2**24, TOKENIZER: 2**27, TRAINED: 2**40, FROZEN: 2**40}
"""Files of a release, and their largest sizes in bytes."""
_DEEPEST = 12
_LARGEST_INTEGER = 2**53
_LONGEST_LINE = 300
_BLOCK = 2**24

Layout = Mapping[str, tuple[str, list[int]]]
"""Tensors of a file: from the name to safetensors' name of the type, and the shape."""

TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BOOL": "bool", "U8": "uint8"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
}
"""Types of tensors: from the names in safetensors to the names in numpy and torch."""


def escaped(text: str) -> str:
    r"""Escape characters that are not printable: line breaks, control characters, direction marks.

    >>> escaped("a\nb")
    'a\\nb'
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable(text: str) -> str:
    """Return a text escaped on one line, and shortened if it is long."""
    shown = escaped(text)
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[: _LONGEST_LINE - 3]}..."


# -- files ----------------------------------------------------------------------------------------


def file_mistakes(folder: Path) -> list[str]:
    """Return a line for each entry of a folder that is not a valid file of a release, without opening files.

    Raises:
        ReleaseError: it is missing, is not a folder, or cannot be read.
    """
    mistakes: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(mistakes) > len(LARGEST):
                    break  # there may be a million
                mistakes += _entry_mistakes(entry)
    except FileNotFoundError:
        raise ReleaseError(f"{folder}: no such folder") from None
    except NotADirectoryError:
        raise ReleaseError(f"{folder}: found a file; allowed: the folder of a release") from None
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be read: {error.strerror}") from None
    return sorted(mistakes)


def _entry_mistakes(entry: os.DirEntry[str]) -> Iterator[str]:
    name = printable(entry.name)
    if entry.name not in LARGEST:
        yield f"{name}: is not a file of a release"
        return
    found = entry.stat(follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        yield f"{name}: found a link; allowed: a file of the folder"
    elif not stat.S_ISREG(found.st_mode):
        yield f"{name}: found a folder, a pipe or a device; allowed: a file"
    elif found.st_nlink > 1:
        yield f"{name}: found a file that has another name elsewhere (a hard link); allowed: a copy"
    elif found.st_size > LARGEST[entry.name]:
        yield f"{name}: found {found.st_size} bytes; allowed: at most {LARGEST[entry.name]}"


def opened(folder: Path, name: str) -> BinaryIO:
    """Open a regular file of a folder; refuse a link or pipe even if it has just replaced the file.

    Raises:
        ReleaseError: it is missing, cannot be read, or is not a regular file.
    """
    # O_NONBLOCK, because opening a pipe would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(folder / name, flags)
    except FileNotFoundError:
        raise ReleaseError(f"{name}: missing") from None
    except OSError as error:
        raise ReleaseError(f"{name}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ReleaseError(f"{name}: found a folder, a pipe or a device; allowed: a file")
    return os.fdopen(descriptor, "rb")


def file_content(folder: Path, name: str) -> bytes:
    """Read a file of a folder.

    Raises:
        ReleaseError: as `opened`, or the file is too large.
    """
    with opened(folder, name) as stream:
        found = stream.read(LARGEST[name] + 1)
    if len(found) > LARGEST[name]:
        raise ReleaseError(f"{name}: found more than {LARGEST[name]} bytes")
    return found


def sha256(stream: BinaryIO) -> str:
    """Return the SHA-256 of an open file, from its beginning."""
    stream.seek(0)
    digest = hashlib.sha256()
    while block := stream.read(_BLOCK):
        digest.update(block)
    return digest.hexdigest()


# -- JSON -----------------------------------------------------------------------------------------


def strict_json(written: bytes) -> Any:
    """Parse JSON in the form that dpsweep writes; refuse text that other parsers could read differently.

    >>> strict_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}

    Raises:
        ValueError: it is not UTF-8 or not JSON, or contains a duplicate key, a number that is not finite or
            too large, half a surrogate pair, text after its end, or too deeply nested brackets.
    """
    if written.startswith(b"\xef\xbb\xbf"):
        raise ValueError("found a byte order mark; allowed: UTF-8 without one")
    try:
        found = json.loads(
            written.decode("utf-8"),
            object_pairs_hook=unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _refuse_depth_and_surrogates(found)
    return found


_TOO_DEEP = f"found brackets within brackets; allowed: {_DEEPEST} levels"


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping of the keys and values of a JSON object.

    Raises:
        ValueError: a key occurs twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"found the key {printable(twice)!r} twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"found {name}; allowed: finite numbers")


def _float(text: str) -> float:
    if len(text) > 32 or not math.isfinite(value := float(text)):
        raise ValueError(f"found {text[:20]}; allowed: finite numbers of 64 bits")
    return value


def _integer(text: str) -> int:
    if len(text) > 17 or abs(value := int(text)) > _LARGEST_INTEGER:
        raise ValueError(f"found {text[:20]}; allowed: integers up to {_LARGEST_INTEGER}")
    return value


def _refuse_depth_and_surrogates(found: Any) -> None:
    level, depth = [found], 0
    while level:
        if depth > _DEEPEST:
            raise ValueError(_TOO_DEEP)
        depth += 1
        inside: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inside += [*each, *each.values()]
            elif isinstance(each, list):
                inside += each
            elif isinstance(each, str) and re.search("[\ud800-\udfff]", each):
                raise ValueError("found half a surrogate pair; allowed: text of whole characters")
        level = inside


# -- tensors --------------------------------------------------------------------------------------


def tensor_mistakes(stream: BinaryIO, layout: Layout) -> Iterator[str]:
    """Yield the differences between a safetensors file and the expected tensors.

    The header may contain only names, types, shapes and offsets. There may be no bytes between or after
    tensors, and two tensors may not share bytes. Numbers must be finite.

    Args:
        stream: an open file.
        layout: names, types and shapes.
    """
    try:
        header, start = _header(stream)
    except ValueError as error:
        yield f"is not a file of parameters: {error}"
        return
    for name in sorted(layout.keys() - header.keys()):
        yield f"{printable(name)} is missing"
    for name in sorted(header.keys() - layout.keys()):
        yield f"{printable(name)} is not among what belongs there"
    end = 0
    for name, entry in header.items():
        if name not in layout:
            return
        dtype, shape = layout[name]
        if dtype not in TYPES:
            yield f"{printable(name)}: expected {dtype}, which no release has"
            return
        size = math.prod(shape) * np.dtype(TYPES[dtype]).itemsize
        if (entry.get("dtype"), entry.get("shape")) != (dtype, shape):
            found = f"{entry.get('dtype')} {entry.get('shape')}"
            yield f"{printable(name)}: found {printable(found)}, expected {dtype} {shape}"
        if entry != {
            **{"dtype": entry.get("dtype"), "shape": entry.get("shape")},
            "data_offsets": [end, end + size],
        }:
            yield (
                f"{printable(name)}: found {printable(str(entry))}, expected bytes {end} to {end + size}, "
                "right behind those of the tensor before"
            )
            return
        end += size
    stream.seek(0, os.SEEK_END)
    if stream.tell() != start + end:
        yield f"found {stream.tell()} bytes, expected {start + end}"
        return
    stream.seek(start)
    for name in header:
        dtype, shape = layout[name]
        if not _is_finite(stream, math.prod(shape), np.dtype(TYPES[dtype])):
            yield f"{printable(name)}: found numbers that are not finite"


def _header(stream: BinaryIO) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the header of a safetensors file, and the offset of its tensors."""
    stream.seek(0)
    length = int.from_bytes(stream.read(8), "little")
    if length > LARGEST[CERTIFICATE]:
        raise ValueError(f"found a header of {length} bytes")
    written = stream.read(length)
    header = strict_json(written)
    if not (isinstance(header, dict) and all(isinstance(each, dict) for each in header.values())):
        raise ValueError("found a header that does not list tensors")
    if "__metadata__" in header:
        raise ValueError("found __metadata__, which cannot be verified; allowed: tensors")
    plain = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if written != plain + b" " * (-len(plain) % 8):
        raise ValueError("found a header with other spaces than safetensors writes")
    return header, 8 + length


def _is_finite(stream: BinaryIO, numbers: int, dtype: np.dtype[Any]) -> bool:
    size = numbers * dtype.itemsize
    for block in iter(partial(stream.read, min(size, _BLOCK)), b""):
        size -= len(block)
        if dtype.kind == "f" and not np.isfinite(np.frombuffer(block, dtype)).all():
            return False
        if dtype.kind == "b" and max(block) > 1:
            return False
        if size == 0:
            break
    return True
