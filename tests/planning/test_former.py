"""Files of former settings are found by their names, and only they are removed."""

from pathlib import Path
from typing import Any

import pytest
from tests.planning.finished import finish_output
from tests.synthetic import make_study

from dpsweep.planning.outputs import Outputs, former_files, remove
from dpsweep.study import Study
from dpsweep.study.paths import Paths

SWEEP: dict[str, Any] = {"epsilon": [1.0, 8.0], "batch_size": [100, "full"], "seeds": 2}


def files(paths: Paths) -> set[Path]:
    return {file for file in paths.results.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("change", "cells"), [({"seeds": 3}, 4), ({"epsilon": [8.0]}, 2)])
def test_only_files_of_former_settings_are_found_and_removed(
    tmp_path: Path, change: dict[str, Any], cells: int
) -> None:
    paths = Paths(tmp_path / "results")

    def finish(study: Study) -> None:
        for output in Outputs(study, paths).every():
            finish_output(output)

    before, after = make_study({"s": SWEEP}), make_study({"s": SWEEP | change})
    finish(before)
    trial = paths.trials / "ab" / "abcd.safetensors"
    trial.parent.mkdir(parents=True)
    trial.write_text("a finished trial")
    finish(after)
    found = former_files(paths, [after])
    wanted = {file for output in Outputs(after, paths).every() for file in output.files}
    outputs = map(Outputs(before, paths).cell, before.all_cells())
    former = {file for output in outputs for file in output.files} - wanted
    assert len(former) == 2 * cells  # trials and steps
    assert former <= set(found)
    assert not wanted & set(found)
    # A study that shares the folder keeps its files.
    assert former_files(paths, [after, before]) == []
    kept = files(paths) - set(found)
    remove(found)
    assert files(paths) == kept
    assert trial.exists()
    assert not any(not list(folder.iterdir()) for folder in (paths.results / "cells").rglob("*/"))
