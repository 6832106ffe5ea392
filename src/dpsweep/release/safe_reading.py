"""Readers for the folder of a release: regular files of limited size, and plain tensors.

Nothing in the folder is executed, and no link is followed. Who expects an attack verifies in a container.
"""

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dpsweep.release import CARD, CERTIFICATE, FROZEN, TOKENIZER, TRAINED, ReleaseError

LARGEST = {CERTIFICATE: 2**24, CARD: 2**24, TOKENIZER: 2**27, TRAINED: 2**40, FROZEN: 2**40}
"""Files of a release, and their largest sizes in bytes."""
_LONGEST_LINE = 300

Layout = Mapping[str, tuple[str, list[int]]]
"""Tensors of a file: from the name to safetensors' name of the type, and the shape."""


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


def file_mistakes(folder: Path) -> Iterator[str]:
    """Yield a line for each entry of a folder that is not a file of a release, without opening files.

    Raises:
        ReleaseError: the folder cannot be read.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be read: {error.strerror}") from None
    for entry in entries:
        found = entry.lstat()
        if entry.name not in LARGEST:
            yield f"{entry.name}: is not a file of a release"
        elif not stat.S_ISREG(found.st_mode):
            yield f"{entry.name}: found a link, a folder, a pipe or a device; allowed: a file"
        elif found.st_size > LARGEST[entry.name]:
            allowed = LARGEST[entry.name]
            yield f"{entry.name}: found {found.st_size} bytes; allowed: at most {allowed}"


def file_content(folder: Path, name: str) -> bytes:
    """Read a file of a folder.

    Raises:
        ReleaseError: it is missing.
    """
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise ReleaseError(f"{name}: missing") from None


def tensor_mistakes(file: Path, layout: Layout) -> Iterator[str]:
    """Yield the differences between a safetensors file and the expected tensors.

    safetensors itself refuses tensors that overlap, or leave bytes between or behind them.

    Args:
        file: of tensors.
        layout: their names, types and shapes.
    """
    try:
        with safe_open(file, framework="pt") as stored:
            found = set(stored.keys())
            if stored.metadata():
                yield "found metadata, which cannot be verified; allowed: tensors"
            yield from (f"{name} is missing" for name in sorted(layout.keys() - found))
            yield from (
                f"{name} is not among what belongs there" for name in sorted(found - layout.keys())
            )
            for name in sorted(found & layout.keys()):
                header = stored.get_slice(name)
                kind, shape = header.get_dtype(), header.get_shape()
                expected, size = layout[name]
                if (kind, shape) != (expected, size):
                    yield f"{name}: found {kind} {shape}, expected {expected} {size}"
                elif not stored.get_tensor(name).isfinite().all():
                    yield f"{name}: found numbers that are not finite"
    except FileNotFoundError:
        yield "missing"
    except (SafetensorError, OSError) as error:
        yield f"is not a file of parameters: {error}"
