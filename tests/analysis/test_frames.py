from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import make_study, write_cells, write_gradient_norms

from dpsweep.analysis.frames import (
    MissingResultsError,
    load_gradient_norms,
    load_trials,
    write_problem,
)
from dpsweep.base.parquet import UnreadableResultsError
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Selection

STUDY = make_study(
    {
        "a": {"clipping_bound": [0.1, 1.0], "learning_rate": [0.01, 0.02]},
        "b": {"backbone": "large", "seeds": 2},
    }
)


A, B = STUDY.problems


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path)
    write_cells(STUDY, paths, lambda cell, rate, seed: {"macro_accuracy": rate}, steps_too=True)
    return paths


def test_a_missing_cell_is_an_error_or_listed(paths: Paths) -> None:
    cells = STUDY.sweep_cells("a")
    file = paths.cell_trials(STUDY, cells[0])
    file.unlink()
    for read in (lambda: load_trials(STUDY, paths, cells), lambda: write_problem(STUDY, paths, A)):
        with pytest.raises(MissingResultsError, match=r"1 trained cell file\(s\) missing") as error:
            read()
        assert error.value.remake == (file,)
    assert not paths.problem(A).exists()
    missing: list[Path] = []
    trials = load_trials(STUDY, paths, cells, missing)
    assert missing == [file]
    assert trials["clipping_bound"].unique().tolist() == [1.0]


def test_damaged_and_outdated_files_have_their_own_errors(paths: Paths) -> None:
    cells = STUDY.sweep_cells("b")
    file = paths.cell_trials(STUDY, cells[0])
    frame = pd.read_parquet(file)

    def is_refused(message: str) -> None:
        for read in (
            lambda: load_trials(STUDY, paths, cells),
            lambda: write_problem(STUDY, paths, B),
        ):
            with pytest.raises(UnreadableResultsError, match=message) as error:
                read()
            assert error.value.remake == (file,)
        assert not paths.problem(B).exists()

    frame.drop(columns=["steps", "best"]).to_parquet(file)
    is_refused("no column steps, best")
    frame.assign(best=False).to_parquet(file)
    is_refused("no trial is marked best")
    file.write_bytes(file.read_bytes()[:100])
    is_refused(str(file))


def test_gradient_norms_have_the_clipping_bound_of_their_file(paths: Paths) -> None:
    for cell in STUDY.sweep_cells("a"):
        bound = float(cell.clipping_bound)
        write_gradient_norms(
            STUDY,
            paths,
            cell,
            0.02,
            [([0, 1], [bound, 2 * bound]), ([0, 1], [3 * bound, 4 * bound])],
        )
    selections = [Selection.of(STUDY.grid()), Selection.of(STUDY.grid().at(clipping_bound=1.0))]
    norms = load_gradient_norms(STUDY, paths, selections)
    assert norms["clipping_bound"].tolist() == [0.1] * 4 + [1.0] * 4
    np.testing.assert_allclose(norms["norm"], [0.1, 0.2, 0.3, 0.4, 1, 2, 3, 4])
    last = load_gradient_norms(STUDY, paths, selections, epoch="last")
    np.testing.assert_allclose(last["norm"], [0.3, 0.4, 3, 4])
