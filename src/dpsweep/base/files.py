"""Atomic writes, locks, checksums, JSON and parquet for the files of all stages."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import reprlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import BaseModel, ValidationError

from dpsweep.base.errors import DpsweepError
from dpsweep.base.lazy import pa, pq

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)

_FINGERPRINT = "fingerprint"
# First bytes of pointer files of git-lfs and git-annex, and the command that fetches the content.
_POINTERS = {b"version https://git-lfs": "git lfs pull", b"/annex/objects/": "git annex get"}
_POINTER_BYTES = 64
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")


class DamagedFileError(DpsweepError, ValueError):
    """A file with other content than was written."""


class UnreadableResultsError(DpsweepError):
    """A result file that is missing, damaged, or lacks a column."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it when the block succeeds.

    The file is synced to disk, renamed within its own folder, and the folder is synced. So a reader sees the
    old content or the new content, never a part of it, also after a crash; after the block a crash of the
    machine does not lose it. If the block raises an error, the
    temporary file is removed and ``path`` is unchanged.

    The temporary name ends as ``path`` does, because some writers choose the format by suffix.

    Raises:
        OSError: the disk is full, or refuses the file for another reason; the error names ``path``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".partial-", suffix=path.name)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        # mkstemp makes private files; results must follow the user's umask.
        umask = os.umask(0)
        os.umask(umask)
        partial.chmod(0o666 & ~umask)
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if error.filename is None:  # the error of a full disk has no file name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except Exception as error:
        # Writers in Rust, such as safetensors, have their own types of errors.
        if found := _RUST_ERROR.search(str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def folder_beside(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder beside ``folder`` for its parts, and remove what killed calls have left there.

    A lock tells the folder of a running process from that of a killed one.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".partial-{folder.name}+"
    for left in folder.parent.glob(f"{prefix}*"):
        with suppress(OSError):
            with _locked_folder(left):
                pass  # its process is gone, and so is its lock
            shutil.rmtree(left)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as aside,
        ExitStack() as lock,
    ):
        with suppress(OSError):  # a file system without locks: then nothing is removed either
            lock.enter_context(_locked_folder(Path(aside)))
        yield Path(aside)


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    # NFS locks only what is open for writing, and so no folder.
    with (folder / ".lock").open("a") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def locked(path: Path, waiting: str) -> TextIO:
    """Open a file and take its exclusive lock; closing the file releases the lock.

    A call waits for other processes that hold the lock, on any machine that shares the disk. If the
    holder removes the file, it is created again.

    Args:
        path: the file; it is created if it is missing.
        waiting: the message to log while another process holds the lock.

    Raises:
        OSError: the path cannot be written, or is not a file.
    """
    while True:
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("%s; waiting for its end", waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            log.warning("%s: no lock (%s); start no other such call beside this one", path, error)
            return lock
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder on the same disk that replaces ``folder`` when the block succeeds.

    A reader sees the old folder, or for a moment none, or the new one. Open files stay readable.
    """
    folder = folder.resolve()  # a link to a folder on another disk stays
    with folder_beside(folder) as aside:
        made = aside / "new"
        made.mkdir()
        yield made
        if folder.exists():
            folder.replace(aside / "old")
        made.replace(folder)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk: until then a power cut can lose a new or renamed file."""
    with suppress(OSError):  # some network file systems cannot
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def require_content(path: Path) -> None:
    """Refuse pointers of git-lfs or git-annex (see `found_pointer`).

    Missing files pass: opening them raises the right error.

    Raises:
        OSError: the path is a pointer.
    """
    if path.is_file() and (found := found_pointer(path)):
        raise OSError(errno.ENODATA, found, str(path))


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, in an order that does not depend on the disk.

    Hidden files and folders, whose names begin with a dot, are left out. An unreadable folder is empty;
    reading its data later raises the error.
    """
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith("."))


def found_pointer(content: bytes | Path) -> str | None:
    """Return a message with the fetch command if the content is a pointer of git-lfs or git-annex, else None.

    >>> found_pointer(b"version https://git-lfs.github.com/spec/v1")
    'a pointer of git-lfs, not the file itself; fetch that: git lfs pull'

    Args:
        content: of a file, or the path of the file.
    """
    if isinstance(content, Path):
        with content.open("rb") as stream:
            content = stream.read(_POINTER_BYTES)
    for beginning, command in _POINTERS.items():
        if content.startswith(beginning):
            name = "-".join(command.split()[:2])
            return f"a pointer of {name}, not the file itself; fetch that: {command}"
    return None


def canonical_json(value: Any) -> str:
    """Return ``value`` as JSON that is the same for equal values (sorted keys, no spaces).

    Non-finite floats become ``Infinity``, ``-Infinity`` and ``NaN``, as Python reads them back.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of ``value``, as 64 hexadecimal digits."""
    # File names that are not UTF-8 contain surrogates.
    encoded = canonical_json(value).encode(errors="surrogatepass")
    return hashlib.sha256(encoded).hexdigest()


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically; keys keep their order."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_checked_json(path: Path, content: dict[str, Any]) -> None:
    """Write a mapping and its fingerprint, as the last key, as indented JSON, atomically."""
    write_json(path, with_fingerprint(content))


def with_fingerprint(content: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping with its fingerprint as the last key; `checked` compares the fingerprint."""
    return content | {_FINGERPRINT: fingerprint(content)}


def read_checked_json(path: Path) -> dict[str, Any]:
    """Read a file of `write_checked_json`, without the fingerprint.

    Raises:
        FileNotFoundError: the file is missing.
        DamagedFileError: the content has changed since it was written.
    """
    try:
        content = read_json(path)
    except ValueError as error:
        raise DamagedFileError(f"{path}: damaged: {error}", (path,)) from None
    return checked(path, content)


def checked(path: Path, content: Any) -> dict[str, Any]:
    """Check the content of a file of `write_checked_json`, and return it without the fingerprint.

    Raises:
        DamagedFileError: the content does not match its fingerprint.
    """
    if not isinstance(content, dict) or _FINGERPRINT not in content:
        raise DamagedFileError(f"{path}: found no {_FINGERPRINT} of its content", (path,))
    written = {key: value for key, value in content.items() if key != _FINGERPRINT}
    if fingerprint(written) != content[_FINGERPRINT]:
        raise DamagedFileError(
            f"{path}: damaged or edited: found content with {_FINGERPRINT} "
            f"{fingerprint(written)}, expected {content[_FINGERPRINT]}",
            (path,),
        )
    return written


def parsed(kind: type[Model], path: Path, content: dict[str, Any]) -> Model:
    """Return the content of a file as a model of pydantic.

    Raises:
        DamagedFileError: the content has another form.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise DamagedFileError(
            f"{path}: damaged: {'; '.join(mistakes_of(error))}", (path,)
        ) from None


def mistakes_of(error: ValidationError) -> list[str]:
    """Return a line for each error that pydantic found, with its place."""
    return [
        ": ".join(filter(None, [".".join(map(str, each["loc"])), each["msg"]]))
        + ("" if each["type"] == "missing" else f", found {reprlib.repr(each['input'])}")
        for each in error.errors()
    ]


# -- parquet -------------------------------------------------------------------------------


def write_rows(path: Path, rows: pa.Table, metadata: Mapping[bytes, bytes] | None = None) -> None:
    """Write a table atomically, with a checksum of each page: reading detects every flipped bit.

    Args:
        path: the file.
        rows: the table.
        metadata: for the file, in addition to the table's metadata.
    """
    described = rows.replace_schema_metadata({**(rows.schema.metadata or {}), **(metadata or {})})
    with atomic_path(path) as partial:
        pq.write_table(described, partial, write_page_checksum=True)


def read_rows(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the given columns of a file, in this order, or all columns.

    Raises:
        UnreadableResultsError: the file is damaged or missing, or lacks a column.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
            present = parquet.schema_arrow.names
            columns = list(present if columns is None else columns)
            absent = [name for name in columns if name not in present]
            if absent:
                raise UnreadableResultsError(
                    f"{path}: has no column {', '.join(absent)}; another version made it", (path,)
                )
            # Threads cost more time than they save for the few rows of a cell.
            return parquet.read(columns=columns, use_threads=False).select(columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise UnreadableResultsError(
            f"{path}: cannot be read as parquet ({error})", (path,)
        ) from None
