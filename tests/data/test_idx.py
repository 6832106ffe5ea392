"""Tests of IDX files, the format of MNIST."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.pictures import LFS, section

from dpsweep.data import DatasetError
from dpsweep.data.examples import LabelledData
from dpsweep.data.prepare import load, named

LABELS = {"train": [0, 1, 2, 0, 1, 2, 0, 1], "t10k": [2, 0]}
PIXELS = {
    split: np.random.default_rng(seed).integers(0, 256, (len(labels), 4, 4), dtype=np.uint8)
    for seed, (split, labels) in enumerate(LABELS.items())
}


def idx(numbers: Any) -> bytes:
    content = np.asarray(numbers, dtype=np.uint8)
    head = struct.pack(f">HBB{content.ndim}I", 0, 8, content.ndim, *content.shape)
    return head + content.tobytes()


def write(folder: Path, mark: str = "-", end: str = "") -> None:
    for split, labels in LABELS.items():
        parts = {f"images{mark}idx3": idx(PIXELS[split]), f"labels{mark}idx1": idx(labels)}
        for name, content in parts.items():
            packed = gzip.compress(content, mtime=0) if end else content
            (folder / f"{split}-{name}-ubyte{end}").write_bytes(packed)


def read(folder: Path, **source: Any) -> LabelledData:
    with named("digits"):
        return load(section(folder, 8, 2, source={"kind": "idx"} | source))


@pytest.mark.parametrize(("mark", "end"), [("-", ""), ("-", ".gz"), (".", "")])
def test_images_and_labels_are_read_unchanged(tmp_path: Path, mark: str, end: str) -> None:
    write(tmp_path, mark, end)
    found = read(tmp_path)
    for split, part in (("train", found.train), ("t10k", found.test)):
        np.testing.assert_array_equal(part.inputs[..., 0], PIXELS[split])
        assert part.inputs.dtype == np.uint8
        assert part.labels.tolist() == LABELS[split]
    assert found.classes == ["0", "1", "2"]


IMAGES, FEW = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
PACKED = gzip.compress(b"x" * 99, mtime=0)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (IMAGES, None, "found no train-images-idx3-ubyte, plain or with .gz; allowed: four IDX files"),
        (IMAGES, idx(LABELS["train"]), f"{IMAGES}: cannot be read .*no IDX file of bytes with 3 axes"),
        (IMAGES, idx(PIXELS["train"])[:-1], "cannot reshape array of size 127"),
        (IMAGES, idx(PIXELS["train"][:, :3]), "image_size: found 4, but 8 images of 3 x 4 pixels"),
        (FEW, idx([0]), "2 images of .*, and 1 labels in"),
        (FEW, idx([0, 3]), "image 1 of t10k-images-idx3-ubyte: found the label 3; allowed: 0 to 2"),
        (IMAGES, LFS, "git lfs"),
        (f"{IMAGES}.gz", PACKED[:-9], f"{IMAGES}.gz: cannot be read"),
    ],
)  # fmt: skip
def test_errors_name_the_damaged_file(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    write(tmp_path)
    (tmp_path / file.removesuffix(".gz")).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DatasetError, match=said):
        read(tmp_path)
