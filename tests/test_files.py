"""Tests of atomic writes, fingerprints, and messages about files."""

import os
from pathlib import Path

import pytest

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import atomic_path, canonical_json, fingerprint, write_json, write_text
from dpsweep.study.paths import Paths
from tests.waiting import error_of_a_full_disk


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


WRITERS = {
    "text": "partial.write_text('x' * 10_000)",
    "numpy": "np.save(partial.open('wb'), np.zeros(10_000))",
    "parquet": "pq.write_table(pa.table({'a': np.random.rand(10_000)}), partial)",
    "safetensors": "save_file({'a': np.zeros(10_000)}, partial)",
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_error_of_a_full_disk_names_the_file(tmp_path: Path, write: str) -> None:
    path = tmp_path / "large.txt"
    last_line = error_of_a_full_disk(
        "from pathlib import Path\n"
        "import numpy as np, pyarrow as pa, pyarrow.parquet as pq\n"
        "from safetensors.numpy import save_file\n"
        "from dpsweep.base.files import atomic_path",
        f"with atomic_path(Path({str(path)!r})) as partial:\n    {write}",
    )
    assert last_line.startswith("OSError") and str(path) in last_line
    assert list(tmp_path.iterdir()) == []


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "content")
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    one = {"a": {"b": 1.5, "ä": [{"c": None, "": "x"}]}, "d": True}
    other = {"d": True, "a": {"ä": [{"": "x", "c": None}], "b": 1.5}}
    assert fingerprint(one) == fingerprint(other)


DIFFERENT = [
    *(None, False, 0, 1, 2**70, 0.1, 0.1 + 2**-56, -0.0, float("inf"), "", "1", "null", "ä", "a\u0308"),
    *([], [None], [1, 2], [2, 1], [[1], 2], {}, {"": 1}, {"a": 1}, {"a": "1"}, {"a": {"b": 1}}, {"a.b": 1}),
]  # fmt: skip


def test_different_values_have_different_canonical_json() -> None:
    assert len(set(map(canonical_json, DIFFERENT))) == len(DIFFERENT)


def test_results_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DpsweepError, match="file is not a folder"):
        Paths(tmp_path / "file" / "results").check_writable()
    Paths(tmp_path / "new" / "results").check_writable()
    assert not (tmp_path / "new").exists()
