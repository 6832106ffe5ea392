"""Result files in parquet. Pages have checksums, so reading detects every flipped bit."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import atomic_path


class UnreadableResultsError(DpsweepError):
    """A result file that is missing, damaged, or lacks a column."""


def write_rows(path: Path, rows: pa.Table, metadata: Mapping[bytes, bytes] | None = None) -> None:
    """Write a table atomically.

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
