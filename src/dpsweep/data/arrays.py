"""Arrays in files, read in blocks of rows: .npz, .npy, safetensors, and columns of parquet.

No file is unpickled, so none can run code. What is in memory at once is a block, however large the file
is; only an array in Fortran order inside of an .npz is read whole.
"""

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dpsweep.base.files import require_content
from dpsweep.config.messages import brief
from dpsweep.data.prepared import DatasetError

Block = npt.NDArray[Any]
_BLOCK_BYTES = 2**24
_FEW, _FEW_ROWS = 16, 2**12


@dataclass(frozen=True)
class Array:
    """An array in a file: what it is, and how it is read."""

    path: Path
    name: str
    """in the file; empty for the only array of an .npy"""
    dtype: str
    """as NumPy calls it, or else as the file does"""
    shape: tuple[int, ...]
    _read: Callable[[int], Iterator[Block]]
    """blocks of so many rows"""
    _values: Callable[[], list[Any]] | None = None
    """of a column that is no array"""

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of an array of numbers in order, in blocks of about 16 MB.

        Raises:
            DatasetError: the file is damaged.
        """
        row = max(1, np.dtype(self.dtype).itemsize * int(np.prod(self.shape[1:])))
        with _reading(self.path):
            yield from self._read(max(1, _BLOCK_BYTES // row))

    def values(self) -> list[Any]:
        """Return everything as Python's own numbers and texts.

        Raises:
            DatasetError: the file is damaged.
        """
        with _reading(self.path):
            if self._values is not None:
                return self._values()
            return [value for block in self._read(_FEW_ROWS) for value in block.tolist()]

    def __str__(self) -> str:
        """Describe the array: ``x float32 (100, 384)``."""
        return f"{self.name} {self.dtype} {self.shape}".lstrip()


def open_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name, whose format is told by its suffix; nothing of them is read yet.

    Raises:
        DatasetError: there is no such file, or it is of another format or damaged.
    """
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise DatasetError(
            f"{path}: found a {suffix or 'nameless'} file; allowed: {', '.join(_FORMATS)}. Other formats may "
            "run code when they are opened, or are not read in blocks of rows"
        )
    with _reading(path):
        require_content(path)
        found = _FORMATS[suffix](path)
    if not found:
        raise DatasetError(f"{path}: found no array in it; allowed: embeddings (N, d)")
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file in what goes wrong inside."""
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except (DatasetError, MemoryError):
        raise
    except OSError as error:
        what = error.strerror or brief(error)
        raise DatasetError(f"{path}: cannot be read: {what}") from error
    except Exception as error:  # readers meet broken files with all kinds of exceptions
        raise DatasetError(f"{path}: cannot be read as {path.suffix} ({brief(error)})") from error


# -- NumPy -----------------------------------------------------------------------------------


def _header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the beginning of a .npy file, behind which the numbers stand: shape, order of Fortran, type."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise ValueError(f"version {version[0]}.{version[1]} of .npy, which has names of fields")


def _numpy_array(path: Path, name: str, opened: Callable[[], Any], mapped: bool = False) -> Array:
    """Describe an array of NumPy's format.

    Args:
        path: of the file.
        name: of the array.
        opened: opens a stream in which it stands.
        mapped: whether the stream is the file itself, which can be mapped.
    """
    with opened() as stream:
        shape, fortran, dtype = _header(stream)
        offset = stream.tell()

    def read(rows: int) -> Iterator[Block]:
        if 0 in shape:
            return
        whole: Block | None = None
        if mapped:
            whole = np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
        elif fortran:
            with opened() as stream:
                whole = np.lib.format.read_array(stream, allow_pickle=False)
        if whole is not None:
            yield from (whole[start : start + rows] for start in range(0, len(whole), rows))
        else:
            with opened() as stream:
                yield from _streamed(stream, rows)

    return Array(path, name, _plain(dtype), shape, read)


def _streamed(stream: BinaryIO, rows: int) -> Iterator[Block]:
    (length, *rest), _, dtype = _header(stream)
    row = dtype.itemsize * int(np.prod(rest))
    for start in range(0, length, rows):
        taken = min(rows, length - start)
        content = stream.read(taken * row)
        yield np.frombuffer(content, dtype).reshape(taken, *rest)


def _plain(dtype: np.dtype[Any]) -> str:
    """The name of a type, whichever end of its numbers comes first and however long its texts are."""
    if dtype.kind in "SU":
        return "bytes" if dtype.kind == "S" else "text"
    return dtype.newbyteorder("=").name if dtype.kind in "biufc" else str(dtype)


def _npy(path: Path) -> dict[str, Array]:
    return {"": _numpy_array(path, "", partial(path.open, "rb"), mapped=True)}


def _npz(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        members = [name for name in archive.namelist() if name.endswith(".npy")]

    @contextmanager
    def opened(member: str) -> Iterator[Any]:
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
            yield stream

    return {
        (name := member.removesuffix(".npy")): _numpy_array(path, name, partial(opened, member))
        for member in members
    }


# -- safetensors -----------------------------------------------------------------------------

_TENSOR_TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{
        f"{sign}{bits}": f"{word}{bits}"
        for sign, word in (("I", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
}


def _safetensors(path: Path) -> dict[str, Array]:
    from safetensors import safe_open  # noqa: PLC0415

    def read(name: str, rows: int) -> Iterator[Block]:
        with safe_open(path, framework="numpy") as file:
            tensor = file.get_slice(name)
            length = tensor.get_shape()[0]
            for start in range(0, length, rows):
                yield tensor[start : min(start + rows, length)]

    with safe_open(path, framework="numpy") as file:
        tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {
            name: Array(
                path,
                name,
                _TENSOR_TYPES.get(tensor.get_dtype(), tensor.get_dtype()),
                tuple(tensor.get_shape()),
                partial(read, name),
            )
            for name, tensor in tensors.items()
        }


# -- parquet ---------------------------------------------------------------------------------


def _parquet(path: Path) -> dict[str, Array]:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.ParquetFile(path)
    rows, found = table.metadata.num_rows, {}
    for column in table.schema_arrow:
        # What pandas calls its index is no column of the user.
        if column.name.startswith("__index_level_"):
            continue
        kind, shape = column.type, [rows]
        while (
            pa.types.is_list(kind)
            or pa.types.is_large_list(kind)
            or pa.types.is_fixed_size_list(kind)
        ):
            kind = kind.value_type
            shape.append(0)
        if len(shape) > 1:
            shape[1] = _first_length(table, column.name)
        found[column.name] = Array(
            path,
            column.name,
            _column_type(kind),
            tuple(shape),
            partial(_lists, path, column.name, shape[-1]),
            partial(_column, path, column.name),
        )
    return found


def _first_length(table: Any, name: str) -> int:
    """The length of the first list of a column that is there."""
    for batch in table.iter_batches(batch_size=_FEW, columns=[name]):
        for value in batch.column(0):
            if value.is_valid:
                return len(value)
    return 0


def _column_type(kind: Any) -> str:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return str(np.dtype(kind.to_pandas_dtype()))
    return str(kind)


def _column(path: Path, name: str) -> list[Any]:
    from pyarrow import parquet  # noqa: PLC0415

    values: list[Any] = parquet.ParquetFile(path).read(columns=[name]).column(0).to_pylist()
    return values


def _lists(path: Path, name: str, width: int, rows: int) -> Iterator[Block]:
    """Yield a column of lists of one length.

    Raises:
        DatasetError: a list has another length, or is missing.
    """
    import pyarrow.compute as pc  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    done = 0
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=rows, columns=[name]):
        column = batch.column(0)
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
