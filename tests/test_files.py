"""Atomic writes: all or nothing, and an error that names the file."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import atomic_path, canonical_json, fingerprint, write_json, write_text
from dpsweep.study.paths import Paths
from tests.waiting import called


def test_a_failing_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), atomic_path(path) as partial:
        partial.write_text("half of")
        raise RuntimeError
    assert path.read_text() == '{\n  "old": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named_with_the_file_that_did_not_fit(tmp_path: Path) -> None:
    """A limit of 4 KiB a file stands in for a full disk.

    It holds for a process of its own: this one may be writing its output to a file.
    """
    path = tmp_path / "large.txt"
    program = (
        "import resource\n"
        "from pathlib import Path\n"
        "from dpsweep.base.files import write_text\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"write_text(Path({str(path)!r}), 'x' * 10_000)\n"
    )
    ended = called([sys.executable, "-B", "-c", program], status=1)
    last_line = ended.stderr.strip().splitlines()[-1]
    assert last_line.startswith("OSError") and str(path) in last_line
    assert list(tmp_path.iterdir()) == []


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "content")
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=5,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_fingerprint_does_not_depend_on_the_order_of_keys(value: dict[str, object]) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(value.items())))


@settings(max_examples=40)
@given(json_values, json_values)
def test_different_values_have_different_canonical_json(one: object, other: object) -> None:
    if one != other:
        assert canonical_json(one) != canonical_json(other)


def test_a_results_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DpsweepError, match="file is not a folder"):
        Paths(tmp_path / "file" / "results").check_writable()
    Paths(tmp_path / "new" / "results").check_writable()
    assert not (tmp_path / "new").exists()
