"""A pipe in the place of a file is refused at once: reading it would wait for ever."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dpsweep.base.errors import DpsweepError
from dpsweep.data.tokenizer import prepare as prepare_tokenizer
from dpsweep.models.backbone import Architecture
from dpsweep.models.weights import load_weights
from dpsweep.study import load_study
from dpsweep.study.config import Backbone
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
    """Let whoever waits for the pipe go on."""
    with suppress(OSError):  # nobody waits
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    os.mkfifo(file)
    patience = threading.Timer(20, end, [file])
    patience.start()
    with pytest.raises(DpsweepError, match=r"pipe or a device|no such file|found no study"):
        READERS[name](file)
    assert patience.is_alive()
    patience.cancel()
