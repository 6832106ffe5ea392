"""Helpers for tests: images of one colour, folders of images, sections of a study, an unreachable hub."""

from io import BytesIO
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from PIL import Image

from dpsweep.study.datasets import Dataset

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def saved(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def picture(level: int) -> bytes:
    """Return a PNG of one colour with this level of red."""
    return saved(Image.new("RGB", (6, 6), (level, 255 - level, 7)))


def fill(folder: Path, count: int, level: int = 0) -> None:
    """Write PNGs into a folder; the red of number i is level + i."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:03}.png").write_bytes(picture(level + number))


def section(path: Path, train: int, test: int, **keys: Any) -> Dataset:
    """Return the section of a folder with two classes; ``source`` has more keys of the source."""
    source = {"kind": "folder", "path": str(path)} | keys.pop("source", {})
    known = {"title": "Pets", "classes": 2, "image_size": 4, "train_size": train, "test_size": test}
    return Dataset.model_validate(known | {"source": source} | keys)


def offline(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make the hub unreachable, and return its empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "cache"))
    return folder / "cache"


def red(images: Any) -> list[int]:
    return images[:, 0, 0, 0].tolist()
