"""How large the images of a dataset are when stored, from one image of it where it lies on this machine."""

import io
from contextlib import suppress
from functools import cache
from pathlib import Path

from dpsweep.study.config import Dataset, DigitsSource, FolderSource, HubSource

_DIGITS = 8


def stored_bytes(dataset: Dataset) -> int:
    """Bytes of one stored image: that of the network's input, or less where images are smaller.

    Images of one size that is smaller than the input are resized with their batch. Where no image can
    be looked at, it is taken to be as large as the input.
    """
    side, source = dataset.image_size or 0, dataset.source
    height, width = side, side
    match source:
        case DigitsSource():
            height = width = _DIGITS
        case FolderSource(path=path, train_folders=folders):
            height, width = _size_in_folder(Path(path) / folders[0]) or (side, side)
        case HubSource(path=str(path), input_column=column):
            height, width = _size_in_tables(Path(path), column) or (side, side)
    return min(height * width, side * side) * (1 if source.grey else 3)


@cache
def _size_in_folder(folder: Path) -> tuple[int, int] | None:
    for file in folder.expanduser().rglob("*"):
        if file.is_file() and (size := _size(file)) is not None:
            return size
    return None


@cache
def _size_in_tables(folder: Path, column: str) -> tuple[int, int] | None:
    # It takes half a second to import.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    for file in filter(Path.is_file, folder.expanduser().rglob("*.parquet")):
        # The preparation says what is wrong; IndexError: there is no such column.
        with suppress(OSError, pa.ArrowException, KeyError, TypeError, IndexError):
            batches = pq.ParquetFile(file).iter_batches(batch_size=1, columns=[column])
            rows = next((batch.column(0) for batch in batches if batch.num_rows), None)
            if rows is not None:
                return _size(io.BytesIO(rows[0].as_py()["bytes"]))
    return None


def _size(image: Path | io.BytesIO) -> tuple[int, int] | None:
    from PIL import Image  # noqa: PLC0415

    try:
        with Image.open(image) as opened:
            return opened.height, opened.width
    except (OSError, ValueError, Image.DecompressionBombError):
        return None  # the preparation says what is wrong
