"""Tests of atomic writes, fingerprints, and messages about files."""

import errno
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dpsweep.base.files import (
    atomic_folder,
    atomic_path,
    fingerprint,
    write_json,
)
from tests.waiting import called


def test_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), atomic_path(path) as partial:
        partial.write_text("half of")
        raise RuntimeError
    assert path.read_text() == '{\n  "old": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_its_name_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename that only the cache of the disk has is lost by a power cut."""
    path, events = tmp_path / "result.json", list[tuple[int, bool]]()
    monkeypatch.setattr(
        os, "fsync", lambda opened: events.append((os.fstat(opened).st_ino, path.exists()))
    )
    write_json(path, {"new": 1})
    assert events == [(path.stat().st_ino, False), (tmp_path.stat().st_ino, True)]


FULL_DISK = """
import resource
from pathlib import Path
import numpy as np
from dpsweep.data.prepared import write_array
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # simulates the full disk
write_array(Path("train.npy").absolute(), [np.ones((2, 100, 99), "u1")], 2)
"""


def test_writers_name_the_file_of_a_full_disk(tmp_path: Path) -> None:
    said = called([sys.executable, "-B", "-c", FULL_DISK], tmp_path, status=1).stderr
    last_line = said.strip().splitlines()[-1]
    assert last_line.startswith("OSError") and str(tmp_path / "train.npy") in last_line
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """A link to the folder stays, and nothing is left beside it."""
    folder, link = tmp_path / "disk" / "pets", tmp_path / "pets"
    link.symlink_to(folder)
    for content in ("one", "two"):
        with atomic_folder(link) as made:
            (made / content).touch()
            assert content == "one" or [each.name for each in folder.iterdir()] == ["one"]
    with pytest.raises(KeyboardInterrupt), atomic_folder(link) as made:
        (made / "three").touch()
        raise KeyboardInterrupt
    assert [each.name for each in link.iterdir()] == ["two"]
    assert link.is_symlink() and [*folder.parent.iterdir()] == [folder]


def test_what_a_killed_call_left_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not the parts of calls that run, of the same folder or of one whose name begins alike.

    Also on NFS, which locks only what is open for writing, and so no folder.
    """
    flock = fcntl.flock

    def of_nfs(file: Any, operation: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    program = f"""
import os, signal
from pathlib import Path
from dpsweep.base.files import atomic_folder
with atomic_folder(Path({str(tmp_path / "pets")!r})) as made:
    (made / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    called([sys.executable, "-B", "-c", program], status=-signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    with atomic_folder(tmp_path / "pets-small"):
        assert left.exists()
    with atomic_folder(tmp_path / "pets") as first:
        assert not left.exists()
        with atomic_folder(tmp_path / "pets"), atomic_folder(tmp_path / "pets-small"):
            assert first.is_dir()


def test_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    one = {"a": {"b": 1.5, "ä": [{"c": None, "": "x"}]}, "d": True}
    other = {"d": True, "a": {"ä": [{"": "x", "c": None}], "b": 1.5}}
    assert fingerprint(one) == fingerprint(other)
