"""Tests of two simultaneous preparations of a dataset, and of resuming a killed one."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.data.pictures import fill, section
from tests.waiting import PATIENCE

from dpsweep.data import Split, unfinished
from dpsweep.data import prepare as module
from dpsweep.data.prepare import prepare
from dpsweep.data.prepared import PreparedDataset


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(parent: Path, process: int) -> Path:
    folder = parent / f"{socket.gethostname()}-{process}"
    folder.mkdir(parents=True)
    (folder / "train.json").write_text("decoded")
    return folder


def test_folder_of_a_killed_preparation_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = left_by(tmp_path, ended_process())
    with monkeypatch.context() as patch:  # another process removes the folder first
        patch.setattr(unfinished, "_is_abandoned", Path.rmdir)
        assert list(unfinished.claim(tmp_path).iterdir()) == []
    own = unfinished.claim(tmp_path)
    assert (own / "train.json").read_text() == "decoded"
    assert not left.exists()


def test_folder_of_a_running_preparation_is_not_touched(tmp_path: Path) -> None:
    theirs = left_by(tmp_path, os.getppid())
    elsewhere, foreign = tmp_path / "another-host-1", tmp_path / f"{socket.gethostname()}-backup"
    elsewhere.mkdir()
    foreign.mkdir()
    own = unfinished.claim(tmp_path)
    assert list(own.iterdir()) == []
    assert (theirs / "train.json").exists() and elsewhere.exists() and foreign.exists()
    os.utime(elsewhere, (0, 0))  # the last write was long ago
    own.rmdir()
    assert unfinished.claim(tmp_path) == own
    assert not elsewhere.exists()


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
    # Folders are named after processes; here after threads, which simulate the processes.
    monkeypatch.setattr(unfinished, "claim", lambda path: path / threading.current_thread().name)
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
