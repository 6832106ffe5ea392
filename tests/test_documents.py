"""The tables of docs/*.md match the committed results, and commands make these results."""

import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks import surprises, tables
from benchmarks.evidence import theory

from dpsweep.study.paths import Paths
from dpsweep.tables.text import read_numbers
from tests.synthetic import make_study, write_cells, write_overlaps

ROOT = Path(__file__).parents[1]


def test_tables_are_current() -> None:
    made = tables.tables()
    documents = {path.name: path.read_text(encoding="utf-8") for path in tables.DOCUMENTS}
    for name, document in documents.items():
        assert tables.filled(document, made) == document, f"{name}: python -m benchmarks.tables"
    for name in made:
        places = [document.count(tables.start(name)) for document in documents.values()]
        assert sum(places) == 1, f"the table {name!r} has {sum(places)} places in docs/"


def test_the_page_of_surprises_is_current() -> None:
    assert (surprises.FOLDER / "README.md").read_text(encoding="utf-8") == surprises.page()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_table_has_a_header(page: Path) -> None:
    """A blank line within a table turns the rest of it into plain text."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for above, line, below in zip(lines, lines[1:], lines[2:], strict=False):
        if line.startswith("|") and not above.startswith("|"):
            assert re.fullmatch(r"\|[-:| ]+\|", below), f"a table without a head: {line}"


# -- theory ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "column"),
    [
        ("optimal_clipping", "median_norm"),
        ("predictions", "lost"),
        ("demo_predictions", "rank_correlation"),
    ],
)
def test_tables_change_with_the_numbers(tmp_path: Path, file: str, column: str) -> None:
    for path in theory.NUMBERS.glob("*.csv"):
        numbers = read_numbers(path)
        if path.stem == file:
            numbers[column] *= np.linspace(0.5, 2, len(numbers))
        numbers.to_csv(tmp_path / path.name, index=False)
    render = tables.theory_rules if "predictions" in file else tables.theory_effects
    assert render(tmp_path) != render()


def test_every_committed_file_is_made_by_the_command() -> None:
    made = {name for figures in theory.FIGURES.values() for name in figures}
    assert {path.stem for path in theory.NUMBERS.glob("*.csv")} == made


def test_the_command_computes_numbers_from_a_results_folder(
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
        wanted = study.figures[target].compute(study, paths)
        found = (tmp_path / "numbers" / f"{name}.csv").read_text(encoding="utf-8")
        assert found == wanted.to_csv(index=False, lineterminator="\n")
        assert len(wanted) > 1
