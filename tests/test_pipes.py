"""Tests that a pipe instead of a file is refused at once, because reading it would block for ever."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dpsweep.base.errors import DpsweepError
from dpsweep.config import Backbone, Dataset
from dpsweep.data.prepare import prepare_tokenizer
from dpsweep.models.architecture import Architecture
from dpsweep.models.weights import load_weights
from dpsweep.planning.cost import stored_bytes
from dpsweep.study import load_study
from dpsweep.study.find import only_study


def tokenizer(file: Path) -> None:
    section = {
        **{"title": "BERT", "library": "transformers", "architecture": "distilbert"},
        **{"weights": {"kind": "random"}, "tokenizer": {"kind": "file", "path": str(file)}},
    }
    prepare_tokenizer("bert", Backbone.model_validate(section), {}, file.with_suffix(".out"))


def references(file: Path) -> None:
    study = file.with_name("mine.yaml")
    study.write_text(f"references: {file.name}")
    load_study(study)


def weights(file: Path) -> None:
    load_weights(Architecture(library="timm", name="vit_tiny_patch16_224", arguments={}), file)


READERS: dict[str, Callable[[Path], object]] = {
    "study.yaml": load_study,
    "references.csv": references,
    "tokenizer.json": tokenizer,
    "vocab.txt": tokenizer,
    "vit.safetensors": weights,
    "found.yaml": lambda file: only_study(file.parent),
}


def end(pipe: Path) -> None:
    """Unblock the readers of a pipe."""
    with suppress(OSError):  # there is no reader
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture
def patience() -> Iterator[Callable[[Path], threading.Timer]]:
    """Return a function that unblocks the readers of a pipe after 20 seconds."""
    timers: list[threading.Timer] = []

    def wait(pipe: Path) -> threading.Timer:
        timers.append(threading.Timer(20, end, [pipe]))
        timers[0].start()
        return timers[0]

    yield wait
    timers[0].cancel()


@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_a_pipe(
    name: str, tmp_path: Path, patience: Callable[[Path], threading.Timer]
) -> None:
    file = tmp_path / name
    os.mkfifo(file)
    timer = patience(file)
    with pytest.raises(DpsweepError, match=r"pipe or a device|no such file|found no study"):
        READERS[name](file)
    assert timer.is_alive()


def test_plan_does_not_read_a_pipe_among_tables(
    tmp_path: Path, patience: Callable[[Path], threading.Timer]
) -> None:
    os.mkfifo(tmp_path / "train.parquet")
    timer = patience(tmp_path / "train.parquet")
    section = {
        **{"title": "Pets", "classes": 2, "train_size": 2, "test_size": 2, "image_size": 8},
        "source": {"kind": "hub", "id": "a/pets", "path": str(tmp_path)},
    }
    assert stored_bytes(Dataset.model_validate(section)) == 3 * 8 * 8
    assert timer.is_alive()
