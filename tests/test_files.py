"""Tests of atomic writes, fingerprints, and messages about files."""

import os
from pathlib import Path

import pytest

from dpsweep.base.files import atomic_path, canonical_json, fingerprint, write_json


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
