import time
from io import BytesIO
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as PillowImage

from dpsweep.data import DatasetError, PreparedDataset
from dpsweep.data.examples import LabelledData
from dpsweep.data.hub import load_hub
from dpsweep.data.prepare import prepare
from dpsweep.study.config import Dataset as Section
from dpsweep.study.config import HubSource

CLASSES = ["cat", "dog"]
REVISION = "0123456789abcdef0123456789abcdef01234567"


def picture(level: int) -> bytes:
    stream = BytesIO()
    PillowImage.new("RGB", (6, 6), (level, 255 - level, 7)).save(stream, "PNG")
    return stream.getvalue()


def save(folder: Path, split: str, labels: list[Any], *, first: int = 0) -> None:
    """Write one parquet file, as on the hub; image i is filled with red level first + i."""
    label = ClassLabel(names=CLASSES) if isinstance(labels[0], int) else Value("string")
    encoded = [{"bytes": picture(first + i), "path": None} for i in range(len(labels))]
    folder.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(
        {"img": encoded, "tag": labels}, features=Features({"img": Image(), "tag": label})
    ).to_parquet(folder / f"{split}-00000-of-00001.parquet")


def section(path: Path | None, train: int, test: int, **source: Any) -> Section:
    return Section(
        title="Pets",
        classes=2,
        train_size=train,
        test_size=test,
        image_size=4,
        source={
            "kind": "hub",
            "id": "someone/pets",
            "path": None if path is None else str(path),
            "input_column": "img",
            "label_column": "tag",
            **source,
        },
    )


def red(images: "np.typing.NDArray[np.uint8]") -> list[int]:
    return [int(level) for level in images[:, 0, 0, 0]]


def test_images_and_labels_stay_together_in_order(tmp_path: Path) -> None:
    save(tmp_path / "raw", "train", [0, 1, 1, 0, 1])
    save(tmp_path / "raw", "test", [1, 0], first=100)
    made = prepare("pets", section(tmp_path / "raw", 5, 2), tmp_path / "out")
    assert made.train_inputs.shape == (5, 4, 4, 3)
    assert red(made.train_inputs) == [0, 1, 2, 3, 4]
    assert made.train_labels.tolist() == [0, 1, 1, 0, 1]
    assert red(made.test_inputs) == [100, 101]
    assert made.metadata.classes == ("cat", "dog")
    # Colours keep their channels.
    assert made.train_inputs[1, 0, 0].tolist() == [1, 254, 7]


def test_validation_is_merged_in_the_order_of_the_splits(tmp_path: Path) -> None:
    save(tmp_path / "raw", "train", [0, 1, 1])
    save(tmp_path / "raw", "validation", [1, 0], first=50)
    save(tmp_path / "raw", "test", [1, 0], first=100)
    both = section(tmp_path / "raw", 5, 2, train_splits=["train", "validation"])
    made = prepare("pets", both, tmp_path / "out")
    assert red(made.train_inputs) == [0, 1, 2, 50, 51]
    assert made.train_labels.tolist() == [0, 1, 1, 1, 0]


def test_a_share_is_stratified_and_takes_images_with_their_labels(tmp_path: Path) -> None:
    labels = [0] * 60 + [1] * 20
    save(tmp_path / "raw", "train", labels)
    save(tmp_path / "raw", "test", [1, 0])
    half = section(tmp_path / "raw", 40, 2, train_share=0.5)
    made = prepare("pets", half, tmp_path / "out")
    assert made.metadata.train_counts == (30, 10)
    assert [labels[level] for level in red(made.train_inputs)] == made.train_labels.tolist()
    assert len(set(red(made.train_inputs))) == 40
    again = prepare("pets", half, tmp_path / "again")
    assert again.metadata.checksum == made.metadata.checksum


def test_a_share_of_the_test_set_is_stratified_too(tmp_path: Path) -> None:
    save(tmp_path / "raw", "train", [0, 1])
    save(tmp_path / "raw", "test", [0] * 30 + [1] * 10)
    made = prepare("pets", section(tmp_path / "raw", 2, 20, test_share=0.5), tmp_path / "out")
    assert made.metadata.test_counts == (15, 5)
    assert [int(level >= 30) for level in red(made.test_inputs)] == made.test_labels.tolist()


def test_more_images_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than a block is decoded by other processes.
    monkeypatch.setattr("dpsweep.data.images._BLOCK", 4)
    monkeypatch.setattr("dpsweep.data.images._CHUNK", 3)
    save(tmp_path / "raw", "train", [0, 1] * 5)
    save(tmp_path / "raw", "test", [1, 0] * 4)
    made = prepare("pets", section(tmp_path / "raw", 10, 8), tmp_path / "out")
    assert red(made.train_inputs) == list(range(10))
    assert red(made.test_inputs) == list(range(8))


def test_classes_are_merged_into_coarser_ones(tmp_path: Path) -> None:
    labels = ["dog", "cat", "ant", "dog"] * 5
    save(tmp_path / "raw", "train", labels)
    save(tmp_path / "raw", "test", ["cat", "ant"])
    options = {"train_share": 0.8}
    coarser = {"pets": ["cat", "dog"], "insects": ["ant"]}
    made = prepare(
        "animals",
        section(tmp_path / "raw", 16, 2, merge_classes=coarser, **options),
        tmp_path / "out",
    )
    assert made.metadata.classes == ("pets", "insects")
    kept = red(made.train_inputs)
    assert made.train_labels.tolist() == [int(labels[level] == "ant") for level in kept]
    assert made.test_labels.tolist() == [0, 1]
    fine = section(tmp_path / "raw", 16, 2, **options).model_copy(update={"classes": 3})
    unmerged = prepare("fine", fine, tmp_path / "fine")
    # Merging chooses no other examples.
    assert red(unmerged.train_inputs) == kept
    assert unmerged.metadata.classes == ("ant", "cat", "dog")
    assert unmerged.train_labels.tolist() == [
        ["ant", "cat", "dog"].index(labels[level]) for level in kept
    ]


@pytest.mark.parametrize(
    ("merged", "said"),
    [
        ({"pets": ["cat", "cow"]}, "found 'cow'; allowed: classes, which are cat, dog"),
        ({"pets": ["cat"], "dogs": ["dog", "cat"]}, "dogs: found 'cat' a second time"),
        ({"pets": ["cat"]}, "no coarser class for dog"),
    ],
)
def test_every_class_is_merged_once(
    merged: dict[str, list[str]], said: str, tmp_path: Path
) -> None:
    save(tmp_path / "raw", "train", [0, 1])
    save(tmp_path / "raw", "test", [1, 0])
    with pytest.raises(DatasetError, match=said):
        prepare("p", section(tmp_path / "raw", 2, 2, merge_classes=merged), tmp_path / "out")


def test_a_corrupt_image_is_named(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    save(raw, "test", [1])
    encoded = [{"bytes": picture(1), "path": None}, {"bytes": b"not an image", "path": None}]
    Dataset.from_dict(
        {"img": encoded, "tag": [0, 1]},
        features=Features({"img": Image(), "tag": ClassLabel(names=CLASSES)}),
    ).to_parquet(raw / "train-00000-of-00001.parquet")
    with pytest.raises(DatasetError, match=r"someone/pets, split train, row 1: not an image"):
        prepare("pets", section(raw, 2, 1), tmp_path / "out")
    with pytest.raises(DatasetError, match="not a prepared dataset"):
        PreparedDataset.open(tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"input_column": "picture"}, "no column 'picture'; allowed: img, tag"),
        ({"label_column": "class"}, "no column 'class'; allowed: img, tag"),
        ({"test_split": "validation"}, "no split 'validation'; allowed: train, test"),
    ],
)
def test_a_wrong_name_lists_what_is_there(
    tmp_path: Path, source: dict[str, Any], message: str
) -> None:
    save(tmp_path / "raw", "train", [0, 1])
    save(tmp_path / "raw", "test", [1])
    with pytest.raises(DatasetError, match=message):
        prepare("pets", section(tmp_path / "raw", 2, 1, **source), tmp_path / "out")


def test_a_missing_local_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="hf download someone/pets --repo-type dataset"):
        prepare("pets", section(tmp_path / "raw", 2, 1), tmp_path / "out")


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cut the hub off and return its empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_offline_it_fails_at_once_with_what_to_do(tmp_path: Path, offline: Path) -> None:
    started = time.monotonic()
    command = rf"hf download someone/pets --repo-type dataset --revision {REVISION}"
    with pytest.raises(DatasetError, match=command):
        prepare("pets", section(None, 2, 1, revision=REVISION), tmp_path / "out")
    assert time.monotonic() - started < 60


def test_offline_a_cached_snapshot_is_enough(tmp_path: Path, offline: Path) -> None:
    snapshot = offline / "datasets--someone--pets" / "snapshots" / REVISION
    save(snapshot, "train", [0, 1, 1])
    save(snapshot, "test", [1])
    made = prepare("pets", section(None, 3, 1, revision=REVISION), tmp_path / "out")
    assert made.metadata.revision == REVISION
    assert made.metadata.source == "someone/pets"
    assert red(made.train_inputs) == [0, 1, 2]


@pytest.mark.parametrize("where", ["outside", "../outside", "link", "missing"])
def test_an_image_is_in_the_parquet_file_or_in_the_folder(tmp_path: Path, where: str) -> None:
    raw = tmp_path / "raw"
    save(raw, "test", [1])
    (tmp_path / "outside").write_bytes(picture(1))
    (raw / "missing").write_bytes(picture(1))
    (raw / "link").symlink_to("../outside")
    path = str(tmp_path / where) if where == "outside" else str(raw / where)
    Dataset.from_dict(
        {
            "img": [{"bytes": picture(1), "path": None}, {"bytes": None, "path": path}],
            "tag": [0, 1],
        },
        features=Features({"img": Image(), "tag": ClassLabel(names=CLASSES)}),
    ).to_parquet(raw / "train-00000-of-00001.parquet")
    (raw / "missing").unlink()
    message = "row 1: not an image" if where == "missing" else "row 1: names the file"
    with pytest.raises(DatasetError, match=message):
        prepare("pets", section(raw, 2, 1), tmp_path / "out")


def test_one_of_several_configurations(tmp_path: Path) -> None:
    save(tmp_path / "raw" / "small", "train", [0, 1])
    save(tmp_path / "raw" / "small", "test", [1, 0], first=100)
    save(tmp_path / "raw" / "large", "train", [0, 1, 1], first=50)
    save(tmp_path / "raw" / "large", "test", [1, 0], first=150)
    (tmp_path / "raw" / "README.md").write_text(
        "---\nconfigs:\n"
        + "".join(
            f"- config_name: {name}\n  data_files:\n"
            f"  - {{split: train, path: {name}/train-*}}\n  - {{split: test, path: {name}/test-*}}\n"
            for name in ("small", "large")
        )
        + "---\n"
    )
    chosen = section(tmp_path / "raw", 3, 2, configuration="large")
    assert red(prepare("pets", chosen, tmp_path / "out").train_inputs) == [50, 51, 52]
    with pytest.raises(DatasetError, match=r"(?s)small.*large.*key configuration"):
        prepare("pets", section(tmp_path / "raw", 3, 2), tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("@eaDir/x.parquet/thumb.jpg", True),
        ("train-00000-of-00001 (conflicted copy 2024-01-31).parquet", True),
        ("#recycle/train-00000-of-00001.parquet", True),
        ("Thumbs.db", False),
        (".cache/huggingface/download/train.metadata", False),
        ("._train-00000-of-00001.parquet", False),
    ],
)
def test_what_other_software_leaves_in_a_local_copy_is_not_read(
    tmp_path: Path, name: str, refused: bool
) -> None:
    for split in ("train", "test"):
        save(tmp_path / "raw", split, [0, 1, 0])
    file = tmp_path / "raw" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((tmp_path / "raw" / "train-00000-of-00001.parquet").read_bytes())
    if refused:
        with pytest.raises(DatasetError, match=r"raw: found .*, which a server or other software"):
            prepare("pets", section(tmp_path / "raw", 3, 3), tmp_path / "out")
    else:
        made = prepare("pets", section(tmp_path / "raw", 3, 3), tmp_path / "out")
        assert made.train_labels.tolist() == [0, 1, 0]


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("splits", [["test"], ["train", "test"]])
def test_a_pointer_of_git_lfs_in_a_local_copy_is_named(tmp_path: Path, splits: list[str]) -> None:
    for split in ("train", "test"):
        save(tmp_path / "raw", split, [0, 1, 0])
    for split in splits:
        (tmp_path / "raw" / f"{split}-00000-of-00001.parquet").write_bytes(LFS)
    message = r"raw/test-00000-of-00001.parquet: a pointer of git-lfs, .*: git lfs pull"
    with pytest.raises(DatasetError, match=message):
        prepare("pets", section(tmp_path / "raw", 3, 3), tmp_path / "out")


@pytest.mark.parametrize("where", [0.2, 0.5, 0.9, 0.98])
def test_damaged_pages_name_their_file(tmp_path: Path, where: float) -> None:
    """What is damaged: images, or labels, or what says where they are."""
    for split in ("train", "test"):
        save(tmp_path / "raw", split, [0, 1] * 400)
    file = tmp_path / "raw" / "test-00000-of-00001.parquet"
    content = bytearray(file.read_bytes())
    place = int(where * len(content))
    content[place : place + 200] = bytes(255 - each for each in content[place : place + 200])
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=r"test-00000-of-00001\.parquet: cannot be read"):
        prepare("pets", section(tmp_path / "raw", 800, 800), tmp_path / "out")


def test_a_split_of_which_a_file_is_missing_is_refused(tmp_path: Path) -> None:
    """The library would train on the rest without a word."""
    save(tmp_path / "raw", "train", [0, 1, 1])
    save(tmp_path / "raw", "test", [1, 0])
    whole = tmp_path / "raw" / "train-00000-of-00001.parquet"
    whole.rename(tmp_path / "raw" / "train-00000-of-00003.parquet")
    with pytest.raises(
        DatasetError, match=r"missing train-00001-of-00003, train-00002-of-00003; allowed: all 3"
    ):
        prepare("pets", section(tmp_path / "raw", 3, 2), tmp_path / "out")


def texts(folder: Path, train: str) -> LabelledData:
    folder.mkdir()
    (folder / "train.csv").write_text(f"text,label\n{train}")
    (folder / "test.csv").write_text("text,label\na,0\nb,1\n")
    keys = {"kind": "hub", "id": "a/b", "path": str(folder), "input_column": "text"}
    return load_hub(HubSource.model_validate(keys), "text")


def test_tables_of_a_dataset_lose_no_characters(tmp_path: Path) -> None:
    """The library reads quotes as pandas does, which leaves some of them out."""
    data = texts(tmp_path / "good", '"say ""hi"", now",0\nb,1\n')
    assert list(data.train.inputs) == ['say "hi", now', "b"]
    with pytest.raises(DatasetError, match=r"train\.csv, line 2 .*text after the closing quote"):
        texts(tmp_path / "bad", '"say \\"hi\\" now",0\nb,1\n')


@pytest.mark.parametrize(
    ("name", "content"), [("README.md", "---\nconfigs: [\n---\n"), ("raw.py", "import os\n")]
)
def test_a_folder_that_is_no_dataset_is_named(tmp_path: Path, name: str, content: str) -> None:
    save(tmp_path / "raw", "train", [0, 1, 1])
    save(tmp_path / "raw", "test", [1, 0])
    (tmp_path / "raw" / name).write_text(content)
    with pytest.raises(DatasetError, match=r"raw: cannot be read as a dataset \("):
        prepare("pets", section(tmp_path / "raw", 3, 2), tmp_path / "out")
