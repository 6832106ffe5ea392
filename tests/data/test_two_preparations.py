"""Tests of two simultaneous preparations of a dataset."""

import threading
from pathlib import Path

import pytest
from tests.data.pictures import fill, section
from tests.waiting import PATIENCE

from dpsweep.data import Split
from dpsweep.data import prepare as module
from dpsweep.data.prepare import prepare
from dpsweep.data.prepared import PreparedDataset


def test_slower_preparation_uses_the_result_of_the_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            fill(tmp_path / "pets" / split / name, 2)
    dataset, out = section(tmp_path / "pets", 4, 4), tmp_path / "out"
    decode, ready, finished = module.decode_images, threading.Event(), threading.Event()

    def slowly(images: Split, *rest: object) -> tuple[Split, list[str]]:
        found = decode(images, *rest)  # type: ignore[arg-type]
        if threading.current_thread() is slower:
            ready.set()
            assert finished.wait(PATIENCE)
        return found

    made: list[PreparedDataset] = []
    monkeypatch.setattr(module, "decode_images", slowly)
    slower = threading.Thread(target=lambda: made.append(prepare("pets", dataset, out)))
    slower.start()
    assert ready.wait(PATIENCE)
    first = prepare("pets", dataset, out)
    written = (out / "metadata.json").stat().st_mtime_ns
    finished.set()
    slower.join()
    assert made[0].metadata == first.metadata
    assert (out / "metadata.json").stat().st_mtime_ns == written
    assert not [path for path in out.iterdir() if path.is_dir()]
