"""docs/theory.md belongs to the committed numbers, and one command makes those from a study's results."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import tables
from benchmarks.evidence import theory

from dpsweep.figures.draw import FAMILIES
from dpsweep.figures.tables.write import read_numbers
from dpsweep.study.paths import Paths
from tests.synthetic import make_study, write_cells, write_overlaps

ROOT = Path(__file__).parents[1]
NUMBERS: Path = theory.NUMBERS


def rendered(folder: Path) -> dict[str, list[str]]:
    return {
        "theory, effects of privacy": tables.theory_effects(folder),
        "theory, rules": tables.theory_rules(folder / "predictions.csv"),
        "theory, rules in the demo": tables.theory_rules(folder / "demo_predictions.csv"),
    }


def test_the_page_is_that_of_the_numbers() -> None:
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert tables.filled(page, rendered(NUMBERS)) == page, "run: python -m benchmarks.tables"


@pytest.mark.parametrize(
    ("file", "column"),
    [
        ("optimal_clipping", "median_norm"),
        ("privacy_effects", "smallest"),
        ("predictions", "mean_lost_upper"),
        ("predictions", "lost"),
        ("demo_predictions", "rank_correlation"),
    ],
)
def test_other_numbers_are_another_page(tmp_path: Path, file: str, column: str) -> None:
    for path in NUMBERS.glob("*.csv"):
        numbers = read_numbers(path)
        if path.stem == file:
            numbers[column] *= np.linspace(0.5, 2, len(numbers))
        numbers.to_csv(tmp_path / path.name, index=False)
    assert rendered(tmp_path) != rendered(NUMBERS)


def test_every_committed_file_comes_from_the_command() -> None:
    made = {name for figures in theory.FIGURES.values() for name in figures}
    assert {path.stem for path in NUMBERS.glob("*.csv")} == made


def test_the_command_takes_the_numbers_from_the_cells_and_gradients_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = {"epsilon": [1.0, 8.0], "epochs": [1], "batch_size": [8], "clipping_bound": [0.1, 1.0]}
    panel = {"clipping_bound": 1.0, "title": "t"}
    families = {
        "theory_optimal_clipping": ("optimal_clipping_trace", panel),
        "theory_privacy_effects": ("privacy_effects", panel),
        "theory_predictions": ("predicted_clipping", {"title": "t"}),
    }
    figures = {
        name: {"family": family, "caption": "c", "section": "s", "panels": [chosen]}
        for name, (family, chosen) in families.items()
    }
    study = make_study({"s": grid | {"seeds": 2}}, figures=figures)
    paths = Paths(tmp_path / "results")
    write_cells(study, paths, lambda *_: {"macro_accuracy": 0.5})
    for cell in study.sweep_cells("s"):
        if cell.clipping_bound == 1.0:
            write_overlaps(study, paths, cell, 2.0, [[np.eye(8) * cell.epsilon] * 2] * 2)
    monkeypatch.setattr(theory, "load_study", lambda _: study)
    (tmp_path / "numbers").mkdir()
    theory.collect(theory.STUDY, tmp_path / "results", tmp_path / "numbers")
    for name, target in theory.FIGURES[theory.STUDY].items():
        compute, _ = FAMILIES[study.figures[target].family]
        wanted = compute(study, paths, study.figures[target])
        found = (tmp_path / "numbers" / f"{name}.csv").read_text(encoding="utf-8")
        assert found == wanted.to_csv(index=False, lineterminator="\n")
        assert len(wanted) > 1
