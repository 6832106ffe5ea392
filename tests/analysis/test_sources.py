"""Reports of trials that were trained with other source code than the current one."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.synthetic import make_study, write_cells

import dpsweep
from dpsweep.analysis.frames import other_sources
from dpsweep.base.units import one_line
from dpsweep.data.prepared import Resize
from dpsweep.figures import draw
from dpsweep.gradients import make_engine
from dpsweep.models.build import build_model
from dpsweep.study import fingerprints
from dpsweep.study.cells import Cell
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.fingerprints import TRAINER, report_fingerprint, source_files, sources
from dpsweep.study.paths import Paths
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise

PACKAGE = Path(dpsweep.__file__).parent
STUDY = make_study({"digits_film": {"clipping_bound": [0.1, 1.0, 10.0], "learning_rate": [0.1, 1]}})


def train(paths: Paths, recorded: Callable[[Cell, float], str]) -> None:
    write_cells(STUDY, paths, lambda cell, rate, _: {"trainer_sources": recorded(cell, rate)})


@pytest.mark.parametrize(
    ("recorded", "former"),
    [
        (lambda cell, rate: sources(*TRAINER), 0),
        (lambda cell, rate: "", 0),
        (lambda cell, rate: "ab" * 32, 3),
        (lambda cell, rate: "ab" * 32 if (cell.clipping_bound, rate) == (1.0, 0.1) else "", 1),
        (lambda cell, rate: "ab" * 32 if rate == 1 else sources(*TRAINER), 3),
    ],
)
def test_cells_with_trials_of_other_sources_are_counted(
    tmp_path: Path, recorded: Callable[[Cell, float], str], former: int
) -> None:
    paths = Paths(tmp_path)
    assert other_sources(STUDY, paths) == ""
    train(paths, recorded)
    found = other_sources(STUDY, paths)
    assert found.startswith(f"{former} of 3 trained cells" if former else "") and "\n" not in found


@pytest.mark.parametrize(
    "thing",
    [build_model, make_engine, PrivateOptimizer, GaussianNoise, FlatClipping, Resize],
)
def test_the_sources_of_the_trainer_include_every_module_that_trains(thing: Any) -> None:
    files = {file for part in TRAINER for file in source_files(PACKAGE / part)}
    assert Path(inspect.getfile(thing)) in files


def test_the_sources_of_the_report_include_modules_and_templates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of any of these files, including templates, makes the report outdated."""
    hashed: set[Path] = set()
    monkeypatch.setattr(fingerprints, "checksum", lambda file: hashed.add(file) or "")
    sources.cache_clear()
    report_fingerprint(STUDY)
    sources.cache_clear()
    report = PACKAGE / "report"
    assert {report / "page.html.j2", report / "style.css", report / "numbers.js"} <= hashed
    assert {Path(inspect.getfile(each)) for each in (draw, one_line, FlatClipping)} <= hashed
    assert not any("__pycache__" in file.parts for file in hashed)
