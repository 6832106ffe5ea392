"""Reading of results: absent, damaged and former files, and the norms of other cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import (
    CHECKSUM,
    class_names,
    make_study,
    write_cells,
    write_dataset,
    write_gradient_norms,
    write_overlaps,
)

from dpsweep.analysis.frames import (
    FormerResultsError,
    MissingResultsError,
    load_gradient_norms,
    load_steps,
    load_trials,
    other_sources,
    present_trials,
    write_problem,
)
from dpsweep.analysis.predictions import load_overlaps
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import UnreadableResultsError, fingerprint, write_checked_json
from dpsweep.study import Cell, Study
from dpsweep.study.fingerprints import TRAINER, sources
from dpsweep.study.grid import Selection
from dpsweep.study.paths import Paths

GRID = {"clipping_bound": [0.1, 1.0], "batch_size": [100, 200]}
STUDY = make_study({"a": GRID})
CELLS = STUDY.all_cells()
(PROBLEM,) = STUDY.problems
OTHER = "1" * 64


def write_backbone(paths: Paths, checksum: str = CHECKSUM) -> None:
    write_checked_json(paths.backbone("small") / "metadata.json", {"checksum": checksum})


def write_noise(study: Study, paths: Paths, sigma: float = 1.0) -> None:
    for cell in study.all_cells():
        dataset = study.problems[cell.problem].dataset
        file = paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
        if sigma != 1 or not file.exists():
            write_checked_json(file, {"noise_multiplier": sigma})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Current results: cells, and the prepared files that they were made from."""
    paths = Paths(tmp_path)
    write_cells(STUDY, paths, lambda cell, rate, seed: {"macro_accuracy": rate}, steps_too=True)
    write_dataset(paths, "digits", [250] * 4)
    write_backbone(paths)
    write_noise(STUDY, paths)
    return paths


def rewrite(file: Path, **columns: Any) -> None:
    pd.read_parquet(file).assign(**columns).to_parquet(file, index=False)


# -- absent and damaged files --------------------------------------------------------------


def refusals(paths: Paths, error: type[DpsweepError], message: str) -> set[Path]:
    """Return the files that reading trials and making a problem's table ask to make again."""
    files = []
    for use in (load_trials, lambda *_: write_problem(STUDY, paths, PROBLEM)):
        with pytest.raises(error, match=message) as raised:
            use(STUDY, paths, CELLS)
        files += raised.value.remake
    assert not paths.problem(PROBLEM).exists()
    return set(files)


def test_a_missing_cell_is_an_error_or_listed(paths: Paths) -> None:
    file = paths.cell_trials(STUDY, CELLS[0])
    file.unlink()
    message = r"1 trained cell file\(s\) missing"
    assert refusals(paths, MissingResultsError, message) == {file}
    missing: list[Path] = []
    trials = load_trials(STUDY, paths, CELLS, missing)
    assert missing == [file]
    assert trials["cell"].tolist() == [cell.name for cell in CELLS[1:]]


def test_damaged_and_outdated_files_have_their_own_errors(paths: Paths) -> None:
    file = paths.cell_trials(STUDY, CELLS[0])
    frame = pd.read_parquet(file)
    frame.drop(columns=["steps", "best"]).to_parquet(file)
    assert refusals(paths, UnreadableResultsError, "no column steps, best") == {file}
    frame.assign(best=False).to_parquet(file)
    assert refusals(paths, UnreadableResultsError, "no trial is marked best") == {file}
    file.write_bytes(file.read_bytes()[:100])
    assert refusals(paths, UnreadableResultsError, str(file)) == {file}


def test_gradient_norms_have_the_clipping_bound_of_their_file(paths: Paths) -> None:
    for cell in Selection.of(STUDY.grid().at(batch_size=100)).cells():
        norms = [([0, 1], np.array(each) * cell.clipping_bound) for each in ([1, 2], [3, 4])]
        write_gradient_norms(STUDY, paths, cell, 0.01, norms)
    selections = [Selection.of(STUDY.grid()), Selection.of(STUDY.grid().at(clipping_bound=1.0))]
    norms = load_gradient_norms(STUDY, paths, selections)
    assert norms["clipping_bound"].tolist() == [0.1] * 4 + [1.0] * 4
    np.testing.assert_allclose(norms["norm"], [0.1, 0.2, 0.3, 0.4, 1, 2, 3, 4])
    last = load_gradient_norms(STUDY, paths, selections, epoch="last")
    np.testing.assert_allclose(last["norm"], [0.3, 0.4, 3, 4])


# -- former trials -------------------------------------------------------------------------


def put_back(**columns: Any) -> Callable[[Paths], None]:
    """Return a function that overwrites columns in a file of trials, as if it came from a backup."""
    return lambda paths: rewrite(paths.cell_trials(STUDY, CELLS[1]), **columns)


@pytest.mark.parametrize(
    ("change", "former", "named"),
    [
        # Prepared files with new content: every cell is refused.
        (lambda paths: write_dataset(paths, "digits", [250] * 4, checksum=OTHER), CELLS, "data_checksum"),
        (lambda paths: write_dataset(paths, "digits", [500] * 2), CELLS, "classes_checksum"),
        (lambda paths: write_backbone(paths, OTHER), CELLS, "backbone_checksum"),
        (lambda paths: write_noise(STUDY, paths, 1.1), CELLS, "noise_multiplier"),
        # One outdated file of trials: only its cell is refused.
        (put_back(train_size=999), CELLS[1:2], "train_size 999"),
        (put_back(steps=19), CELLS[1:2], "steps 19"),
        (put_back(noise_multiplier=0.5), CELLS[1:2], "noise_multiplier 0.5"),
        (put_back(data_checksum=OTHER), CELLS[1:2], f"data_checksum {OTHER}"),
        (put_back(classes_checksum=fingerprint(class_names(3))), CELLS[1:2], "classes_checksum "),
        (put_back(backbone_checksum=OTHER), CELLS[1:2], f"backbone_checksum {OTHER}"),
        (put_back(trainer_version=1), CELLS[1:2], "trainer_version 1"),
    ],
)  # fmt: skip
def test_trials_of_other_data_weights_or_noise_are_refused(
    paths: Paths, change: Callable[[Paths], Any], former: list[Any], named: str
) -> None:
    trials = load_trials(STUDY, paths, CELLS)
    assert len(trials) == len(CELLS) and "data_checksum" not in trials
    change(paths)
    files = [paths.cell_trials(STUDY, cell) for cell in former]
    said = f"(?s){len(files)} of 4 cells were trained for other data.*{files[0]}: found {named}"
    assert refusals(paths, FormerResultsError, said) == set(files)
    # With a list for missing files, the other trials are read.
    missing: list[Path] = []
    left = load_trials(STUDY, paths, CELLS, missing)
    assert set(left["cell"]) == {cell.name for cell in CELLS if cell not in former}
    assert missing == files


def test_removed_prepared_files_refuse_no_trials(paths: Paths) -> None:
    for file in (paths.dataset("digits"), paths.backbone("small")):
        (file / "metadata.json").unlink()
    for file in (paths.results / "noise").rglob("*.json"):
        file.unlink()
    assert len(load_trials(STUDY, paths, CELLS)) == len(CELLS)
    put_back(steps=19)(paths)  # N and T follow from the study
    with pytest.raises(FormerResultsError, match="steps 19; the study has 20"):
        load_trials(STUDY, paths, CELLS)


@pytest.mark.parametrize(
    ("checksum", "dataset", "backbone", "found"),
    [
        (CHECKSUM, "2" * 64, CHECKSUM, None),
        (OTHER, "2" * 64, CHECKSUM, OTHER),
        (CHECKSUM, OTHER, CHECKSUM, "features of another dataset"),
        (CHECKSUM, "2" * 64, OTHER, "features of another backbone"),
    ],
)
def test_trials_of_heads_are_compared_with_prepared_features(
    tmp_path: Path, checksum: str, dataset: str, backbone: str, found: str | None
) -> None:
    content = make_study({"a": {}}).model_dump(mode="json", by_alias=True, exclude_none=True)
    weights = {"kind": "file", "path": "weights"}
    content["backbones"]["small"] |= {"features": {"pooling": "mean"}, "weights": weights}
    content["methods"]["film"] = {"kind": "head"}
    study, paths = Study.model_validate(content), Paths(tmp_path)
    write_cells(study, paths, lambda *_: {})
    # Trials record the checksum of the features, which differs from that of the dataset.
    write_dataset(paths, "digits", [250] * 4, checksum="2" * 64)
    write_backbone(paths)
    file = paths.features("digits", "small") / "metadata.json"
    of = {"dataset": dataset, "backbone": backbone}
    write_checked_json(file, {"checksum": checksum, "features": of})
    if found is None:
        assert len(load_trials(study, paths, study.all_cells())) == 1
        return
    with pytest.raises(FormerResultsError, match=f"{file} has {found}"):
        load_trials(study, paths, study.all_cells())


def test_norms_steps_and_overlaps_of_other_trials_are_refused(paths: Paths) -> None:
    cell = CELLS[0]
    write_gradient_norms(STUDY, paths, cell, 0.01, [([0, 1], [1.0, 2.0])] * 2)
    write_overlaps(STUDY, paths, cell, 1.0, [[[[1.0, 2.0], [3.0, 4.0]]]] * 3)
    norms = paths.gradient_norms(STUDY, cell.problem, 8.0, 2, cell.clipping_bound)
    files = (norms, paths.cell_steps(STUDY, cell), paths.theory(STUDY, cell))
    key = pd.read_parquet(paths.cell_trials(STUDY, cell))["trial_key"][0]
    rewrite(files[-1], trial_key=key)
    selection = Selection.of(STUDY.grid().at(clipping_bound=0.1))

    def read(missing: list[Path] | None = None) -> list[int]:
        return [
            len(load_gradient_norms(STUDY, paths, [selection], missing=missing)),
            len(load_steps(STUDY, paths, [cell], missing)),
            len(load_overlaps(STUDY, paths, [cell], missing)),
        ]

    assert all(read())
    for position, file in enumerate(files):
        rewrite(file, trial_key="of another")
        with pytest.raises(FormerResultsError, match="no longer has") as raised:
            read()
        assert raised.value.remake == (file,)
        missing: list[Path] = []
        assert [bool(rows) for rows in read(missing)] == [each != position for each in range(3)]
        assert missing == [file]
        rewrite(file, trial_key=key)
    # Conversely, the cell was trained again.
    rewrite(paths.cell_trials(STUDY, cell), trial_key="of today")
    with pytest.raises(FormerResultsError, match=str(norms)):
        read()


def test_problem_tables_of_other_settings_are_not_read(paths: Paths) -> None:
    write_problem(STUDY, paths, PROBLEM)
    assert len(present_trials(STUDY, paths)) == len(CELLS)
    for cell in CELLS:
        paths.cell_trials(STUDY, cell).unlink()
    assert len(present_trials(STUDY, paths)) == len(CELLS)
    assert present_trials(make_study({"a": GRID | {"seeds": 2}}), paths).empty
    write_dataset(paths, "digits", [250] * 4, checksum=OTHER)
    with pytest.raises(FormerResultsError, match="data_checksum"):
        present_trials(STUDY, paths)
    assert present_trials(STUDY, Paths(paths.results, partial=True)).empty


OF_OTHERS = "ab" * 32


@pytest.mark.parametrize(
    ("recorded", "former"),
    [
        (lambda cell, rate: sources(*TRAINER), 0),
        (lambda cell, rate: "", 0),
        (lambda cell, rate: OF_OTHERS, 4),
        (lambda cell, rate: OF_OTHERS if (cell, rate) == (CELLS[0], 0.1) else "", 1),
        (lambda cell, rate: OF_OTHERS if rate == 1 else sources(*TRAINER), 4),
    ],
)
def test_cells_with_trials_of_other_sources_are_counted(
    tmp_path: Path, recorded: Callable[[Cell, float], str], former: int
) -> None:
    paths, study = Paths(tmp_path), make_study({"a": GRID | {"learning_rate": [0.1, 1]}})
    assert other_sources(study, paths) == ""
    write_cells(study, paths, lambda cell, rate, _: {"trainer_sources": recorded(cell, rate)})
    found = other_sources(study, paths)
    assert found.startswith(f"{former} of 4 trained cells" if former else "") and "\n" not in found
