"""The numbers and pictures of docs/findings.md, and the README's claims, match the committed trials."""

import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks.findings import film
from benchmarks.findings.numbers import NUMBERS as FILE
from benchmarks.findings.numbers import TRIALS, collect, digest
from benchmarks.tables.findings import film_claims, head_batch_sizes, head_bounds

from dpsweep.base.files import read_json
from dpsweep.study import load_study
from dpsweep.study.paths import Paths
from tests.tracked import tracked

ROOT = Path(__file__).parents[1]
NUMBERS: dict[str, Any] = read_json(FILE)


@pytest.mark.slow
def test_the_numbers_match_the_trials() -> None:
    study = load_study(ROOT / "studies" / "frozen-features.yaml")
    found = collect(study, pd.read_parquet(TRIALS))
    assert found == {name: NUMBERS[name] for name in found}, (
        "run: python -m benchmarks.findings --numbers"
    )


def test_the_pictures_match_the_numbers() -> None:
    found = {file.stem: digest(file) for file in tracked("docs/images/findings/*.png")}
    assert found == NUMBERS["pictures"]


@pytest.mark.parametrize(
    ("section", "render"), [("by_bound", head_bounds), ("by_batch_size", head_batch_sizes)]
)
def test_tables_change_with_the_accuracies(section: str, render: Any) -> None:
    changed = copy.deepcopy(NUMBERS)
    changed[section][0]["accuracy"][-1] -= 0.01
    assert render(changed) != render(NUMBERS)


def test_the_numbers_of_film_match_its_trials() -> None:
    study = load_study(film.STUDY)
    found = film.collect_film(study, film.kept_trials(study))
    pictures = {file.stem: digest(file) for file in tracked("docs/images/film/*.png")}
    assert found | {"pictures": pictures} == read_json(film.FILM_NUMBERS), (
        "run: python -m benchmarks.findings.film --numbers"
    )


def test_the_findings_of_the_readme_agree_with_the_numbers_of_film() -> None:
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for claim in film_claims(read_json(film.FILM_NUMBERS)):
        assert f"- {claim}" in said, f"the README should say: {claim}"


def test_settings_without_all_bounds_do_not_change_the_claims_about_film() -> None:
    numbers = read_json(film.FILM_NUMBERS)
    row = max(numbers["by_bound"], key=lambda row: len(row["values"]))
    before = film_claims(numbers)
    numbers["by_bound"].append(row | {"values": row["values"][:2], "accuracy": [0.1, 0.9]})
    assert film_claims(numbers) == before


def test_trials_from_elsewhere_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(film.STUDY)
    name = next(name for name in study.problems if (film.KEPT / f"{name}.parquet").exists())
    before = pd.read_parquet(film.KEPT / f"{name}.parquet")
    monkeypatch.setattr(film, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(film, "FILM_IMAGES", tmp_path / "images")
    film.KEPT.mkdir()
    before.to_parquet(film.KEPT / f"{name}.parquet")
    # One cell is trained again here: its trials replace those from elsewhere.
    cell = next(cell for cell in study.problem_cells(name) if cell.name == before["cell"].iloc[0])
    again = before[before["cell"] == cell.name].assign(macro_accuracy=0.5)
    paths = Paths(tmp_path / "results")
    paths.cell_trials(study, cell).parent.mkdir(parents=True)
    paths.cell_trials(study, cell).touch()
    monkeypatch.setattr(film, "gather", lambda _, paths, cells: again)
    film.keep(study, paths)
    kept = film.kept_trials(study)
    assert len(kept) == len(before)
    assert (kept.loc[kept["cell"] == cell.name, "macro_accuracy"] == 0.5).all()
