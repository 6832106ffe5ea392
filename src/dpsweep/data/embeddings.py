"""Embeddings from another network: one vector for each example, in files of arrays."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpsweep.base.units import count
from dpsweep.config import ArraysSource
from dpsweep.config.datasets import KINDS
from dpsweep.config.messages import shorten, unknown
from dpsweep.data.arrays import Array, Block, open_arrays
from dpsweep.data.examples import (
    LabelColumn,
    LabelledData,
    Labels,
    Split,
    cut_test_set,
    encode_labels,
    same_kind,
)
from dpsweep.data.prepared import DatasetError
from dpsweep.data.write import Hashes, hash_rows

log = logging.getLogger(__name__)

_EMBEDDINGS = (
    *("embeddings", "embedding", "features", "x", "vectors", "inputs", "data", "hidden_states"),
    *("vector", "emb", "feats", "xs", "input"),
)
_LABELS = (
    *("labels", "label", "y", "targets", "target", "classes", "class", "category", "ys"),
    *("class_label", "label_ids"),
)
_TYPES = KINDS["embedding"].types
_MATRIX = 2
_REMEDIES = {
    "float64": ". Round them yourself: x.astype(numpy.float32)",
    "bfloat16": ". Widen them: x.float()",
    "object": ". Python objects are pickled, which can run code; stack them: numpy.stack(list(x))",
}


@dataclass(frozen=True)
class Embeddings:
    """Some rows of an array in a file. Every iteration reads the file again."""

    array: Array
    kept: npt.NDArray[np.bool_]
    """for each row of the file, whether it is kept"""
    hashes: Hashes
    """of the kept rows"""

    def __iter__(self) -> Iterator[Block]:
        """Yield blocks of kept rows, in the byte order of this machine."""
        done = 0
        for block in self.array.blocks():
            rows = block[self.kept[done : done + len(block)]]
            done += len(block)
            if len(rows):
                yield np.ascontiguousarray(rows, dtype=self.array.dtype)

    def only(self, places: Sequence[int] | Labels) -> "Embeddings":
        """Return a subset of the kept rows.

        Args:
            places: positions among the kept rows, ascending.
        """
        kept = np.zeros_like(self.kept)
        kept[np.flatnonzero(self.kept)[list(places)]] = True
        return Embeddings(self.array, kept, self.hashes[list(places)])


def load_embeddings(source: ArraysSource, dimension: int | None = None) -> LabelledData:
    """Read the labels, check all embeddings, and leave out those that are not finite.

    A warning lists the columns that are constant over all training examples.

    Args:
        source: the files.
        dimension: d according to the study; None for any.

    Raises:
        DatasetError: a file cannot be read, its arrays are ambiguous, or it does not contain a float32 or
            float16 vector and a label for each example.
    """
    splits = [_open(source, source.train, source.train_labels)]
    if source.test is not None:
        splits.append(_open(source, source.test, source.test_labels))
    arrays = [array for array, _ in splits]
    _require_same_columns(arrays[0], arrays[-1])
    train = arrays[0]
    if dimension not in (None, train.shape[1]):
        raise DatasetError(
            f"dimension: found {dimension}, but embeddings of {train.shape[1]} numbers in {train.path}; "
            f"allowed: {train.shape[1]}"
        )
    columns = list(same_kind(*(column for _, column in splits)))
    *labels, classes = encode_labels(columns[0], columns[-1])
    skipped: list[str] = []
    found = []
    for array, encoded in zip(arrays, labels, strict=False):
        wrong, hashes, constant = _look(array)
        if len(wrong) == array.shape[0]:
            raise DatasetError(
                f"{_place(array)}: found no example whose numbers are all finite (row 0: {wrong[0]}); "
                "allowed: finite numbers"
            )
        if constant and array is train:
            log.warning(
                "%s: %d of %d numbers are the same in all examples, so they carry no information: %s",
                train.path, len(constant), train.shape[1], shorten(constant),
            )  # fmt: skip
        rows = np.arange(array.shape[0])
        inputs = Embeddings(array, rows >= 0, hashes)
        split = Split(inputs, encoded, f"row {{}} of {array.path}".format)
        skipped += [f"{split.where(place)}: {what}" for place, what in wrong.items()]
        found.append(_only(split, np.delete(rows, list(wrong))))
    if source.test_from_train is not None:
        (whole,) = found
        # Equal embeddings go to the same part.
        names = [f"{each:016x}" for each in whole.inputs.hashes.tolist()]
        parts = cut_test_set(names, whole.labels, source.test_from_train, source.seed)
        found = [_only(whole, places) for places in parts]
    origin = ", ".join(source.local_files().values())
    whole, test = found
    return LabelledData(whole, test, classes, origin, skipped=skipped)


def _only(split: Split, places: Sequence[int] | Labels) -> Split:
    return split.only(places, split.inputs.only(places))


def _look(array: Array) -> tuple[dict[int, str], Hashes, list[int]]:
    """Check all rows of an array.

    Returns:
        The reason for each row that is not finite; a hash of each row; the columns that are constant over
        the finite rows.
    """
    wrong: dict[int, str] = {}
    hashes: list[Hashes] = []
    first: Block | None = None
    same = np.arange(array.shape[1])
    done = 0
    for block in array.blocks():
        rows = np.ascontiguousarray(block, dtype=array.dtype)
        finite = np.isfinite(rows)
        usable = finite.all(axis=1)
        for place in np.flatnonzero(~usable).tolist():
            missing = np.flatnonzero(~finite[place])
            wrong[done + place] = (
                f"{len(missing)} of {array.shape[1]} numbers not finite, the first {rows[place, missing[0]]}"
            )
        if usable.any():
            first = rows[usable][0] if first is None else first
            same = same[(rows[:, same][usable] == first[same]).all(axis=0)]
        hashes.append(hash_rows(rows))
        done += len(block)
    # All columns of a single row are constant.
    constant = same.tolist() if done - len(wrong) > 1 else []
    return wrong, np.concatenate(hashes), constant


# -- the arrays of a file --------------------------------------------------------------------


def _open(source: ArraysSource, file: str, labels_file: str | None) -> tuple[Array, LabelColumn]:
    """Find the embeddings and the labels of one split."""
    found = open_arrays(Path(file))
    array = _choose(found, "input_column", source.input_column)
    _check_embeddings(array)
    if labels_file is None:
        rest = {name: each for name, each in found.items() if name != array.name}
        if not rest:
            raise DatasetError(
                f"{array.path}: found {array} and no labels; allowed: labels in the same file, or in a file "
                "of their own (source.train_labels, source.test_labels)"
            )
    else:
        rest = open_arrays(Path(labels_file))
    labels = _choose(rest, "label_column", source.label_column, array)
    values = _label_values(labels, array)
    where = f"row {{}} of {labels.path}".format
    return array, LabelColumn(str(labels.path), _named(labels), values, where)


def _named(array: Array) -> str:
    kind = "column" if array.path.suffix == ".parquet" else "array"
    return f"{kind} {array.name!r}" if array.name else ""


def _place(array: Array) -> str:
    return ", ".join(filter(None, (str(array.path), _named(array))))


def _choose(
    found: dict[str, Array], key: str, asked: str | None, len_of: Array | None = None
) -> Array:
    """Return the array with the asked name, else one with a usual name, else the only possible one.

    Args:
        found: the arrays of a file, by name.
        key: of the source that may name the array.
        asked: the value of this key.
        len_of: the embeddings, when the array to choose is their labels.
    """
    path = next(iter(found.values())).path
    if asked is not None:
        if asked not in found:
            raise DatasetError(f"{path}: source.{key}: {unknown(asked, found)}")
        return found[asked]
    words: tuple[str, ...]
    if len_of is None:
        words, others = _EMBEDDINGS, {n: e for n, e in found.items() if _plain(n) not in _LABELS}
        alike = {n: e for n, e in others.items() if len(e.shape) == _MATRIX} or others or found
    else:
        words = _LABELS
        alike = {n: e for n, e in found.items() if e.shape[:1] == len_of.shape[:1]} or found
    called = {_plain(name): each for name, each in reversed(alike.items())}
    chosen = next((called[word] for word in words if word in called), None)
    if chosen is None and len(alike) == 1:
        (chosen,) = alike.values()
    if chosen is not None:
        return chosen
    arrays = shorten(found.values())
    what = "embeddings" if key == "input_column" else "labels"
    raise DatasetError(
        f"{path}: it is not clear which array holds the {what}, of {arrays}; say source.{key}"
    )


def _plain(name: str) -> str:
    return name.strip().casefold()


def _check_embeddings(array: Array) -> None:
    where, shape = _place(array), array.shape
    if array.dtype not in _TYPES:
        raise DatasetError(
            f"{where}: found {array.dtype} {shape}; allowed: {' or '.join(_TYPES)} (N, d)"
            f"{_REMEDIES.get(array.dtype, '')}"
        )
    if len(shape) != _MATRIX:
        remedy = ". Pool the vectors of an example into one: x.mean(axis=1)"
        raise DatasetError(
            f"{where}: found {array.dtype} of shape {shape}; allowed: (N, d), a vector for each "
            f"example{remedy if len(shape) > _MATRIX else ''}"
        )
    if 0 in shape:
        raise DatasetError(
            f"{where}: found {array.dtype} of shape {shape}, without a number; allowed: at least one example "
            "of at least one number"
        )


def _label_values(labels: Array, embeddings: Array) -> list[str | int]:
    """Return the labels as Python's int, bool and str.

    Raises:
        DatasetError: there is not one label for each embedding, or a label has another type.
    """
    where, shape, examples = _place(labels), labels.shape, embeddings.shape[0]
    if labels.dtype == "object":
        raise DatasetError(
            f"{where}: found Python objects, which are pickled and can run code; allowed: whole numbers or "
            "texts: y.astype(int), y.astype(str)"
        )
    flat = len(shape) == 1 or (len(shape) == _MATRIX and shape[1] == 1)
    if not flat:
        raise DatasetError(
            f"{where}: found labels of shape {shape}; allowed: (N,), one for each example. If each row has a "
            "single 1 (one-hot), save y.argmax(axis=1)"
        )
    if shape[0] != examples:
        transposed = embeddings.shape[1] == shape[0]
        raise DatasetError(
            f"{where}: found {shape[0]} labels for the {examples} embeddings of {_place(embeddings)}; "
            f"allowed: one for each{'. Embeddings lie in rows: save x.T' if transposed else ''}"
        )
    values = labels.values()
    if len(shape) > 1:
        values = [value for (value,) in values]
    try:
        return [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{where}: found a label that is not UTF-8 ({error.object!r}); allowed: whole numbers or texts"
        ) from None


def _require_same_columns(train: Array, test: Array) -> None:
    found, expected = ((each.dtype, each.shape[1]) for each in (test, train))
    if found != expected:
        raise DatasetError(
            f"{_place(test)}: found {found[0]}, {count(found[1], 'number')} each; allowed: {expected[0]}, "
            f"{count(expected[1], 'number')} each, as in {_place(train)}"
        )
