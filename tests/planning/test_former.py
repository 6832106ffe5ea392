"""Files of former settings are found by their names, and nothing else is removed."""

from pathlib import Path
from typing import Any

import pytest
from tests.planning.finished import finish_all
from tests.synthetic import make_study

from dpsweep.planning.former import former_files, remove
from dpsweep.planning.outputs import Outputs
from dpsweep.study.paths import Paths

SWEEP: dict[str, Any] = {"epsilon": [1.0, 8.0], "batch_size": [100, "full"], "seeds": 2}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "results")


def files(paths: Paths) -> set[Path]:
    return {file for file in paths.results.rglob("*") if file.is_file()}


def test_other_settings_leave_files_that_are_removed_alone(paths: Paths) -> None:
    before, after = make_study({"s": SWEEP}), make_study({"s": SWEEP | {"seeds": 3}})
    finish_all(before, paths)
    trial = paths.trials / "ab" / "abcd.safetensors"
    trial.parent.mkdir(parents=True)
    trial.write_text("a finished trial")
    finish_all(after, paths)
    found = former_files(paths, [after])
    cells = [
        file for cell in before.all_cells() for file in Outputs(before, paths).cell(cell).files
    ]
    assert set(cells) <= set(found)
    wanted = {file for output in Outputs(after, paths).every() for file in output.files}
    assert not wanted & set(found)
    # A study that shares the folder keeps its own.
    assert former_files(paths, [after, before]) == []
    kept = files(paths) - set(found)
    remove(found)
    assert files(paths) == kept
    assert trial.exists()
    assert not any(not list(folder.iterdir()) for folder in (paths.results / "cells").rglob("*/"))


def test_a_grid_that_shrinks_leaves_its_cells(paths: Paths) -> None:
    wide, narrow = make_study({"s": SWEEP}), make_study({"s": SWEEP | {"epsilon": [8.0]}})
    finish_all(wide, paths)
    found = former_files(paths, [narrow])
    gone = set(wide.all_cells()) - set(narrow.all_cells())
    assert {paths.cell_trials(wide, cell) for cell in gone} <= set(found)
    assert {paths.cell_trials(narrow, cell) for cell in narrow.all_cells()}.isdisjoint(found)
