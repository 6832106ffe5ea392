"""Images are decoded rightly, and read from exactly laid out folders and IDX files; others are refused."""

import gzip
import os
import shutil
import struct
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.pictures import LFS, fill, picture, red, saved, section

from dpsweep.data import DatasetError, PreparedDataset, Split
from dpsweep.data.examples import LabelledData
from dpsweep.data.images import EncodedImages, Transform, decode_images, load_folder, make_transform
from dpsweep.data.prepare import load, named, prepare
from dpsweep.data.prepared import Resize
from dpsweep.study.datasets import FolderSource
from dpsweep.study.fingerprints import source_fingerprint

# -- images of all kinds -------------------------------------------------------------------------

SIZE = 16
EXACT = Transform(Resize(size=SIZE, interpolation="nearest"))
# Squares, because a linear ramp of 16 bits gives the right 8 bits even with an overflow.
RAMP = np.linspace(0, 1, SIZE) ** 2


def ramp(form: str, kind: str, mode: str = "") -> bytes:
    """Encode 16 columns, from the darkest to the brightest level of a type."""
    levels = (RAMP * np.iinfo(kind).max).round()
    content = np.tile(levels, (SIZE, 1)).astype(kind).tobytes()
    if form == "PGM":
        return f"P5 {SIZE} {SIZE} 65535\n".encode() + content
    return saved(Image.frombytes(mode, (SIZE, SIZE), content), form)


def tiff(size: int, bits: int, photometric: int, data: bytes, sample_format: int = 1) -> bytes:
    tags = {256: size, 257: size, 258: bits, 259: 1, 262: photometric, 277: 1, 278: size}
    tags |= {273: 200, 279: len(data), 339: sample_format}
    entries = b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items())
    )
    head = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + struct.pack("<I", 0)
    return head.ljust(200, b"\0") + data


def twelve_bit_tiff() -> bytes:
    """Encode 12-bit grey, two pixels in three bytes, as cameras of microscopes do."""
    levels = (RAMP * 4095).round().astype(int)
    row = b"".join(
        bytes([one >> 4, (one & 15) << 4 | two >> 8, two & 255])
        for one, two in levels.reshape(-1, 2).tolist()
    )
    return tiff(SIZE, 12, 1, row * SIZE)


def plain(mode: str, colour: Any = 0, form: str = "PNG", **options: Any) -> bytes:
    return saved(Image.new(mode, (SIZE, SIZE), colour), form, **options)


def several(form: str) -> bytes:
    """Encode two pictures, of which the first is white."""
    frames = [Image.new("L", (SIZE, SIZE), level) for level in (255, 0)]
    return saved(frames[0], form, save_all=True, append_images=frames[1:])


def palette() -> bytes:
    image = Image.new("P", (SIZE, SIZE), 0)
    image.putpalette([0, 0, 0, 255, 0, 0])
    return saved(image, transparency=0)


# An image, and the level of each column, or the same level for all columns.
LEVELS = 255 * RAMP
PICTURES: dict[str, tuple[bytes, Any]] = {
    "8-bit PNG": (ramp("PNG", "u1", "L"), LEVELS),
    "16-bit PNG": (ramp("PNG", "<u2", "I;16"), LEVELS),
    "16-bit TIFF": (ramp("TIFF", "<u2", "I;16"), LEVELS),
    "16-bit TIFF, big-endian": (ramp("TIFF", ">u2", "I;16B"), LEVELS),
    "16-bit PGM": (ramp("PGM", ">u2"), LEVELS),
    "12-bit TIFF": (twelve_bit_tiff(), LEVELS),
    "CMYK JPEG": (plain("CMYK", form="JPEG"), 255),
    "1 bit": (plain("1", 1), 255),
    "YCbCr": (plain("YCbCr", (0, 128, 128), "JPEG"), 0),
    "RGBA": (plain("RGBA", (0, 0, 0, 0)), 255),
    "grey with alpha": (plain("LA", (0, 0)), 255),
    "palette with alpha": (palette(), 255),
    **{f"first frame of {form}": (several(form), 255) for form in ("GIF", "PNG", "WEBP", "MPO")},
    "WebP": (plain("RGB", "#808080", "WEBP", lossless=True), 128),
    "one pixel": (saved(Image.new("RGB", (1, 1), "white"), "BMP"), 255),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_images_of_all_formats_are_read(kind: str) -> None:
    content, levels = PICTURES[kind]
    assert np.abs(EXACT(content) - np.reshape(levels, (1, -1, 1))).max() <= 0.51


def in_memory(*contents: bytes) -> Split:
    named = [(str(number), content) for number, content in enumerate(contents)]
    images = EncodedImages(lambda: iter(named))
    return Split(images, np.zeros(len(named), np.int64))


@pytest.mark.parametrize("form", ["TIFF", "PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(form: str, orientation: int) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:4, :8] = 255  # the corner that EXIF calls the first row and column
    exif = Image.Exif()
    exif[274] = orientation
    content = saved(Image.fromarray(pixels), form, exif=exif)
    transform = make_transform(Resize(size=64, interpolation="nearest"), in_memory(content))
    height, width = (16, 8) if orientation > 4 else (8, 16)
    found = transform(content)
    assert transform.stored == found.shape[:2] == (height, width)
    top, left = orientation in (1, 2, 5, 6), orientation in (1, 4, 5, 8)
    corner = found[(0 if top else height // 2) :, (0 if left else width // 2) :]
    assert corner[1 : height // 2 - 1, 1 : width // 2 - 1].min() > 200
    assert found.astype(int).sum() < 255 * 3 * 8 * 16 / 3


# -- images that are refused ---------------------------------------------------------------------

NOISE = Image.effect_noise((99, 99), 50)
REFUSED = {
    "float TIFF": (
        saved(Image.fromarray(np.zeros((8, 8), np.float32)), "TIFF"),
        "pixels of mode F, whose darkest and brightest levels are not known; save it with 8",
    ),
    "signed 8-bit TIFF": (
        tiff(4, 8, 1, bytes([0, 50, 156, 127] * 4), 2),
        "pixels of mode L, whose",
    ),
    "pages": (several("TIFF"), "2 pages; allowed: one, so save each page as an image"),
    "white is zero": (tiff(4, 16, 0, bytes(32)), "zero as black"),
    "16-bit PNG with a transparent colour": (
        saved(Image.frombytes("I;16", (4, 4), bytes(32)), transparency=7),
        "a transparent colour; save it with an alpha channel",
    ),
    "truncated JPEG": (saved(NOISE, "JPEG")[:2000], "truncated"),
    "truncated PNG": (saved(NOISE, "PNG")[:2000], "not an image"),
    "nothing in it": (b"", "it is empty"),
    "a text": (b"where are the cats?", "of no format that Pillow reads"),
    "a pointer": (LFS, "a pointer of git-lfs, not the file itself; fetch that: git lfs pull"),
}


def test_unreadable_images_are_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            fill(tmp_path / "pets" / split / name, 2)
    for kind, (content, _) in REFUSED.items():
        (tmp_path / "pets" / "train" / "cat" / f"{kind}.png").write_bytes(content)
    with pytest.raises(DatasetError, match=rf"datasets\.pets: corrupt examples \({len(REFUSED)}\)"):
        prepare("pets", section(tmp_path / "pets", 4 + len(REFUSED), 4), tmp_path / "out")
    skipping = section(tmp_path / "pets", 4, 4, corrupt="skip")
    found = prepare("pets", skipping, tmp_path / "out").metadata.skipped
    said = dict(each.removeprefix("train/cat/").split(".png: ", 1) for each in found)
    assert said.keys() == REFUSED.keys()
    for kind, (_, reason) in REFUSED.items():
        assert said[kind].startswith("not an image that can be read (")
        assert reason in said[kind]
        assert "0x" not in said[kind]  # memory addresses would differ between runs


# -- sizes ---------------------------------------------------------------------------------------


def encoded(size: tuple[int, int], seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels))


@pytest.mark.parametrize(
    ("sizes", "stored"),
    [
        ([(32, 32)] * 3, (32, 32)),
        ([(20, 32)] * 3, (32, 20)),
        ([(32, 32), (32, 31)], None),
        ([(224, 224)] * 2, None),
        ([(20, 225)] * 2, None),
        ([(500, 300)], None),
    ],
)
def test_images_of_one_small_size_are_stored_in_this_size(
    sizes: list[tuple[int, int]], stored: tuple[int, int] | None
) -> None:
    train = in_memory(*(encoded(size, seed) for seed, size in enumerate(sizes[:-1])))
    last = encoded(sizes[-1])
    transform = make_transform(
        Resize(size=224, interpolation="bicubic"), train, in_memory(last, b"corrupt", b"")
    )
    assert transform.stored == stored
    pixels = transform(last)
    assert pixels.shape == transform.shape == (*(stored or (224, 224)), 3)
    if stored:
        assert np.array_equal(pixels, np.asarray(Image.open(BytesIO(last))))


SMALL = Transform(Resize(size=2, interpolation="nearest"))


def test_animations_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In every format; the second picture of a photograph is its preview."""
    forms = ("GIF", "PNG", "WEBP", "MPO", "TIFF")
    split = in_memory(*map(several, forms), plain("RGB", "white", "GIF"))
    left, errors = decode_images(split, SMALL, tmp_path / "train.npy")
    assert len(left.labels) == 5 and len(errors) == 1 and "2 pages" in errors[0]
    assert np.load(tmp_path / "train.npy").min() > 245
    assert "train: 3 of 6 images are animations, of which the first frame is read" in caplog.text


def test_images_of_fewer_bits_than_their_file_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before they are resized: bicubic interpolation overshoots at edges."""
    edges = np.tile(np.array([[0, 4095], [4095, 0]], np.uint16), (16, 16)).repeat(2, 0)
    image = in_memory(saved(Image.fromarray(edges), "PNG"))
    larger = Transform(Resize(size=224, interpolation="bicubic"))
    decode_images(image, larger, tmp_path / "train.npy")
    assert np.load(tmp_path / "train.npy").max() > 16
    assert "train: 1 of 1 images have no level from 17 to 255" in caplog.text


def test_decoding_in_threads_keeps_the_order(tmp_path: Path) -> None:
    images = in_memory(*(b"" if number == 95 else picture(number) for number in range(200)))
    labelled = Split(images.inputs, np.arange(200) % 3)
    split, corrupt = decode_images(labelled, SMALL, tmp_path / "train.npy")
    kept = [number for number in range(200) if number != 95]
    assert split.labels.tolist() == [number % 3 for number in kept]
    assert red(np.load(tmp_path / "train.npy")) == kept
    assert [each.split(":")[0] for each in corrupt] == ["95"]


# -- folders ---------------------------------------------------------------------------------------


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Write three cats and two dogs for training, and one of each for testing."""
    for split, cats, dogs, level in (("train", 3, 2, 0), ("test", 1, 1, 100)):
        fill(tmp_path / "pets" / split / "cat", cats, level)
        fill(tmp_path / "pets" / split / "dog", dogs, level + 50)
    return tmp_path / "pets"


def made(pets: Path, train: int = 5, test: int = 2, **keys: Any) -> PreparedDataset:
    return prepare("pets", section(pets, train, test, **keys), pets.parent / "out")


def test_classes_are_folders_splits_are_merged_and_links_are_read(pets: Path) -> None:
    fill(pets / "val" / "dog", 2, 200)
    (pets / "train" / "cat" / "x.png").symlink_to("000.png")
    found = made(pets, 8, 2, source={"train_folders": ["train", "val"]}, train_counts=[4, 4])
    assert found.metadata.classes == ("cat", "dog")
    assert red(found.train_inputs) == [0, 1, 2, 0, 50, 51, 200, 201]
    assert found.train_labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert red(found.test_inputs) == [100, 150]
    assert found.metadata.train_counts == (4, 4)
    arrays = [f"{split}_{what}.npy" for split in ("test", "train") for what in ("inputs", "labels")]
    assert sorted(path.name for path in found.folder.iterdir()) == ["metadata.json", *arrays]


def test_test_set_from_one_folder_does_not_change_with_a_new_image(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        fill(tmp_path / name, 60)

    def parts(**keys: Any) -> list[set[str]]:
        place = {"kind": "folder", "path": str(tmp_path), "train_folders": ["."]}
        data = load_folder(FolderSource.model_validate(place | {"test_from_train": 0.3} | keys))
        for split in (data.train, data.test):
            named = [name for name, _ in split.inputs.read()]
            assert [int(name.startswith("dog")) for name in named] == split.labels.tolist()
        return [{name for name, _ in split.inputs.read()} for split in (data.train, data.test)]

    before = parts()
    for new in ("000a", "030b", "zzz"):
        file = tmp_path / "cat" / f"{new}.png"
        file.write_bytes(picture(0))
        after = parts()
        assert [part - {f"cat/{new}.png"} for part in after] == before
        assert len(after[0] | after[1]) == 121
        file.unlink()
    tests = [parts(seed=seed)[1] for seed in range(20)]
    # 120 draws at 0.3 have a standard deviation of 5, so the mean of 20 has one of 1.1.
    assert abs(np.mean([len(each) for each in tests]) - 36) < 4
    assert tests[1] != tests[2]


def rename(old: str, new: str) -> Callable[[Path], Any]:
    return lambda pets: (pets / old).rename(pets / new)


def link(place: str, target: str) -> Callable[[Path], Any]:
    """Return a function that makes a link; ``~`` stands for a folder outside the pets' folder."""

    def make(pets: Path) -> None:
        fill(pets.parent / "private" / "cat", 1)
        (pets / place).symlink_to(target.replace("~", str(pets.parent / "private")))

    return make


def junk(name: bytes) -> Callable[[Path], Any]:
    return lambda pets: (pets / os.fsdecode(name)).write_bytes(b"junk")


def label_by_table(pets: Path) -> None:
    shutil.rmtree(pets / "train")
    fill(pets / "train", 2)
    (pets / "train" / "metadata.csv").write_text("file_name,label\n000.png,cat\n")


FOLDERS = {
    "no folder": (shutil.rmtree, "pets: no such folder; allowed: <split>/<class>/<image>"),
    "an empty class": (
        lambda pets: (pets / "train" / "bird").mkdir(),
        r"classes: the study says 2, 3 found\n  the classes are: bird, cat, dog\n"
        r"datasets\.pets: no training example of bird",
    ),
    "a class in capitals": (
        rename("test/dog", "test/Dog"),
        "test: found the classes Dog; allowed: those of the first training folder, cat, dog",
    ),
    "classes that differ in capitals": (
        lambda pets: fill(pets / "train" / "Cat", 1),
        "the classes are: Cat, cat, dog",
    ),
    "one name in two forms of Unicode": (
        lambda pets: [fill(pets / "train" / name, 0) for name in ("caf\u00e9", "cafe\u0301")],
        "found the folders .* each class in one folder",
    ),
    "a name with a space": (lambda pets: fill(pets / "train" / "dog ", 0), "folders cat, dog, dog "),
    "a folder in a class": (
        lambda pets: fill(pets / "train" / "dog" / "2019", 2),
        "train/dog/2019: found no file; allowed: <split>/<class>/<image>",
    ),
    "a link to an image of others": (link("train/cat/x", "~/cat/000.png"), "x: found .* symbolic link"),
    "a link in the place of a class": (link("train/eel", "~/cat"), "eel: found .* symbolic link"),
    "a name that is not UTF-8": (junk(b"train/cat/k\xe4tzchen.png"), "found a name that is not UTF-8"),
    "labels in a table": (
        label_by_table,
        "train: found the folders nothing and the files metadata.csv, .* not read; allowed",
    ),
    "classes without images": (
        lambda pets: [each.unlink() for each in pets.glob("test/*/*")],
        "pets: found no image in test; allowed: one or more",
    ),
    "no test folder": (rename("test", "other"), "test: no such folder; allowed: <split>/<class>/<image>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOLDERS)
def test_invalid_folders_are_refused_before_decoding(
    pets: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = FOLDERS[kind]
    change(pets)
    assert source_fingerprint(section(pets, 5, 2)), "the workflow reads this before the job runs"
    monkeypatch.delattr("dpsweep.data.images.Transform.__call__")  # decoding would fail
    with pytest.raises(DatasetError, match=rf"(?s)datasets\.pets.*{message}"):
        made(pets)


def test_hidden_files_are_neither_classes_nor_examples(
    pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (pets / "test" / "dog" / "000.png").unlink()
    source = section(pets, 5, 1)
    clean, fingerprint = made(pets, 5, 1).metadata, source_fingerprint(source)
    assert "pets: no test example of dog" in caplog.text
    for place in ("", "train", "test", "train/cat", "test/dog"):
        # A hidden file may have any name.
        for name in (".DS_Store", "._cat.png", ".old/cat/0.png", os.fsdecode(b".\xe4.png")):
            file = pets / place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(picture(9))
    assert source_fingerprint(source) == fingerprint, "nothing is prepared again"
    (pets / "train" / "README.txt").touch()  # in no class
    found = made(pets, 5, 1).metadata
    assert found.checksum == clean.checksum
    hidden = (".DS_Store", "._cat.png", ".old", ".\ufffd.png")
    places = ("train", "test", "train/cat", "test/dog")
    wanted = {f"{place}/{name}" for place in places for name in hidden} | {"train/README.txt"}
    assert set(found.ignored) == wanted


# -- IDX files -------------------------------------------------------------------------------------


LABELS = {"train": [0, 1, 2, 0, 1, 2, 0, 1], "t10k": [2, 0]}
PIXELS = {
    split: np.random.default_rng(seed).integers(0, 256, (len(labels), 4, 4), dtype=np.uint8)
    for seed, (split, labels) in enumerate(LABELS.items())
}


def idx(numbers: Any) -> bytes:
    content = np.asarray(numbers, dtype=np.uint8)
    head = struct.pack(f">HBB{content.ndim}I", 0, 8, content.ndim, *content.shape)
    return head + content.tobytes()


def write_idx(folder: Path, mark: str = "-", end: str = "") -> None:
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
    write_idx(tmp_path, mark, end)
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
    write_idx(tmp_path)
    (tmp_path / file.removesuffix(".gz")).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DatasetError, match=said):
        read(tmp_path)
