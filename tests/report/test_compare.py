"""Comparison of two studies: differing settings, and accuracies of trials."""

from pathlib import Path
from typing import Any

from tests.synthetic import make_study, write_cells

from dpsweep.base.files import fingerprint
from dpsweep.report.compare import compare
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

GRID = {"batch_size": [64, 256], "learning_rate": [0.01, 0.1], "seeds": 2, "epsilon": [1.0, 8.0]}


def trained(folder: Path, bounds: list[float], best: float) -> tuple[Study, Paths]:
    """Write a study with the best accuracy at C = 1, and two points less for each factor of ten."""
    study = make_study(
        {"digits_film": GRID | {"clipping_bound": bounds}}, backbones=["strong"]
    ).model_copy(update={"results": folder.name})
    paths = Paths(folder)

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        lost = {0.1: 0.02, 1.0: 0.0, 10.0: 0.02}[float(cell.clipping_bound)]
        accuracy = best - lost - 0.1 * (cell.epsilon == 1) - 0.3 * (rate == 0.1) + 0.01 * seed
        return {
            "macro_accuracy": accuracy,
            "trial_key": fingerprint([cell.problem, cell.name, rate, seed]),
        }

    write_cells(study, paths, outcome)
    return study, paths


def test_settings_that_differ_and_best_accuracies_are_listed(tmp_path: Path) -> None:
    first = trained(tmp_path / "first", [0.1, 1.0], 0.5)
    second = trained(tmp_path / "second", [1.0, 10.0], 0.525)
    said = "\n".join(compare(first, second))
    listed = said.partition("## Best accuracies")[0]
    assert "| sweeps.digits_film.clipping_bound | 0.1, 1 | 1, 10 |" in listed
    assert listed.count("\n| ") == 3  # head, rule, one setting
    # By hand: seeds 1 and 2 reach 51 and 52 % in the first study, 53.5 and 54.5 % in the second.
    row = next(line for line in said.splitlines() if line.startswith("| digits_strong_film | 8"))
    assert [cell.strip() for cell in row.strip("|").split("|")][2:] == [
        "51.5 % [51.0 %, 52.0 %]", "64, 1, 0.01", "54.0 % [53.5 %, 54.5 %]", "64, 1, 0.01", "+2.5",
    ]  # fmt: skip


def test_a_study_does_not_differ_from_itself(tmp_path: Path) -> None:
    one = trained(tmp_path, [0.1, 1.0], 0.5)
    _, settings, best, _ = compare(one, one)
    assert (settings, best.count(" +0.0 |")) == ("No setting differs.\n", 2)
