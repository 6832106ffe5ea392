"""What people have among their images: each kind is read rightly or refused by name."""

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpsweep.data import DatasetError, PreparedDataset, Split
from dpsweep.data.images import EncodedImages, Transform, make_transform
from dpsweep.data.prepare import prepare
from dpsweep.data.resize import Resize
from dpsweep.study.config import Dataset
from dpsweep.study.fingerprints import source_fingerprint

SIZE = 16
# Squares, because equal steps of 16 bits are the right ones of 8 even where they overflow.
RAMP = np.linspace(0, 1, SIZE) ** 2
WHITE, GREY, BLACK = [255] * 3, [128] * 3, [0] * 3


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two cats and two dogs to train on, one of each to test with."""
    for split, count in (("train", 2), ("test", 1)):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (9, 7), (number, 0, 0)).save(folder / f"{number}.png")
    return tmp_path / "pets"


def section(pets: Path, **keys: Any) -> Dataset:
    expected: dict[str, Any] = {"classes": 2, "train_size": 4, "test_size": 2} | keys
    source = {"kind": "folder", "path": str(pets)} | expected.pop("source", {})
    return Dataset.model_validate(
        {"title": "Pets", "image_size": SIZE, "source": source} | expected
    )


def made(pets: Path, **keys: Any) -> PreparedDataset:
    return prepare("pets", section(pets, **keys), pets.parent / "out")


# -- images that are read --------------------------------------------------------------------


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def ramp(form: str, mode: str) -> bytes:
    """A column for each of 16 levels from the darkest to the brightest of a mode."""
    largest = 65535 if mode.startswith("I;16") else 255
    levels = (RAMP * largest).round()
    kind = {"I;16": "<u2", "I;16B": ">u2"}.get(mode, "u1")
    pixels = np.tile(levels, (SIZE, 1)).astype(kind)
    return saved(Image.frombytes(mode, (SIZE, SIZE), pixels.tobytes()), form)


def grey_pgm() -> bytes:
    levels = np.tile((RAMP * 65535).round(), (SIZE, 1)).astype(">u2")
    return f"P5 {SIZE} {SIZE} 65535\n".encode() + levels.tobytes()


def twelve_bit_tiff() -> bytes:
    """Grey of 12 bits, two pixels in three bytes, as cameras of microscopes write it."""
    levels = (RAMP * 4095).round().astype(int)
    row = b"".join(
        bytes([one >> 4, (one & 15) << 4 | two >> 8, two & 255])
        for one, two in levels.reshape(-1, 2).tolist()
    )
    return tiff(SIZE, 12, 1, row * SIZE)


def tiff(size: int, bits: int, photometric: int, data: bytes, sample_format: int = 1) -> bytes:
    tags = {256: size, 257: size, 258: bits, 259: 1, 262: photometric, 277: 1, 278: size}
    tags |= {273: 200, 279: len(data), 339: sample_format}
    entries = b"".join(
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items())
    )
    head = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + struct.pack("<I", 0)
    return head.ljust(200, b"\0") + data


RAMPS: dict[str, Callable[[], bytes]] = {
    "8-bit PNG": lambda: ramp("PNG", "L"),
    "16-bit PNG": lambda: ramp("PNG", "I;16"),
    "16-bit TIFF": lambda: ramp("TIFF", "I;16"),
    "16-bit TIFF, big-endian": lambda: ramp("TIFF", "I;16B"),
    "16-bit PGM": grey_pgm,
    "12-bit TIFF": twelve_bit_tiff,
}


@pytest.mark.parametrize("kind", RAMPS)
def test_grey_keeps_its_levels(kind: str) -> None:
    pixels = Transform(Resize(size=SIZE, interpolation="nearest"))(RAMPS[kind]())
    wanted = RAMP * 255
    assert np.abs(pixels - wanted[None, :, None]).max() <= 0.51


def transparent(mode: str) -> bytes:
    """Black, all of it transparent."""
    if mode == "P":
        image = Image.new("P", (SIZE, SIZE), 0)
        image.putpalette([0, 0, 0, 255, 0, 0])
        return saved(image, "PNG", transparency=0)
    return saved(Image.new(mode, (SIZE, SIZE), (0, 0, 0, 0) if mode == "RGBA" else (0, 0)), "PNG")


def animation() -> bytes:
    frames = [Image.new("L", (SIZE, SIZE), level) for level in (255, 0, 0)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


def turned() -> bytes:
    """Black above white, and a note that the camera stood on its head."""
    image = Image.new("L", (SIZE, SIZE), 255)
    image.paste(0, (0, 0, SIZE, SIZE // 2))
    exif = Image.Exif()
    exif[274] = 3
    return saved(image, "PNG", exif=exif)


PICTURES: dict[str, tuple[Callable[[], bytes], list[int]]] = {
    "CMYK JPEG": (lambda: saved(Image.new("CMYK", (SIZE, SIZE)), "JPEG"), WHITE),
    "1 bit": (lambda: saved(Image.new("1", (SIZE, SIZE), 1), "PNG"), WHITE),
    "YCbCr": (lambda: saved(Image.new("YCbCr", (SIZE, SIZE), (0, 128, 128)), "JPEG"), BLACK),
    "RGBA": (lambda: transparent("RGBA"), WHITE),
    "grey with alpha": (lambda: transparent("LA"), WHITE),
    "palette with alpha": (lambda: transparent("P"), WHITE),
    "first frame of a GIF": (animation, WHITE),
    "turned by EXIF": (turned, WHITE),
    "WebP": (lambda: saved(Image.new("RGB", (SIZE, SIZE), "#808080"), "WEBP", lossless=True), GREY),
    "one pixel": (lambda: saved(Image.new("RGB", (1, 1), "white"), "BMP"), WHITE),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_of_all_kinds_are_read(kind: str) -> None:
    make, colour = PICTURES[kind]
    assert Transform(Resize(size=SIZE, interpolation="nearest"))(make())[0, 0].tolist() == colour


def png(depth: int, colour: int, pixels: Any, hidden: list[int] | None = None) -> bytes:
    """Write a PNG of any depth, (height, width, channels), by hand."""
    rows = np.asarray(pixels).reshape(len(pixels), -1)
    packed = b""
    for row in rows:
        bits = "".join(f"{value:0{depth}b}" for value in row)
        bits += "0" * (-len(bits) % 8)
        packed += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    header = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(packed)), (b"IEND", b"")]
    if hidden is not None:
        chunks.insert(1, (b"tRNS", struct.pack(f">{len(hidden)}H", *hidden)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


EXACT = Transform(Resize(size=4, interpolation="nearest"))


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_the_grey_that_a_png_calls_transparent_becomes_white(depth: int, place: int) -> None:
    top = 2**depth - 1
    levels = [0, min(1, top), top, top // 2]
    hidden = levels[place]
    found = EXACT(png(depth, 0, [levels] * 4, [hidden]))
    wanted = [255 if each == hidden else 255 * each / top for each in levels]
    assert np.abs(found - np.array(wanted)[:, None]).max() <= 0.51


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("depth", [8, 16])
def test_the_colour_that_a_png_calls_transparent_becomes_white(depth: int, place: int) -> None:
    top = 2**depth - 1
    # The last two differ in their lower bytes alone, where there are 16 bits.
    colours = [[0, 0, 0], [top, 0, 9], [top // 2, 1, 2], [top // 2, 2, 1]]
    found = EXACT(png(depth, 2, [colours] * 4, colours[place]))
    wanted = np.array(colours) * (255 / top)
    wanted[place] = 255
    assert np.abs(found - wanted).max() < 1


@pytest.mark.parametrize(
    ("depth", "colour", "channels"), [(8, 4, 2), (16, 4, 2), (8, 6, 4), (16, 6, 4)]
)
def test_alpha_mixes_with_white(depth: int, colour: int, channels: int) -> None:
    top = 2**depth - 1
    pixels = np.random.default_rng(depth).integers(0, top + 1, (4, 4, channels))
    pixels[0, :2, -1] = 0, top
    alpha = pixels[..., -1:] / top
    wanted = 255 * (alpha * pixels[..., :-1] / top + 1 - alpha)
    # Of 16 bits of colour the upper 8 are kept.
    assert np.abs(EXACT(png(depth, colour, pixels)) - wanted).max() < (0.51 if depth == 8 else 1.6)


@pytest.mark.parametrize("form", ["TIFF", "PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_is_stored_as_it_is_seen(form: str, orientation: int) -> None:
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:4, :8] = 255  # the corner that EXIF calls the first row and column
    exif = Image.Exif()
    exif[274] = orientation
    content = saved(Image.fromarray(pixels), form, exif=exif)
    images = EncodedImages(lambda _: iter([("x", content)]), form)
    split = Split(images, np.zeros(1, np.int64))
    transform = make_transform(Resize(size=64, interpolation="nearest"), split)
    height, width = (16, 8) if orientation > 4 else (8, 16)
    found = transform(content)
    assert transform.stored == found.shape[:2] == (height, width)
    top, left = orientation in (1, 2, 5, 6), orientation in (1, 4, 5, 8)
    corner = found[(0 if top else height // 2) :, (0 if left else width // 2) :]
    assert corner[1 : height // 2 - 1, 1 : width // 2 - 1].min() > 200
    assert found.astype(int).sum() < 255 * 3 * 8 * 16 / 3


# -- images that are refused -----------------------------------------------------------------


def float_tiff() -> bytes:
    return saved(Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)), "TIFF")


def integer_tiff() -> bytes:
    return saved(Image.fromarray(np.arange(64, dtype=np.int32).reshape(8, 8)), "TIFF")


def bomb() -> bytes:
    """A PNG of 40,000 x 40,000 pixels in 40 bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "float TIFF": (float_tiff, "floating-point numbers.*save it with 8 or 16 bits"),
    "32-bit TIFF": (integer_tiff, "32-bit integers.*save it with 8 or 16 bits"),
    "signed 8-bit TIFF": (lambda: tiff(4, 8, 1, bytes([0, 50, 156, 127] * 4), 2), "are signed int"),
    "signed 16-bit TIFF": (lambda: tiff(4, 16, 1, bytes(32), 2), "are 32-bit integers"),
    "white is zero": (
        lambda: tiff(4, 16, 0, bytes(32)),
        "zero is white; save it with zero as black",
    ),
    "truncated JPEG": (lambda: saved(Image.effect_noise((99, 99), 50), "JPEG")[:2000], "truncated"),
    "truncated PNG": (
        lambda: saved(Image.effect_noise((99, 99), 50), "PNG")[:2000],
        "not an image",
    ),
    "nothing in it": (lambda: b"", "it is empty"),
    "a text": (lambda: b"where are the cats?", "of no format that Pillow reads"),
    "SVG": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "of no format that Pillow"),
    "huge": (bomb, "decompression bomb"),
    "a pointer of git-lfs": (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "a pointer of git-lfs, not the file itself; fetch that: git lfs pull",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_image_that_cannot_be_read_is_named(pets: Path, kind: str) -> None:
    make, reason = REFUSED[kind]
    (pets / "train" / "cat" / "bad.png").write_bytes(make())
    with pytest.raises(DatasetError, match=rf"datasets\.pets: .*\n.*train/cat/bad.png: .*{reason}"):
        made(pets, train_size=5)
    skipping = made(pets, corrupt="skip")
    (skipped,) = skipping.metadata.skipped
    assert skipped.startswith("train/cat/bad.png: not an image")
    assert "0x" not in skipped  # an address in memory: another one every time


def test_a_narrow_image_is_not_blown_up_to_be_cropped() -> None:
    content = saved(Image.new("L", (1, 60_000)), "PNG")
    assert Transform(Resize(size=SIZE, interpolation="nearest"))(content).shape == (SIZE, SIZE, 3)
    with pytest.raises(ValueError, match="too narrow to crop: 1 x 60000"):
        Transform(Resize(size=224, interpolation="nearest", crop=0.9))(content)


# -- folders ---------------------------------------------------------------------------------


def add_files(*names: str) -> Callable[[Path], None]:
    def add(pets: Path) -> None:
        for name in names:
            (pets / name).parent.mkdir(parents=True, exist_ok=True)
            (pets / name).write_bytes(b"junk")

    return add


@pytest.mark.parametrize(
    "name",
    [
        "train/cat/Thumbs.db",
        "train/cat/.DS_Store",
        "train/cat/._0.png",
        "train/desktop.ini",
        "train/README.txt",
        "train/__MACOSX",
        "test/.ipynb_checkpoints",
    ],
)
def test_litter_is_ignored_and_recorded(pets: Path, name: str) -> None:
    add_files(name)(pets)
    assert made(pets).metadata.ignored == (name,)


def empty_class(pets: Path) -> None:
    (pets / "train" / "bird").mkdir()


def rename_test_class(pets: Path) -> None:
    (pets / "test" / "dog").rename(pets / "test" / "Dog")


def capital_twin(pets: Path) -> None:
    (pets / "train" / "Cat").mkdir()
    Image.new("L", (2, 2)).save(pets / "train" / "Cat" / "x.png")


def two_forms_of_unicode(pets: Path) -> None:
    for name in ("caf\u00e9", "cafe\u0301"):
        (pets / "train" / name).mkdir()


def link_to_itself(pets: Path) -> None:
    (pets / "train" / "cat" / "loop").symlink_to("loop")


def link_to_the_parent(pets: Path) -> None:
    (pets / "train" / "cat" / "up").symlink_to("..")


def named_pipe(pets: Path) -> None:
    os.mkfifo(pets / "train" / "cat" / "pipe.png")


def name_of_another_encoding(pets: Path) -> None:
    (pets / "train" / "cat" / os.fsdecode("k\xe4tzchen.png".encode("latin-1"))).write_bytes(b"x")


def all_in_one_folder(pets: Path) -> None:
    for path in sorted(pets.rglob("*.png")):
        path.rename(pets / "train" / f"{path.parent.name}{path.parents[1].name}{path.name}")
    for name in ("cat", "dog"):
        (pets / "train" / name).rmdir()


def no_split(pets: Path) -> None:
    (pets / "test").rename(pets / "train" / "test")


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an empty class": (
        empty_class,
        r"classes: the study says 2, 3 found\n  the classes are: bird, cat, dog\n"
        r"datasets\.pets: class 'bird' has no training example",
    ),
    "a class in capitals for testing": (
        rename_test_class,
        "test: found the classes Dog; allowed: .*, cat, dog",
    ),
    "classes that differ in capitals": (
        capital_twin,
        "the classes are: Cat, cat, dog; nearly the same: 'Cat' and 'cat'",
    ),
    "one name in two forms of Unicode": (two_forms_of_unicode, "two folders of the class 'café'"),
    "a link to itself": (link_to_itself, "loop'?: a symbolic link that leads nowhere"),
    "a link to a folder above": (link_to_the_parent, "up'?: a symbolic link to"),
    "a named pipe": (named_pipe, "pipe.png: neither a file nor a folder"),
    "a name that is no UTF-8": (name_of_another_encoding, "the name is no valid UTF-8; rename it"),
    "images without classes": (all_in_one_folder, "train: found no folder in it; allowed: one of"),
    "a test folder among classes": (
        no_split,
        "train: found the folder test: words for splits; allowed: a folder of images for each class",
    ),
    "a test folder that is not there": (
        lambda pets: (pets / "test").rename(pets / "other"),
        "test: no such folder; it holds a folder of images for each class",
    ),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_cannot_be_right_is_refused(pets: Path, kind: str) -> None:
    change, message = FOLDERS[kind]
    change(pets)
    assert source_fingerprint(section(pets)), "the workflow reads this before the job runs"
    with pytest.raises(DatasetError, match=rf"(?s)datasets\.pets.*{message}"):
        made(pets)


def test_counts_that_differ_are_listed_up_to_five(pets: Path) -> None:
    for split in ("train", "test"):
        for number in range(6):
            shutil.copytree(pets / split / "dog", pets / split / f"dog{number}")
    with pytest.raises(DatasetError) as refusal:
        made(pets, classes=8, train_size=16, test_size=8, train_counts=3)
    first, *_, last = str(refusal.value).splitlines()
    assert "train_counts: the study says 3 of class 'cat', 2 found" in first
    assert last == "  and so of 3 more classes"
    assert str(refusal.value).count("train_counts") == 5


def test_a_hidden_file_may_have_any_name(pets: Path) -> None:
    (pets / "train" / "cat" / os.fsdecode(b".\xe4")).touch()
    assert made(pets).metadata.ignored == ("train/cat/.\ufffd",)


def test_a_folder_that_may_not_be_read_is_named(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterate = Path.iterdir

    def refuse(path: Path) -> Any:
        if path.name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return iterate(path)

    monkeypatch.setattr(Path, "iterdir", refuse)  # root may read everything
    with pytest.raises(DatasetError, match="dog: cannot be read: Permission denied"):
        made(pets)


def test_forms_of_unicode_are_one_class_across_splits(pets: Path) -> None:
    for split, name in (("train", "caf\u00e9"), ("test", "cafe\u0301")):
        (pets / split / "dog").rename(pets / split / name)
    assert made(pets).metadata.classes == ("caf\u00e9", "cat")


def test_the_folder_itself_may_be_a_link(pets: Path) -> None:
    (pets.parent / "link").symlink_to(pets / "train")
    whole = {"path": str(pets.parent / "link"), "train_folders": ["."]}
    cut = whole | {"test_from_train": 0.35, "seed": 3}
    assert made(pets, source=cut, train_size=3, test_size=1).metadata.classes == ("cat", "dog")


def test_a_class_without_test_example_is_said(pets: Path, caplog: pytest.LogCaptureFixture) -> None:
    (pets / "test" / "dog" / "0.png").unlink()
    made(pets, test_size=1)
    assert "pets: no test example of dog" in caplog.text
