"""Releases that are killed at every stage: the ledger's line is written before the model appears."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.release.releases import FIXED, Content, release

from dpsweep.release import ledger as ledger_module
from dpsweep.release import train as release_training
from dpsweep.release.ledger import Ledger
from dpsweep.release.verify import verify
from dpsweep.study.paths import Paths


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, lambda *_, **__: die())


def after(owner: Any, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    made = getattr(owner, name)

    def last(*given: Any, **named: Any) -> None:
        made(*given, **named)
        die()

    return lambda patch: patch.setattr(owner, name, last)


def half_a_line(patch: pytest.MonkeyPatch) -> None:
    append = ledger_module._append

    def half(file: Path, written: bytes) -> None:
        append(file, written[: len(written) // 2])
        die()

    patch.setattr(ledger_module, "_append", half)


def moved(patch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def last(self: Path, target: Path) -> None:
        replace(self, target)
        if self.name == "release":
            die()

    patch.setattr(Path, "replace", last)


def killed(section: Content, paths: Paths, place: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Make a release in a fork of this process, and kill the fork at a place."""
    child = os.fork()
    if child == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:
                place(patch)
                release(section, paths)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize(
    ("place", "lines", "folder"),
    [
        (before(release_training, "train_release"), 0, False),
        (after(release_training, "train_release"), 0, False),
        (after(release_training, "save_parameters"), 0, False),
        (after(release_training, "write_text"), 0, False),
        (after(release_training, "write_checked_json"), 0, False),
        (half_a_line, 0, False),
        (after(Ledger, "add"), 1, False),
        (moved, 1, True),
    ],
    ids=["before training", "after it", "parameters", "card", "certificate",
         "half a line", "the line", "the folder"],
)  # fmt: skip
def test_a_kill_leaves_no_model_without_a_line(place, lines, folder, paths):
    killed(FIXED, paths, place)
    origins = [["sklearn-digits"]]
    assert paths.release.exists() == folder
    assert len(Ledger(paths.ledger).released("", origins)) == lines
    if folder:
        assert verify(paths.release).releases.earlier == []
        return
    release(FIXED, paths)
    assert not list(paths.results.glob(".partial-*"))
    assert len(verify(paths.release).releases.earlier) == lines
    assert len(Ledger(paths.ledger).released("", origins)) == lines + 1


def test_the_line_is_on_the_disk_before_the_model_appears(paths, monkeypatch):
    """A line that only the cache of the disk has is lost by a power cut, and its model may remain."""
    fsync, replace = os.fsync, Path.replace
    events: list[tuple[str, int, int]] = []

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        events.append(("sync", found.st_ino, found.st_size))

    def moved_to(self: Path, target: Path) -> None:
        replace(self, target)
        if target == paths.release:
            events.append(("model", 0, 0))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved_to)
    folder = release(FIXED, paths)
    before = events[: events.index(("model", 0, 0))]
    ledger = paths.ledger.stat()
    assert ("sync", ledger.st_ino, ledger.st_size) in before
    assert ("sync", paths.ledger.parent.stat().st_ino) in [each[:2] for each in before], (
        "a new ledger has a name only after its folder is synced"
    )
    written = [(each.stat().st_ino, each.stat().st_size) for each in folder.iterdir()]
    assert {("sync", *each) for each in written} <= set(before)
