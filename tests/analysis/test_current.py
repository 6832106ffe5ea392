"""Readers refuse trials that were trained for other data, weights or noise than those of today."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.synthetic import (
    CHECKSUM,
    class_names,
    make_study,
    trial_rows,
    write_cells,
    write_dataset,
    write_gradient_norms,
    write_overlaps,
)

from dpsweep.analysis.current import COMPARED, FormerResultsError, current_trials
from dpsweep.analysis.frames import (
    load_gradient_norms,
    load_steps,
    load_trials,
    write_problem,
)
from dpsweep.analysis.overlaps import load_overlaps
from dpsweep.base.files import fingerprint, write_checked_json
from dpsweep.report.trials import read_trials
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths
from dpsweep.study.selections import Selection

ROOT = Path(__file__).parents[2]
STUDY = make_study({"a": {"clipping_bound": [0.1, 1.0], "batch_size": [100, 200]}})
CELLS = STUDY.all_cells()
PROBLEM = CELLS[0].problem
OTHER = "1" * 64


def write_backbone(paths: Paths, checksum: str = CHECKSUM) -> None:
    write_checked_json(paths.backbone("small") / "metadata.json", {"checksum": checksum})


def write_noise(study: Study, paths: Paths, sigma: float = 1.0) -> None:
    for cell in study.all_cells():
        file = paths.noise(study, "digits", cell.epsilon, cell.epochs, cell.batch_size)
        write_checked_json(file, {"noise_multiplier": sigma})


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Results of today: cells, and all that they were made from."""
    paths = Paths(tmp_path)
    write_cells(STUDY, paths, lambda cell, rate, seed: {"macro_accuracy": rate}, steps_too=True)
    write_dataset(paths, "digits", [250] * 4)
    write_backbone(paths)
    write_noise(STUDY, paths)
    return paths


def rewrite(file: Path, **columns: Any) -> None:
    pd.read_parquet(file).assign(**columns).to_parquet(file, index=False)


def test_trials_of_today_are_read(paths: Paths) -> None:
    trials = load_trials(STUDY, paths, CELLS)
    assert len(trials) == len(CELLS)
    assert "data_checksum" not in trials


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda paths: write_dataset(paths, "digits", [250] * 4, checksum=OTHER), "data_checksum"),
        (lambda paths: write_dataset(paths, "digits", [500] * 2), "classes_checksum"),
        (lambda paths: write_backbone(paths, OTHER), "backbone_checksum"),
        (lambda paths: write_noise(STUDY, paths, 1.1), "noise_multiplier"),
    ],
    ids=["data", "classes", "weights", "noise"],
)
def test_what_was_prepared_again_with_another_content_refuses_every_cell(
    paths: Paths, change: Callable[[Paths], Any], named: str
) -> None:
    change(paths)
    with pytest.raises(FormerResultsError, match=f"4 of 4 cells .* found {named}") as raised:
        load_trials(STUDY, paths, CELLS)
    assert raised.value.remake == tuple(paths.cell_trials(STUDY, cell) for cell in CELLS)
    missing: list[Path] = []
    assert load_trials(STUDY, paths, CELLS, missing).empty
    assert missing == list(raised.value.remake)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("train_size", 999),
        ("steps", 19),
        ("noise_multiplier", 0.5),
        ("data_checksum", OTHER),
        ("classes_checksum", fingerprint(class_names(3))),
        ("backbone_checksum", OTHER),
        ("trainer_version", 1),
    ],
)
def test_a_cell_that_is_put_back_from_before_is_refused(
    paths: Paths, column: str, value: Any
) -> None:
    file = paths.cell_trials(STUDY, CELLS[1])
    rewrite(file, **{column: value})
    with pytest.raises(FormerResultsError) as raised:
        load_trials(STUDY, paths, CELLS)
    assert raised.value.remake == (file,)
    assert "1 of 4 cells were trained for other data" in str(raised.value)
    assert f"{file}: found {column} {value}; " in str(raised.value)
    # A study that is looked at while it runs goes without it.
    missing: list[Path] = []
    assert set(load_trials(STUDY, paths, CELLS, missing)["cell"]) == {
        cell.name for cell in CELLS if cell != CELLS[1]
    }
    assert missing == [file]


def test_prepared_files_that_were_removed_for_their_size_refuse_nothing(paths: Paths) -> None:
    for file in (paths.dataset("digits"), paths.backbone("small")):
        (file / "metadata.json").unlink()
    for file in (paths.results / "noise").rglob("*.json"):
        file.unlink()
    assert len(load_trials(STUDY, paths, CELLS)) == len(CELLS)
    rewrite(paths.cell_trials(STUDY, CELLS[0]), steps=19)  # the study itself knows better
    with pytest.raises(FormerResultsError, match="steps 19; the study has 20"):
        load_trials(STUDY, paths, CELLS)


def features_study() -> Study:
    content = make_study({"a": {}}).model_dump(mode="json", by_alias=True, exclude_none=True)
    content["backbones"]["small"] |= {
        **{"features": {"pooling": "mean"}, "weights": {"kind": "file", "path": "weights"}}
    }
    content["methods"]["film"] = {"kind": "head"}
    return Study.model_validate(content)


@pytest.mark.parametrize(
    ("checksum", "dataset", "backbone", "found"),
    [
        (CHECKSUM, CHECKSUM, CHECKSUM, None),
        (OTHER, CHECKSUM, CHECKSUM, OTHER),
        (CHECKSUM, OTHER, CHECKSUM, "features of another dataset"),
        (CHECKSUM, CHECKSUM, OTHER, "features of another backbone"),
    ],
)
def test_heads_are_compared_with_their_features(
    tmp_path: Path, checksum: str, dataset: str, backbone: str, found: str | None
) -> None:
    study, paths = features_study(), Paths(tmp_path)
    write_cells(study, paths, lambda *_: {})
    # The dataset itself has another checksum than its features: trials have that of what they read.
    write_dataset(paths, "digits", [250] * 4, checksum="2" * 64)
    write_backbone(paths)
    of = {"dataset": "2" * 64 if dataset == CHECKSUM else dataset, "backbone": backbone}
    file = paths.features("digits", "small") / "metadata.json"
    write_checked_json(file, {"checksum": checksum, "features": of})
    if found is None:
        assert len(load_trials(study, paths, study.all_cells())) == 1
        return
    with pytest.raises(FormerResultsError, match=f"{file} has {found}"):
        load_trials(study, paths, study.all_cells())


def write_norms(paths: Paths) -> Path:
    write_gradient_norms(STUDY, paths, CELLS[0], 0.01, [([0, 1], [1.0, 2.0])] * 2)
    return paths.gradient_norms(STUDY, PROBLEM, 8.0, 2, CELLS[0].clipping_bound)


def test_norms_steps_and_overlaps_of_other_trials_are_refused(paths: Paths) -> None:
    norms, steps = write_norms(paths), paths.cell_steps(STUDY, CELLS[0])
    write_overlaps(STUDY, paths, CELLS[0], 1.0, [[[[1.0, 2.0], [3.0, 4.0]]]] * 3)
    overlaps = paths.theory(STUDY, CELLS[0])
    key = pd.read_parquet(paths.cell_trials(STUDY, CELLS[0]))["trial_key"][0]
    rewrite(overlaps, trial_key=key)
    selection = Selection(dataset="digits", backbone="small", method="film", clipping_bound=0.1)

    def read(missing: list[Path] | None = None) -> list[int]:
        return [
            len(load_gradient_norms(STUDY, paths, [selection], missing=missing)),
            len(load_steps(STUDY, paths, [CELLS[0]], missing)),
            len(load_overlaps(STUDY, paths, [CELLS[0]], missing)),
        ]

    assert all(read())
    for position, file in enumerate((norms, steps, overlaps)):
        rewrite(file, trial_key="of another")
        with pytest.raises(FormerResultsError, match="measure other trials") as raised:
            read()
        assert raised.value.remake == (file,)
        missing: list[Path] = []
        assert [bool(rows) for rows in read(missing)] == [each != position for each in range(3)]
        assert missing == [file]
        rewrite(file, trial_key=key)
    assert all(read())


def test_what_is_measured_on_a_cell_that_was_trained_again_is_refused(paths: Paths) -> None:
    norms = write_norms(paths)
    rewrite(paths.cell_trials(STUDY, CELLS[0]), trial_key="of today")
    selection = Selection(dataset="digits", backbone="small", method="film", clipping_bound=0.1)
    with pytest.raises(FormerResultsError, match=str(norms)):
        load_gradient_norms(STUDY, paths, [selection])


def test_the_table_of_a_problem_is_of_the_settings_of_today_or_not_read(paths: Paths) -> None:
    write_problem(STUDY, paths, PROBLEM)
    assert len(read_trials(STUDY, paths)) == len(CELLS)
    for cell in CELLS:
        paths.cell_trials(STUDY, cell).unlink()
    assert len(read_trials(STUDY, paths)) == len(CELLS)
    edited = make_study({"a": {"clipping_bound": [0.1, 1.0], "batch_size": [100, 200], "seeds": 2}})
    assert read_trials(edited, paths).empty
    write_dataset(paths, "digits", [250] * 4, checksum=OTHER)
    with pytest.raises(FormerResultsError, match="data_checksum"):
        read_trials(STUDY, paths)
    assert read_trials(STUDY, Paths(paths.results, partial=True)).empty


def test_the_papers_trials_are_compared_in_seconds(tmp_path: Path) -> None:
    paper, paths = load_study(ROOT / "config.yaml"), Paths(tmp_path)
    trials = pd.DataFrame(
        {"problem": cell.problem, "cell": cell.name} | {column: row[column] for column in COMPARED}
        for cell in paper.all_cells()
        for row in trial_rows(paper, cell, lambda cell, rate, seed: {"macro_accuracy": rate})
    )
    for cell in paper.all_cells():
        dataset = paper.problems[cell.problem].dataset
        file = paths.noise(paper, dataset, cell.epsilon, cell.epochs, cell.batch_size)
        if not file.exists():
            write_checked_json(file, {"noise_multiplier": 1.0})
    started = time.process_time()
    assert len(current_trials(paper, paths, trials)) == len(trials) > 60_000
    assert time.process_time() - started < 5
