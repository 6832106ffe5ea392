"""Releases that are killed at every stage: the ledger's line is written before the model appears."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.release.releases import FIXED, PRIVATE, Content, release

from dpsweep.privacy import CalibrationError
from dpsweep.release import TRAINED
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
def test_a_kill_leaves_no_model_without_a_line(
    place: Callable[[pytest.MonkeyPatch], None], lines: int, folder: bool, paths: Paths
) -> None:
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


@pytest.mark.parametrize("section", [FIXED, PRIVATE], ids=["fixed", "private"])
def test_models_that_cannot_be_composed_are_refused_before_training(
    section: Content, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise CalibrationError("cannot be composed")

    monkeypatch.setattr(release_training, "released_together", refuse)
    monkeypatch.setattr(release_training, "train_release", None)
    with pytest.raises(CalibrationError, match="cannot be composed"):
        release(section, paths)
    assert not paths.ledger.read_text()


def test_the_line_is_on_the_disk_before_the_model_appears(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_model_made_during_training_counts(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another study with the same ledger makes it; the two models differ."""
    train, other = release_training.train_release, Paths(paths.results.with_name("other"))

    def train_while_another_is_made(*given: Any) -> Any:
        monkeypatch.setattr(release_training, "train_release", train)
        shutil.copytree(paths.results, other.results)
        release(FIXED, other)
        return train(*given)

    monkeypatch.setattr(release_training, "train_release", train_while_another_is_made)
    folder = release(FIXED, paths)
    found = verify(folder).releases
    assert len(found.earlier) == 1 and found.joint_epsilon > 8
    first, second = (load_file(each / TRAINED) for each in (other.release, folder))
    assert first.keys() == second.keys()
    assert not any(torch.equal(first[name], second[name]) for name in first)
