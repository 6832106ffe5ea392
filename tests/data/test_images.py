"""Encoded images to pixels: the transform, resuming, corrupt images, memory, space."""

import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from tests.waiting import children, running, wait_for

from dpsweep.base.files import read_json
from dpsweep.data import DatasetError, Split
from dpsweep.data.images import EncodedImages, Transform, decode_images, make_transform
from dpsweep.data.resize import Resize
from dpsweep.data.unfinished import progress


def encoded(size: tuple[int, int], seed: int = 0, form: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(*size[::-1], 3), dtype=np.uint8)
    stream = BytesIO()
    Image.fromarray(pixels).resize(size).save(stream, form)
    return stream.getvalue()


@pytest.mark.parametrize("size", [(300, 200), (200, 301), (50, 60), (224, 224), (97, 96)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_crop_is_the_transform_of_timm(size: tuple[int, int], interpolation: str) -> None:
    content = encoded(size)
    reference = timm.data.create_transform(
        (3, 96, 96),
        interpolation=interpolation,
        mean=(0, 0, 0),
        std=(1, 1, 1),
        crop_pct=0.9,
    )
    wanted = reference(Image.open(BytesIO(content)))
    found = Transform(Resize(size=96, interpolation=interpolation, crop=0.9))(content)
    assert torch.equal(torch.from_numpy(found.copy()).permute(2, 0, 1) / 255, wanted)


def test_without_crop_the_whole_image_becomes_a_square() -> None:
    content = encoded((30, 10))
    wanted = Image.open(BytesIO(content)).resize((8, 8), Image.Resampling.BICUBIC)
    assert np.array_equal(
        Transform(Resize(size=8, interpolation="bicubic"))(content), np.asarray(wanted)
    )


def in_memory(*contents: bytes) -> Split:
    named = [(str(number), content) for number, content in enumerate(contents)]
    images = EncodedImages(lambda start: iter(named[start:]), named)
    return Split(images, np.zeros(len(named), np.int64))


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
def test_images_of_one_small_size_are_stored_as_they_are(
    sizes: list[tuple[int, int]], stored: tuple[int, int] | None
) -> None:
    resize = Resize(size=224, interpolation="bicubic")
    train = in_memory(*(encoded(size, seed) for seed, size in enumerate(sizes[:-1])))
    test = in_memory(encoded(sizes[-1]), b"corrupt", b"")
    transform = make_transform(resize, train, test)
    assert transform.stored == stored
    height, width = stored or (224, 224)
    pixels = transform(encoded(sizes[-1]))
    assert pixels.shape == transform.shape == (height, width, 3)
    if stored:
        assert np.array_equal(pixels, np.asarray(Image.open(BytesIO(encoded(sizes[-1])))))


def test_a_picture_that_is_turned_counts_as_it_is_seen() -> None:
    stream = BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 30)).save(stream, "JPEG", exif=exif)
    transform = make_transform(
        Resize(size=64, interpolation="bicubic"), in_memory(stream.getvalue())
    )
    assert transform.shape == transform(stream.getvalue()).shape == (20, 30, 3)


def test_headers_are_read_up_to_the_first_large_image() -> None:
    reader = Reader()
    make_transform(Resize(size=4, interpolation="nearest"), reader.images())
    assert reader.given == [0]


class Reader:
    """Ten images whose red level is their position; notes what is read, and may stop."""

    def __init__(self, count: int = 10, corrupt: tuple[int, ...] = (), stop: int | None = None):
        self.count, self.corrupt, self.stop = count, corrupt, stop
        self.given: list[int] = []

    def __call__(self, start: int) -> Iterator[tuple[str, bytes]]:
        for position in range(start, self.count):
            if position == self.stop:
                raise KeyboardInterrupt
            self.given.append(position)
            stream = BytesIO()
            Image.new("RGB", (4, 4), (position, 0, 0)).save(stream, "PNG")
            content = b"" if position in self.corrupt else stream.getvalue()
            yield f"image {position}", content

    def images(self, identity: Any = "ten") -> Split:
        return Split(EncodedImages(self, identity), np.arange(self.count) % 3)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode in this process, a block of three at a time."""
    monkeypatch.setattr("dpsweep.data.images._BLOCK", 3)

    def inline(images: EncodedImages, transform: Transform, start: int, count: int) -> Any:
        from dpsweep.data.images import _decode

        for each in images.read(start):
            yield from _decode(transform, [each])

    monkeypatch.setattr("dpsweep.data.images._decoded", inline)


SMALL = Transform(Resize(size=2, interpolation="nearest"))


def levels(path: Path) -> list[int]:
    return [int(level) for level in np.load(path)[:, 0, 0, 0]]


@pytest.mark.usefixtures("small_blocks")
def test_a_stopped_preparation_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        decode_images(Reader(corrupt=(1,), stop=8).images(), SMALL, tmp_path, "train")
    # What is written after the last record does not count.
    with (tmp_path / "train.npy").open("ab") as stream:
        stream.write(b"half an image")
    again = Reader(corrupt=(1,))
    split, corrupt = decode_images(again.images(), SMALL, tmp_path, "train")
    assert again.given == [6, 7, 8, 9]
    assert levels(tmp_path / "train.npy") == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert split.labels.tolist() == [0, 2, 0, 1, 2, 0, 1, 2, 0]
    assert [each.split(":")[0] for each in corrupt] == ["image 1"]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("change", ["images", "transform", "record"])
def test_what_was_made_of_something_else_is_not_used(tmp_path: Path, change: str) -> None:
    decode_images(Reader().images(), SMALL, tmp_path, "train")
    if change == "record":
        (tmp_path / "train.json").write_text('{"identity')
    again = Reader()
    identity = "others" if change == "images" else "ten"
    transform = (
        Transform(Resize(size=3, interpolation="nearest")) if change == "transform" else SMALL
    )
    decode_images(again.images(identity), transform, tmp_path, "train")
    assert again.given == list(range(10))
    assert levels(tmp_path / "train.npy") == list(range(10))


def test_too_small_a_disk_is_refused_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(0, 0, 119))
    reader = Reader()
    with pytest.raises(DatasetError, match="are needed for the images"):
        decode_images(reader.images(), SMALL, tmp_path, "train")  # 120 bytes
    assert reader.given == []


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with progress("train", 3, 10) as advance:
        advance(4)
        advance(3)
    assert "train" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()


def test_progress_is_a_line_now_and_then_in_a_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dpsweep")
    seconds = iter([0.0, 4.0, 20.0, 21.0])
    monkeypatch.setattr("time.monotonic", lambda: next(seconds))
    with progress("train images", 100, 600) as advance:
        for _ in range(3):
            advance(100)
    assert [record.getMessage() for record in caplog.records] == [
        "train images: 300 of 600, 10 a second, 30 s left"
    ]


MANY = """
import re, sys
from pathlib import Path
import numpy as np
from dpsweep.data import Split, images as module
from dpsweep.data.images import EncodedImages, Transform, decode_images
from dpsweep.data.resize import Resize

def read(start):
    random = np.random.default_rng(0)
    content = Path(sys.argv[1]).read_bytes()
    for position in range(start, int(sys.argv[3])):
        yield str(position), content + random.bytes(100_000)

if __name__ == "__main__":
    module._MOST_PROCESSES = 2  # each holds pixels: the same memory on every machine
    images = Split(EncodedImages(read, "many"), np.zeros(int(sys.argv[3]), np.int64))
    decode_images(images, Transform(Resize(size=128, interpolation="bilinear")), Path(sys.argv[2]), "train")
    status = Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
"""


def start_many(folder: Path, count: int) -> "subprocess.Popen[str]":
    """Prepare many images of 100 kB that become pixels of 49 kB, in a process of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "image.jpg").write_bytes(encoded((64, 64), form="JPEG"))
    (folder / "many.py").write_text(MANY)
    command = [sys.executable, str(folder / "many.py"), str(folder / "image.jpg")]
    return subprocess.Popen(
        [*command, str(folder / "out"), str(count)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    peaks = []
    for count in (600, 4000):
        process = start_many(tmp_path / str(count), count)
        output, _ = process.communicate()
        assert process.returncode == 0
        peaks.append(int(output))
    # 3,400 more images are 340 MB encoded and 167 MB as pixels.
    assert peaks[1] - peaks[0] < 50, f"{peaks} MB"
    assert peaks[1] < 250, f"{peaks} MB"


@pytest.mark.slow
def test_a_killed_preparation_goes_on_and_leaves_no_process(tmp_path: Path) -> None:
    record = tmp_path / "out" / "train.json"
    process = start_many(tmp_path, 4000)
    wait_for(record.exists, "record of what is done", process)
    readers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    read = read_json(record)["done"]
    assert 0 < read < 4000
    wait_for(lambda: not any(map(running, readers)), "end of the children")
    written = (tmp_path / "out" / "train.npy").stat().st_mtime_ns
    second = start_many(tmp_path, 4000)
    assert second.wait() == 0
    assert (tmp_path / "out" / "train.npy").stat().st_mtime_ns > written
    pixels = np.load(tmp_path / "out" / "train.npy", mmap_mode="r")
    assert pixels.shape == (4000, 128, 128, 3)
    assert np.array_equal(pixels[0], pixels[-1])
