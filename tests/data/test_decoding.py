"""Tests of decoding: images of all formats, refused images, stopped preparations, and bounded memory."""

import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.pictures import LFS, fill, picture, red, saved, section

from dpsweep.data import DatasetError, Split
from dpsweep.data.images import EncodedImages, Transform, decode_images, make_transform
from dpsweep.data.prepare import prepare
from dpsweep.data.prepared import Resize

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


def animation() -> bytes:
    frames = [Image.new("L", (SIZE, SIZE), level) for level in (255, 0, 0)]
    return saved(frames[0], "GIF", save_all=True, append_images=frames[1:])


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
    "first frame of a GIF": (animation(), 255),
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
    "pages": (
        saved(
            Image.new("L", (8, 8)),
            "TIFF",
            save_all=True,
            append_images=[Image.new("L", (8, 8))] * 2,
        ),
        "3 pages; allowed: one, so save each page as an image",
    ),
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


def encoded(size: tuple[int, int], seed: int = 0, form: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels), form)


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


# -- files ---------------------------------------------------------------------------------------


SMALL = Transform(Resize(size=2, interpolation="nearest"))


def test_animations_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In every format; the second picture of a photograph is its preview."""
    several = [
        saved(
            Image.new("RGB", (8, 8)),
            form,
            save_all=True,
            append_images=[Image.new("RGB", (8, 8), "white")],
        )
        for form in ("GIF", "PNG", "WEBP", "MPO", "TIFF")
    ]
    split = in_memory(*several, plain("RGB", "black", "GIF"))
    left, errors = decode_images(split, SMALL, tmp_path / "train.npy")
    assert len(left.labels) == 5 and len(errors) == 1 and "2 pages" in errors[0]
    assert np.load(tmp_path / "train.npy").max() < 10
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


def test_decoding_in_threads_keeps_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsweep.data.images._CHUNK", 3)
    images = in_memory(*(b"" if number == 5 else picture(number) for number in range(10)))
    labelled = Split(images.inputs, np.arange(10) % 3)
    split, corrupt = decode_images(labelled, SMALL, tmp_path / "train.npy")
    assert split.labels.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0]
    assert red(np.load(tmp_path / "train.npy")) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [each.split(":")[0] for each in corrupt] == ["5"]
