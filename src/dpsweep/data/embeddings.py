"""Embeddings from another network: a vector and a label for each example, in files of arrays.

The files are .npz, .npy, safetensors, or parquet with a column of lists. None is unpickled, so none can run
code. An .npy file is mapped; the others are read whole.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from safetensors.numpy import load_file

from dpsweep.data import examples
from dpsweep.data.prepared import Array, DatasetError, Split, hash_rows
from dpsweep.study.datasets import KINDS, ArraysSource
from dpsweep.study.messages import shorten

_EMBEDDINGS, _LABELS = ("embeddings", "embedding", "x"), ("labels", "label", "y")
"""Names that are preferred among several arrays that fit, in lower case."""
_TYPES = KINDS["embedding"].types
_MATRIX = 2


def load_embeddings(
    source: ArraysSource, dimension: int | None = None, unit: str | None = None
) -> examples.LabelledData:
    """Read embeddings and labels; leave out embeddings that are not finite, and list them in ``skipped``.

    Args:
        source: the files.
        dimension: d according to the study; None for any.
        unit: the array or column that names the unit of each row; None: each row is a unit.

    Raises:
        DatasetError: a file cannot be read, or it is not clear which of its arrays are float32 or float16
            embeddings (N, d) and their labels (N,), or all rows of a split are not finite.
    """
    read = [_read(source, Path(source.train), source.train_labels, unit)]
    if source.test is not None:
        read.append(_read(source, Path(source.test), source.test_labels, unit))
    *labels, classes = examples.encode_labels(read[0][1], read[-1][1])
    kind = read[0][0].dtype, dimension or read[0][0].shape[1]
    for (inputs, *_), file in zip(read, (source.train, source.test), strict=False):
        if (inputs.dtype, inputs.shape[1]) != kind:
            raise DatasetError(
                f"{file}: found {_shape(inputs)}; allowed: {kind[0]} (N, {kind[1]}), as dimension and "
                "source.train say"
            )
    skipped: list[str] = []
    splits = []
    for file, (inputs, _, units), encoded in zip(
        (source.train, source.test), read, labels, strict=False
    ):
        # float64 holds the sum of any finite numbers.
        finite = np.isfinite(inputs.sum(axis=1, dtype=np.float64))
        split = Split(inputs, encoded, f"row {{}} of {file}".format, units)
        wrong = {
            place: f"{np.count_nonzero(~np.isfinite(inputs[place]))} of {inputs.shape[1]} numbers not finite"
            for place in np.flatnonzero(~finite).tolist()
        }
        kept, left_out = examples.leave_out(split, wrong)
        splits.append(kept)
        skipped += left_out
    if source.test_from_train is not None:
        # Equal embeddings, or all rows of a unit, go to the same part.
        hashes, units = hash_rows(splits[0].inputs), splits[0].units
        names = [f"{each:016x}" for each in hashes.tolist()] if units is None else units.tolist()
        cut = source.test_from_train, source.seed, units is not None
        parts = examples.cut_test_set(names, splits[0].labels, *cut)
        splits = [splits[0].only(places) for places in parts]
    origin = ", ".join(source.local_files().values())
    return examples.LabelledData(splits[0], splits[1], classes, origin, skipped=skipped)


def _read(
    source: ArraysSource, path: Path, labels_file: str | None, unit: str | None
) -> tuple[Array, examples.LabelColumn, npt.NDArray[np.str_] | None]:
    """Return the embeddings and the labels of one split, and the names of its units."""
    arrays = read_arrays(path)
    matrices = {
        name
        for name, each in arrays.items()
        if each.ndim == _MATRIX and each.shape[1] and str(each.dtype.newbyteorder("=")) in _TYPES
    }
    what = f"{' or '.join(_TYPES)} (N, d) (source.input_column)"
    found = arrays.pop(_choose(path, arrays, what, source.input_column, matrices, _EMBEDDINGS))
    units = None
    if unit is not None:
        fitting = {name for name, each in arrays.items() if each.shape == (len(found),)}
        what = f"one name for each of {len(found)} rows"
        values = _texts(arrays[_choose(path, arrays, what, unit, fitting)])
        units = examples.unit_names(values.tolist(), f"row {{}} of {path}, array {unit!r}".format)
    if labels_file is not None:
        path = Path(labels_file)
        arrays = read_arrays(path)
    fitting = {
        name
        for name, each in arrays.items()
        if each.shape[:1] == found.shape[:1] and each.size == len(found)
    }
    what = (
        f"one label for each of {len(found)} embeddings (source.label_column, source.train_labels)"
    )
    name = _choose(path, arrays, what, source.label_column, fitting, _LABELS)
    with examples.reading(path):
        values = _texts(arrays[name].reshape(-1))
    column, where = f"array {name!r}" if name else "", f"row {{}} of {path}".format
    inputs = np.ascontiguousarray(found, dtype=found.dtype.newbyteorder("="))
    return inputs, examples.LabelColumn(str(path), column, values.tolist(), where), units


def _texts(values: Array) -> Array:
    """Decode bytes as UTF-8."""
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def _shape(array: Array) -> str:
    ragged = array.dtype == object and any(isinstance(each, list) for each in array)
    return f"{'lists of several lengths' if ragged else array.dtype} {array.shape}"


def _choose(
    path: Path,
    arrays: Mapping[str, Array],
    what: str,
    asked: str | None,
    fitting: Collection[str],
    usual: Collection[str] = (),
) -> str:
    """Return the array that the study asks for, or the only one that fits, by its name.

    Raises:
        DatasetError: there is no such array, or none or several that fit.
    """
    chosen = [name for name in fitting if asked in (None, name)]
    if len(chosen) > 1:
        chosen = [name for name in chosen if name.casefold() in usual]
    if len(chosen) != 1:
        found = shorten(f"{name} {_shape(each)}".lstrip() for name, each in arrays.items())
        named = "" if asked is None else f" that is named {asked}"
        raise DatasetError(f"{path}: found {found}; allowed: one array{named} with {what}")
    return chosen[0]


# -- files of arrays -------------------------------------------------------------------------


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name, in the format of its suffix; the name of an .npy is empty.

    Raises:
        DatasetError: the file is missing, damaged, of another format, or holds Python objects.
    """
    return examples.read_file(path, _FORMATS)


def _npz(path: Path) -> dict[str, Array]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive.items())


def _npy(path: Path) -> dict[str, Array]:
    return {"": np.load(path, mmap_mode="r", allow_pickle=False)}


def _parquet(path: Path) -> dict[str, Array]:
    """Return columns of lists of one length as (N, d), other columns as (N,) Python objects."""
    table = parquet.read_table(path)
    # The index of pandas is not a column of the user.
    names = [each for each in table.column_names if not each.startswith("__index_level_")]
    return {name: _column(table.column(name).combine_chunks()) for name in names}


def _column(column: Any) -> Array:
    is_list = isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
    lengths = pc.unique(pc.list_value_length(column)).to_pylist() if is_list else [None]
    if len(lengths) > 1 or None in lengths:  # None: a null
        return np.array(column.to_pylist(), dtype=object)
    flat: Array = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), max(lengths, default=1))


_FORMATS: Mapping[str, Callable[[Path], dict[str, Array]]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": lambda path: dict(load_file(path)),
    ".parquet": _parquet,
}
