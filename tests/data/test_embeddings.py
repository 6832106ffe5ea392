"""Tests that embeddings of every file format are read exactly, or refused with one line."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from pyarrow import parquet
from safetensors.numpy import save_file

from dpsweep.data import DatasetError
from dpsweep.data.embeddings import load_embeddings
from dpsweep.data.examples import LabelledData
from dpsweep.data.prepare import inspect, load, prepare
from dpsweep.study.datasets import ArraysSource, Dataset, is_within

CLASSES = np.array(["ant", "bee", "cat"])
NUMBERS = {"train": np.arange(30) % 3, "test": np.arange(12) % 3}
X = {
    split: np.random.default_rng(seed).normal(size=(len(NUMBERS[split]), 5)).astype(np.float32)
    for seed, split in enumerate(NUMBERS)
}
Y = {split: CLASSES[numbers] for split, numbers in NUMBERS.items()}


def npz(path: Path, x: Any, y: Any) -> None:
    np.savez(path, embeddings=x, labels=y)


def lists(path: Path, x: Any, y: Any) -> None:
    column = pa.array(list(x), pa.list_(pa.from_numpy_dtype(x.dtype)))
    tokens = [[1] * (row % 3) for row in range(len(y))]  # not one array
    table = pa.table({"tokens": tokens, "embedding": column, "label": y.tolist()})
    parquet.write_table(table, path, row_group_size=7)


def fixed_lists(path: Path, x: Any, y: Any) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])
    names = pa.array(y.tolist()).dictionary_encode()
    index = pa.array(range(len(x)))
    parquet.write_table(pa.table({"v": column, "kind": names, "__index_level_0__": index}), path)


def tensors(path: Path, x: Any, y: Any) -> None:
    save_file({"x": x, "y": np.searchsorted(CLASSES, y), "scale": np.ones(())}, path)


def backwards(x: Any) -> Any:
    """Return the same numbers in Fortran order and big-endian."""
    return np.asarray(x, dtype=x.dtype.newbyteorder(">"), order="F")


def alone(path: Path, x: Any, y: Any) -> None:
    np.save(path, x)
    np.save(path.with_name(f"{path.stem}_y.npy"), y)


WRITERS: dict[str, tuple[str, Callable[..., None]]] = {
    "archive": (".npz", npz),
    "nameless": (".npz", np.savez),
    "with ids": (".npz", lambda path, x, y: np.savez(path, ids=np.arange(len(x)), vecs=x, Label=y)),
    "archive, backwards": (".npz", lambda path, x, y: npz(path, backwards(x), y)),
    "alone": (".npy", alone),
    "lists": (".parquet", lists),
    "fixed lists": (".parquet", fixed_lists),
    "tensors": (".safetensors", tensors),
}  # fmt: skip


def source(folder: Path, suffix: str, **keys: Any) -> ArraysSource:
    files = {split: str(folder / f"{split}{suffix}") for split in X}
    return ArraysSource.model_validate({"kind": "arrays"} | files | keys)


def refusal(source: ArraysSource, dimension: int | None = None) -> str:
    with pytest.raises(DatasetError) as error:
        load_embeddings(source, dimension)
    assert "\n" not in str(error.value)
    return str(error.value)


def read(data: LabelledData) -> list[tuple[np.ndarray, list[str]]]:
    return [
        (np.asarray(split.inputs), [data.classes[label] for label in split.labels])
        for split in (data.train, data.test)
    ]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_format_returns_the_saved_arrays(tmp_path: Path, kind: str, dtype: str) -> None:
    suffix, write = WRITERS[kind]
    for split, x in X.items():
        write(tmp_path / f"{split}{suffix}", x.astype(dtype), Y[split])
    labels = {f"{split}_labels": str(tmp_path / f"{split}_y.npy") for split in X}
    data = load_embeddings(source(tmp_path, suffix, **(labels if suffix == ".npy" else {})))
    # safetensors cannot store texts.
    names = CLASSES if suffix != ".safetensors" else np.array(["0", "1", "2"])
    for split, (x, y) in zip(X, read(data), strict=True):
        np.testing.assert_array_equal(x, X[split].astype(dtype))
        assert x.dtype == dtype
        assert y == names[NUMBERS[split]].tolist()
    assert data.train.inputs.flags.c_contiguous and data.train.inputs.dtype.isnative


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (np.arange(3), ["0", "1", "2"]),
        (np.arange(3, dtype=">i8")[:, None], ["0", "1", "2"]),
        (np.array(["0", "1", "2"]), ["0", "1", "2"]),
        (np.array([False, True, True]), ["False", "True", "True"]),
        (CLASSES.astype("S"), CLASSES.tolist()),
        (np.array(["ä", " b", "c "]), ["ä", "b", "c"]),
    ],
)
def test_labels_of_every_kind_become_classes(tmp_path: Path, values: Any, classes: Any) -> None:
    for split, numbers in NUMBERS.items():
        npz(tmp_path / f"{split}.npz", X[split], values[numbers])
    data = load_embeddings(source(tmp_path, ".npz"))
    assert data.classes == sorted(set(classes))
    for numbers, (_, found) in zip(NUMBERS.values(), read(data), strict=True):
        assert found == [classes[number] for number in numbers]


# -- refused files -----------------------------------------------------------------------------

TRAIN, NUMBER = X["train"], NUMBERS["train"]
RAGGED = np.array([np.zeros(5), np.zeros(4)], dtype=object)
TYPES = "allowed: one array with float32 or float16 (N, d)"


def saved(x: Any = TRAIN, y: Any = Y["train"]) -> dict[str, Any]:
    return {"x": x, "y": y}


def column(rows: Any) -> pa.Table:
    return pa.table({"x": rows, "y": NUMBER[: len(rows)]})


def npy(array: Any) -> bytes:
    np.save(stream := BytesIO(), array)
    return stream.getvalue()


# Arrays of an .npz, a table of parquet, or the name and content of a file; and the message.
REFUSED: list[tuple[Any, str]] = [
    (saved(TRAIN.astype(float)), f"found x float64 (30, 5), y <U3 (30,); {TYPES} (source.input_column)"),
    (saved(RAGGED, Y["train"][:2]), "cannot be read (Object arrays cannot be loaded"),
    (saved(TRAIN[:, None]), "found x float32 (30, 1, 5), y <U3 (30,); allowed: one array with float32"),
    (saved(TRAIN.T), "found y <U3 (30,); allowed: one array with one label for each of 5"),
    (saved(y=NUMBER[:29]), "found y int64 (29,); allowed: one array with one label for each of 30"),
    (saved(y=np.eye(3, dtype="f4")[NUMBER]), "found y float32 (30, 3); allowed: one array with one label"),
    (saved(y=NUMBER / 2), "array 'y': found the label 0.0; allowed: whole numbers from 0, or names"),
    (saved(y=np.array([b"\xff", b"a"])[NUMBER % 2]), "can't decode byte 0xff"),
    ({"u": TRAIN, "v": TRAIN, "y": NUMBER}, "found u float32 (30, 5), v float32 (30, 5), y int64 (30,); a"),
    ({"x": TRAIN, "u": Y["train"], "v": NUMBER}, "found u <U3 (30,), v int64 (30,); allowed: one array"),
    ({"x": TRAIN}, "found nothing; allowed: one array with one label for each of 30 embeddings (source.l"),
    (saved(TRAIN[:0], NUMBER[:0]), "train.npz: found no row; allowed: one or more"),
    (column(pa.array([], pa.list_(pa.float32()))), "train.parquet: found no row; allowed: one or more"),
    (saved(TRAIN * np.nan), "row 29 of {}: 5 of 5 numbers not finite, and no row of its split can be used"),
    *((column(pa.array([[1, 2], other, [1, 1]], pa.list_(pa.float32(), size))),
        f"found x lists of several lengths (3,), y object (3,); {TYPES}")
        for other, size in (([3], -1), (None, -1))),
    (saved(y=3 + 0 * NUMBER), "train.npz: found one class, 3; allowed: two or more"),
    (column(["[1, 2]", "[3, 4]", "[5, 6]"]), "found x object (3,), y object (3,); allowed: one"),
    (("a.npz", None), "a.npz: no such file"),
    (("a.npy", b"\x80\x04pickled"), "a.npy: cannot be read"),
    (("a.npy", npy(TRAIN)[:-8]), "a.npy: cannot be read"),
    (("a.pt", b"x"), "found a .pt file; allowed: .npz, .npy, .safetensors, .parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_invalid_files_are_refused_with_what_is_allowed(
    tmp_path: Path, content: Any, message: str
) -> None:
    labels: dict[str, str] = {}
    if isinstance(content, dict):
        np.savez(file := tmp_path / "train.npz", **content)
    elif isinstance(content, pa.Table):
        parquet.write_table(content, file := tmp_path / "train.parquet")
    else:
        file = tmp_path / content[0]
        if content[1] is not None:
            file.write_bytes(content[1])
        (tmp_path / "y.npy").write_bytes(npy(Y["train"]))
        labels = {"train_labels": str(tmp_path / "y.npy")}
    keys = {"kind": "arrays", "train": str(file), "test_from_train": 0.2}
    found = refusal(ArraysSource.model_validate(keys | labels))
    assert message.format(file) in found and file.name in found


@pytest.mark.parametrize(
    ("x", "y", "dimension", "said"),
    [
        (X["test"][:, :4], Y["test"], None, "found float32 (12, 4); allowed: float32 (N, 5)"),
        (X["test"], Y["test"], 8, "train.npz: found float32 (30, 5); allowed: float32 (N, 8), as dimension"),
        (X["test"][:0], Y["test"][:0], None, "test.npz: found no row; allowed: one or more"),
        (X["test"] * np.nan, Y["test"], None, "row 11 of {}/test.npz: 5 of 5 numbers not finite, and no"),
        (X["test"], np.array(["ant", "elk"] * 6), None, "row 1 of {}/test.npz, array 'labels': found the"),
    ],
)  # fmt: skip
def test_different_test_set_or_dimension_is_refused(
    tmp_path: Path, x: Any, y: Any, dimension: int | None, said: str
) -> None:
    npz(tmp_path / "train.npz", X["train"], Y["train"])
    npz(tmp_path / "test.npz", x, y)
    assert said.format(tmp_path) in refusal(source(tmp_path, ".npz"), dimension)


# -- one file ----------------------------------------------------------------------------------


def test_test_set_is_drawn_by_row_and_equal_rows_stay_together(tmp_path: Path) -> None:
    x = np.concatenate([X["train"], X["train"][:10], X["test"]])
    npz(tmp_path / "train.npz", x, np.concatenate([Y["train"], Y["train"][:10], Y["test"]]))
    parts = {}
    for seed in (0, 1):
        keys = {"test": None, "test_from_train": 0.4, "seed": seed}
        (train, _), (test, _) = read(load_embeddings(source(tmp_path, ".npz", **keys)))
        rows, held_out = ({row.tobytes() for row in each} for each in (train, test))
        assert len(train) + len(test) == 52 and not rows & held_out
        parts[seed] = held_out
        hashes = [xxhash.xxh3_64_hexdigest(row.tobytes()) for row in x]
        drawn = [is_within(0.4, seed, "test", each) for each in hashes]
        np.testing.assert_array_equal(test, x[drawn])
    assert parts[0] != parts[1]


# -- findings of `dpsweep check` ---------------------------------------------------------------


def dataset(folder: Path, **keys: Any) -> Dataset:
    section = {"title": "Notes", "source": source(folder, ".npz").model_dump()}
    sizes = {"classes": 3, "train_size": 30, "test_size": 12, "dimension": 5}
    return Dataset.model_validate(section | sizes | keys)


def test_non_finite_embeddings_are_refused_or_left_out(tmp_path: Path) -> None:
    x = X["train"].astype(np.float16)
    x[3, 1:3], x[7, 0] = [np.nan, np.inf], -np.inf
    npz(tmp_path / "train.npz", x, Y["train"])
    npz(tmp_path / "test.npz", X["test"].astype(np.float16), Y["test"])
    for look in (inspect, lambda *them: prepare(*them, tmp_path / "out")):
        with pytest.raises(DatasetError) as error:
            look("notes", dataset(tmp_path))
        assert [line.strip() for line in str(error.value).splitlines()[:3]] == [
            "datasets.notes: corrupt examples (2):",
            f"row 3 of {tmp_path}/train.npz: 2 of 5 numbers not finite",
            f"row 7 of {tmp_path}/train.npz: 1 of 5 numbers not finite",
        ]
    skipping = dataset(tmp_path, corrupt="skip", train_size=28)
    assert inspect("notes", skipping) == CLASSES.tolist()
    prepared = prepare("notes", skipping, tmp_path / "out")
    usable = np.isfinite(x).all(axis=1)
    assert prepared.train_inputs.dtype == np.float16
    np.testing.assert_array_equal(prepared.train_inputs, x[usable])
    np.testing.assert_array_equal(prepared.train_labels, NUMBERS["train"][usable])
    assert prepared.metadata.kind == "embedding" and prepared.metadata.shape == (5,)
    assert len(prepared.metadata.skipped) == 2


@pytest.mark.parametrize(("name", "unit"), [("values", None), ("whose", "whose")])
def test_arrays_of_separate_files_may_have_one_name(
    tmp_path: Path, name: str, unit: str | None
) -> None:
    keys = {"kind": "arrays", "input_column": "values", "label_column": name}
    for split, x in X.items():
        owners = [f"{split} {row // 2}" for row in range(len(x))]
        np.savez(tmp_path / f"{split}.npz", values=x, whose=owners)
        np.savez(tmp_path / f"{split}_y.npz", **{name: Y[split]})
        keys |= {split: str(tmp_path / f"{split}.npz")}
        keys |= {f"{split}_labels": str(tmp_path / f"{split}_y.npz")}
    units = {"unit": unit, "train_units": 15} if unit else {}
    data = load(dataset(tmp_path, source=keys, **units))
    np.testing.assert_array_equal(data.train.labels, NUMBERS["train"])
    assert unit is None or len({*data.train.units}) == 15


def test_the_largest_finite_numbers_are_read(tmp_path: Path) -> None:
    """Their sum is not finite in their own type."""
    for split, x in X.items():
        npz(tmp_path / f"{split}.npz", np.full_like(x, np.finfo(np.float32).max), Y[split])
    assert load_embeddings(source(tmp_path, ".npz")).skipped == []


def test_duplicates_and_missing_classes_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    test = X["test"].copy()
    test[5] = X["train"][17]
    npz(tmp_path / "train.npz", X["train"], Y["train"])
    npz(tmp_path / "test.npz", test, np.array(["ant", "bee"])[NUMBERS["test"] % 2])
    places = f"row 5 of {tmp_path}/test.npz = row 17 of {tmp_path}/train.npz"
    for look in (inspect, lambda *them: prepare(*them, tmp_path / "out")):
        caplog.clear()
        look("notes", dataset(tmp_path))
        said = "1 of 12 test examples have the numbers of a training example"
        assert f"{said}, so they do not measure accuracy on unseen data: {places}" in caplog.text
        assert "notes: no test example of cat; macro accuracy leaves them out" in caplog.text
        with pytest.raises(DatasetError, match="duplicates: warn"):
            look("notes", dataset(tmp_path, duplicates="refuse"))
