import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpsweep.data import DatasetError
from dpsweep.data.idx import load_idx
from dpsweep.data.sources import load
from dpsweep.study.config import Dataset, IdxSource

LABELS = {"train": [0, 1, 2, 0, 1, 2, 0, 1], "t10k": [2, 0]}


def idx(numbers: Any) -> bytes:
    content = np.asarray(numbers, dtype=np.uint8)
    head = struct.pack(f">HBB{content.ndim}I", 0, 8, content.ndim, *content.shape)
    return head + content.tobytes()


def images(split: str) -> Any:
    return np.random.default_rng(len(split)).integers(0, 256, (len(LABELS[split]), 4, 4))


def write(folder: Path, mark: str = "-", end: str = "") -> Path:
    for split, labels in LABELS.items():
        parts = {f"images{mark}idx3": idx(images(split)), f"labels{mark}idx1": idx(labels)}
        for name, content in parts.items():
            packed = gzip.compress(content) if end else content
            (folder / f"{split}-{name}-ubyte{end}").write_bytes(packed)
    return folder


def source(folder: Path, **keys: Any) -> IdxSource:
    return IdxSource(kind="idx", path=str(folder), **keys)


@pytest.mark.parametrize(("mark", "end"), [("-", ""), ("-", ".gz"), (".", "")])
def test_images_and_labels_are_read_as_they_are(tmp_path: Path, mark: str, end: str) -> None:
    found = load_idx(source(write(tmp_path, mark, end)), 4)
    for split, part in (("train", found.train), ("t10k", found.test)):
        np.testing.assert_array_equal(part.inputs[..., 0], images(split))
        assert part.inputs.dtype == np.uint8
        assert part.labels.tolist() == LABELS[split]
    assert found.classes == ["0", "1", "2"]


def test_a_share_is_stratified_and_keeps_images_with_their_labels(tmp_path: Path) -> None:
    found = load_idx(source(write(tmp_path), train_share=0.5), 4).train
    assert np.bincount(found.labels).tolist() == [2, 2, 1]
    pairs = {
        (image.tobytes(), label)
        for image, label in zip(
            images("train").astype(np.uint8)[..., None], LABELS["train"], strict=True
        )
    }
    assert all(
        (image.tobytes(), int(label)) in pairs
        for image, label in zip(found.inputs, found.labels, strict=True)
    )


IMAGES, FEW = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (IMAGES, None, "found no train-images-idx3-ubyte, plain or with .gz"),
        (IMAGES, idx(LABELS["train"]), "begins with 00 00 08 01; allowed: 00 00 08 03"),
        (IMAGES, b"", "begins with nothing"),
        (IMAGES, idx(images("train"))[:-1], "found 127 bytes after a header that says 8 x 4 x 4"),
        (IMAGES, idx(images("train")) + b"x", "found 129 bytes"),
        (IMAGES, idx(images("train")[:, :3]), "images of 3 x 4 pixels"),
        (FEW, idx([0]), "found 1 labels for the 2 images"),
        (FEW, idx([0, 3]), "image 1 of t10k-images-idx3-ubyte: found the label 3; allowed: 0 to 2"),
        ("train-labels-idx1-ubyte", idx([0, 1, 3] * 2 + [0, 1]), "without a gap"),
        (IMAGES, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs"),
    ],
)
def test_what_is_wrong_names_the_file(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    write(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises((DatasetError, OSError), match=said):
        load_idx(source(tmp_path), 4)


def test_a_damaged_archive_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, end=".gz") / f"{IMAGES}.gz"
    for content in (file.read_bytes()[:-20], b"no archive"):
        file.write_bytes(content)
        with pytest.raises(DatasetError, match=f"{IMAGES}.gz: cannot be read"):
            load_idx(source(tmp_path), 4)


def test_another_image_size_is_refused(tmp_path: Path) -> None:
    dataset = Dataset(
        title="X",
        source=source(write(tmp_path)),
        classes=3,
        train_size=8,
        test_size=2,
        image_size=8,
    )
    with pytest.raises(DatasetError, match="image_size: found 8, but images of 4 x 4 pixels"):
        load(dataset)
