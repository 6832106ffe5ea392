"""How people lay out folders of images: splits and classes are told apart, or the folder is refused."""

import re
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from tests.data.test_folder import section

from dpsweep.data import DatasetError
from dpsweep.data.folder import load_folder
from dpsweep.data.splits import choose_splits, split_uses
from dpsweep.recommend.look import look_at_folder
from dpsweep.study.config import FolderSource
from dpsweep.study.fingerprints import source_fingerprint

PETS = ["cat", "dog", "eel"]


def lay_out(root: Path, *folders: str, images: int = 4) -> Path:
    """Write as many images into each of some folders; no two have the same name."""
    for folder in folders:
        (root / folder).mkdir(parents=True)
        for number in range(images):
            name = f"{folder.replace('/', '-')}-{number}.png"
            Image.new("L", (2, 2), number).save(root / folder / name)
    return root


def in_each(*splits: str) -> list[str]:
    return [f"{split}/{name}" for split in splits for name in PETS]


# -- splits ------------------------------------------------------------------------------------

SPLITS: dict[str, tuple[list[str], list[str], str | None]] = {
    "plain": (["train", "test"], ["train"], "test"),
    "Intel's": (["seg_train", "seg_test", "seg_pred"], ["seg_train"], "seg_test"),
    "capitals": (["Training", "Testing"], ["Training"], "Testing"),
    "shouting": (["TRAIN", "VAL", "TEST"], ["TRAIN", "VAL"], "TEST"),
    "Val beside train": (["train", "Val"], ["train"], "Val"),
    "valid": (["train", "valid"], ["train"], "valid"),
    "dev": (["train", "dev", "eval"], ["train", "dev"], "eval"),
    "holdout": (["train", "hold-out"], ["train"], "hold-out"),
    "images of splits": (["train_images", "test_images"], ["train_images"], "test_images"),
    "sets": (["training_set", "test_set"], ["training_set"], "test_set"),
    "camels": (["trainSet", "valSet", "testSet"], ["trainSet", "valSet"], "testSet"),
    "years": (["train2017", "val2017"], ["train2017"], "val2017"),
    "numbers": (["01_train", "02_test"], ["01_train"], "02_test"),
    "a name before": (
        ["asl_alphabet_train", "asl_alphabet_test"],
        ["asl_alphabet_train"],
        "asl_alphabet_test",
    ),
    "another folder": (["train", "test", "unlabeled"], ["train"], "test"),
    "the plain one of two": (["train", "train_raw", "test"], ["train"], "test"),
}


@pytest.mark.parametrize("kind", SPLITS)
def test_splits_are_found_by_their_names(tmp_path: Path, kind: str) -> None:
    folders, train, test = SPLITS[kind]
    found = look_at_folder(lay_out(tmp_path / "pets", *in_each(*folders)))
    assert found.source["train_folders"] == train and found.source["test_folder"] == test
    assert found.classes == PETS
    assert found.train_counts == [4 * len(train)] * 3 and found.test_counts == [4] * 3
    left_out = [name for name in folders if name not in (*train, test)]
    assert all(name in found.reading for name in folders)
    assert ("not read" in found.reading) == bool(left_out)


def test_an_archive_in_a_folder_of_its_own_name(tmp_path: Path) -> None:
    inner = [f"{split}/{each}" for split in ("seg_train", "seg_test") for each in in_each(split)]
    found = look_at_folder(lay_out(tmp_path / "pets", *inner))
    assert (found.classes, found.train_counts, found.test_counts) == (PETS, [4] * 3, [4] * 3)


def test_test_images_without_classes_are_not_read(tmp_path: Path) -> None:
    found = look_at_folder(lay_out(tmp_path / "pets", *in_each("train"), "test"))
    assert found.classes == PETS and "not read: test" in found.reading
    both = zip(found.train_counts, found.test_counts, strict=True)
    assert [train + test for train, test in both] == [4] * 3


@pytest.mark.parametrize("names", [["val", "dev"], ["train_a", "test_a", "train_b", "test_b"]])
def test_two_splits_for_one_use_are_not_chosen_between(names: list[str]) -> None:
    with pytest.raises(DatasetError, match="which are all words for"):
        choose_splits(names, "pets")


@pytest.mark.parametrize(
    "name",
    [
        "cat",
        "train station",
        "test tube",
        "bullet_train",
        "latest",
        "contest",
        "invalid",
        "trainer",
    ],
)
def test_words_within_names_of_classes_are_no_splits(name: str) -> None:
    assert split_uses([name, "dog"]) == {}


# -- what is refused, and what is not -------------------------------------------------------------

REFUSED: dict[str, tuple[list[str], str]] = {
    "splits": (in_each("Val", "Test"), "the folders Test, Val: words for splits"),
    "splits without classes": (["train", "test"], "the folders test, train: words"),
    "a split beside classes": ([*PETS, *in_each("test")], "the folder test: words"),
    "a test folder beside classes": ([*PETS, "Testing"], "the folder Testing: words"),
    "classes above splits": (
        [f"{name}/{split}" for name in PETS for split in ("train", "test")],
        "the folders test, train in cat: words for splits",
    ),
    "images and masks": (["images", "masks"], "images, masks: words for parts of"),
    "images and labels": (in_each("Images", "Labels"), "Images, Labels: words for parts"),
    "examples without a class": ([*PETS, "Unlabeled"], "the folder Unlabeled: words for examples"),
    "VOC's folders": (["Annotations", "JPEGImages"], "JPEGImages, Annotations: words"),
    "other words": (
        in_each("prueba", "entrenamiento"),
        "cat, dog, eel in each of entren.*, prueba",
    ),
    "domains": (in_each("photo", "sketch"), "found the folders cat, dog, eel in each of photo"),
    "Office's domains": (in_each("dslr/images", "webcam/images"), "cat, dog, eel in each of dslr"),
    "everything once more": ([*PETS, *in_each("all")], "cat, dog, eel in all too, with the names"),
    "a folder around": (
        in_each("PetImages"),
        "the folder PetImages alone, which holds .* cat, dog",
    ),
    "two train folders": (
        in_each("train", "training"),
        "found train, training, which are all words",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_folders_that_are_no_classes_are_refused(tmp_path: Path, kind: str) -> None:
    folders, message = REFUSED[kind]
    lay_out(tmp_path / "pets", *folders)
    with pytest.raises(DatasetError, match=message):
        look_at_folder(tmp_path / "pets")


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if "two train" not in kind])
def test_a_study_that_names_them_is_refused_too_unless_it_says_so(
    tmp_path: Path, kind: str
) -> None:
    folders, message = REFUSED[kind]
    lay_out(tmp_path / "pets", *folders, images=9)
    keys = {"kind": "folder", "path": str(tmp_path / "pets"), "train_folders": ["."]}
    keys |= {"test_from_train": 0.5}
    with pytest.raises(DatasetError, match=rf"{message}.*or, if .* add folders_are_classes: true"):
        load_folder(FolderSource.model_validate(keys))
    data = load_folder(FolderSource.model_validate(keys | {"folders_are_classes": True}))
    assert data.classes == sorted({Path(name).parts[0] for name in folders})
    found = look_at_folder(tmp_path / "pets", folders_are_classes=True)
    assert found.classes == data.classes and found.source["folders_are_classes"]


CLASSES: dict[str, list[str]] = {
    "trains among vehicles": ["bus", "car", "train"],
    "valid and invalid": ["invalid", "valid"],
    "years inside": [f"{name}/{year}" for name in PETS for year in (2019, 2020)],
    "dates inside": [f"{name}/2020/2020-01-{day:02}" for name in PETS for day in (1, 2)],
    "a folder inside of all": [f"{name}/new" for name in PETS],
    "other folders inside": ["cat/tabby", "cat/siamese", "dog/beagle", "dog/pug"],
    "images alone": ["images", "icons"],
    "numbers": ["0", "1", "10"],
}


@pytest.mark.parametrize("kind", CLASSES)
def test_classes_of_all_kinds_are_read(tmp_path: Path, kind: str) -> None:
    folders = CLASSES[kind]
    found = look_at_folder(lay_out(tmp_path / "pets", *folders))
    wanted = Counter(Path(name).parts[0] for name in folders)
    both = zip(found.train_counts, found.test_counts, strict=True)
    assert found.classes == sorted(wanted)
    assert [sum(each) for each in both] == [4 * wanted[name] for name in found.classes]
    assert "a folder for each class; 20% of them for testing" in found.reading


# -- litter ----------------------------------------------------------------------------------------

LITTER = [
    *("@eaDir/0.png/SYNOPHOTO_THUMB_M.jpg", "#recycle/0.png", "$RECYCLE.BIN/S-1/0.png"),
    *("System Volume Information/x.dat", "lost+found/#1", "__pycache__/x.cpython-311.pyc"),
    *("__MACOSX/cat/._0.png", "@Recycle/0.png", ".snapshot/hourly/cat/0.png", ".Trash-1000/0.png"),
    *("Thumbs.db", ".DS_Store", "0.png.part", "0 (conflicted copy 2024-01-31).png", "0.png~"),
]


@pytest.mark.parametrize("name", LITTER)
def test_litter_is_no_class_and_no_example(tmp_path: Path, name: str) -> None:
    root = lay_out(tmp_path / "pets", *in_each("train", "test"))
    clean = look_at_folder(root)
    made_for = source_fingerprint(section(root, 12, 12))
    places = ("", "train", "test", "train/cat", "test/dog")
    for place in places:
        file = root / place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), 9).save(file, "PNG")
    assert look_at_folder(root) == clean
    assert source_fingerprint(section(root, 12, 12)) == made_for, "nothing is prepared again"
    ignored = load_folder(FolderSource(kind="folder", path=str(root))).ignored
    assert set(ignored) == {str(Path(place, Path(name).parts[0])) for place in places if place}


def test_an_image_that_is_still_in_the_cloud_is_refused(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "pets", *in_each("train", "test"))
    (root / "train" / "cat" / ".tom.png.icloud").write_bytes(b"bplist00")
    with pytest.raises(DatasetError, match=re.escape("tom.png.icloud: an image that iCloud")):
        look_at_folder(root)


@pytest.mark.parametrize("mask", ["0_mask.png", "0_mask_1.png", "0-Segmentation.png", "0_GT.png"])
def test_masks_beside_their_images_are_no_examples(tmp_path: Path, mask: str) -> None:
    """Some published datasets of medical images are so."""
    root = lay_out(tmp_path / "pets", *in_each("train", "test"))
    image = Image.new("L", (2, 2), 9)
    for name in ("0.png", mask):
        image.save(root / "train" / "cat" / name)
    with pytest.raises(DatasetError, match=rf"found train/cat/{mask} beside images.*masks, not"):
        look_at_folder(root)


def test_a_class_is_the_same_with_a_space_behind_it(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "pets", "cat", "dog ")
    assert look_at_folder(root).classes == ["cat", "dog"]
    lay_out(root, "dog")
    with pytest.raises(DatasetError, match=r"two folders of the class 'dog'.*spaces"):
        look_at_folder(root)
