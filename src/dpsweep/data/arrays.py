"""Arrays in files, read in blocks of rows: .npz, .npy, safetensors, and columns of parquet.

No file is unpickled, so no file can run code. Only one block is in memory at a time, except for arrays in
Fortran order in an .npz, which are read whole.
"""

import string
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from safetensors import safe_open

from dpsweep.base.files import require_content
from dpsweep.data.examples import reading
from dpsweep.data.prepared import DatasetError

Block = npt.NDArray[Any]
_BLOCK_BYTES = 2**24
_FEW, _FEW_ROWS = 16, 2**12


@dataclass(frozen=True)
class Array:
    """An array in a file, and the function that reads it."""

    path: Path
    name: str
    """in the file; empty for an .npy"""
    dtype: str
    """NumPy's name of the type, or else the file's name"""
    shape: tuple[int, ...]
    _read: Callable[[int], Iterator[Block]]
    """yields blocks of the given number of rows"""

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of an array of numbers in order, in blocks of about 16 MB.

        Raises:
            DatasetError: the file is damaged.
        """
        row = max(1, np.dtype(self.dtype).itemsize * int(np.prod(self.shape[1:])))
        with reading(self.path):
            yield from self._read(max(1, _BLOCK_BYTES // row))

    def values(self) -> list[Any]:
        """Return all rows as Python's own numbers and texts.

        Raises:
            DatasetError: the file is damaged.
        """
        with reading(self.path):
            return [value for block in self._read(_FEW_ROWS) for value in block.tolist()]

    def __str__(self) -> str:
        """Describe the array: ``x float32 (100, 384)``."""
        return f"{self.name} {self.dtype} {self.shape}".lstrip()


def open_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name, in the format of its suffix; their content is read later.

    Raises:
        DatasetError: the file is missing, damaged or of another format.
    """
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise DatasetError(
            f"{path}: found a {suffix or 'nameless'} file; allowed: {', '.join(_FORMATS)}. Other formats may "
            "run code when they are opened, or are not read in blocks of rows"
        )
    with reading(path):
        require_content(path)
        found = _FORMATS[suffix](path)
    if not found:
        raise DatasetError(f"{path}: found no array in it; allowed: embeddings (N, d)")
    return found


# -- NumPy -----------------------------------------------------------------------------------


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy file: shape, whether in Fortran order, and type."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"version {version[0]}.{version[1]} of .npy, which has names of fields")


def _plain(dtype: np.dtype[Any]) -> str:
    """Return the name of a type without byte order and without the length of texts."""
    if dtype.kind in "SU":
        return "bytes" if dtype.kind == "S" else "text"
    return dtype.newbyteorder("=").name if dtype.kind in "biufc" else str(dtype)


def _npy(path: Path) -> dict[str, Array]:
    with path.open("rb") as stream:
        shape, _, dtype = _header(stream)

    def read(rows: int) -> Iterator[Block]:
        return _slices(np.load(path, mmap_mode="r"), rows)

    return {"": Array(path, "", _plain(dtype), shape, read)}


def _npz(path: Path) -> dict[str, Array]:
    found = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as stream:
                    shape, _, dtype = _header(stream)
                name, read = member.removesuffix(".npy"), partial(_member, path, member)
                found[name] = Array(path, name, _plain(dtype), shape, read)
    return found


def _member(path: Path, member: str, rows: int) -> Iterator[Block]:
    with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
        (length, *rest), fortran, dtype = _header(stream)
        if fortran:
            with archive.open(member) as again:
                yield from _slices(np.lib.format.read_array(again, allow_pickle=False), rows)
            return
        for start in range(0, length, rows):
            taken = min(rows, length - start)
            content = stream.read(taken * dtype.itemsize * int(np.prod(rest)))
            yield np.frombuffer(content, dtype).reshape(taken, *rest)


def _slices(whole: Block, rows: int) -> Iterator[Block]:
    return (whole[start : start + rows] for start in range(0, len(whole), rows))


# -- safetensors -----------------------------------------------------------------------------

# NumPy's names for the types of the format, without the number of bits.
_TENSOR_TYPES = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "BOOL": "bool"}


def _safetensors(path: Path) -> dict[str, Array]:
    def read(name: str, rows: int) -> Iterator[Block]:
        with safe_open(path, framework="numpy") as file:
            tensor = file.get_slice(name)
            length = tensor.get_shape()[0]
            for start in range(0, length, rows):
                yield tensor[start : min(start + rows, length)]

    found = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_slice(name)
            letters = tensor.get_dtype().rstrip(string.digits)
            dtype = tensor.get_dtype().replace(letters, _TENSOR_TYPES.get(letters, letters))
            found[name] = Array(path, name, dtype, tuple(tensor.get_shape()), partial(read, name))
    return found


# -- parquet ---------------------------------------------------------------------------------


def _parquet(path: Path) -> dict[str, Array]:
    table = parquet.ParquetFile(path)
    rows, found = table.metadata.num_rows, {}
    for column in table.schema_arrow:
        # The index of pandas is not a column of the user.
        if column.name.startswith("__index_level_"):
            continue
        kind, shape = column.type, [rows]
        while isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            kind = kind.value_type
            shape.append(0)
        if len(shape) > 1:
            shape[1] = _first_length(table, column.name)
        found[column.name] = Array(
            path,
            column.name,
            _column_type(kind),
            tuple(shape),
            partial(_column, path, column.name, shape[1] if len(shape) > 1 else None),
        )
    return found


def _first_length(table: Any, name: str) -> int:
    """Return the length of the first list of a column that is not null."""
    for batch in table.iter_batches(batch_size=_FEW, columns=[name]):
        for value in batch.column(0):
            if value.is_valid:
                return len(value)
    return 0


def _column_type(kind: Any) -> str:
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return str(np.dtype(kind.to_pandas_dtype()))
    return str(kind)


def _column(path: Path, name: str, width: int | None, rows: int) -> Iterator[Block]:
    """Yield blocks of a column: lists of length ``width``, or Python's own values without a width.

    Raises:
        DatasetError: a list is missing or has another length.
    """
    done = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=rows, columns=[name]):
        column = batch.column(0)
        if width is None:
            yield np.array(column.to_pylist(), dtype=object)
            continue
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        if len(wrong := np.flatnonzero(lengths != width)):
            length = int(lengths[wrong[0]])
            raise DatasetError(
                f"{path}, row {done + int(wrong[0])}, column {name!r}: found "
                f"{'no list' if length < 0 else f'a list of {length} numbers'}; allowed: {width} numbers, as "
                "in the first row"
            )
        yield column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
        done += len(column)


_FORMATS: Mapping[str, Callable[[Path], dict[str, Array]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
}
