"""The report's comparison of our numbers with the paper's."""

from pathlib import Path
from typing import Any

from tests.described import study_of
from tests.synthetic import make_study, write_cells

from dpsweep import report
from dpsweep.report.highlights import paper_comparisons
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.tables import write

ACCURACY = {1.0: 0.401, 2.0: 0.555, 8.0: 0.75}


def study(comparable: bool) -> Study:
    ranged = {"value": 0.4, "minimum": 0.399, "maximum": 0.402}
    numbers: dict[float, dict[str, float]] = {1.0: ranged, 2.0: ranged, 8.0: {"value": 0.7}}
    of_cells = {
        "dataset": "digits" if comparable else "sun397", "backbone": "small", "method": "film",
        "clipping_bound": 1.0, "epochs": 2,
    }  # fmt: skip
    content = make_study(
        {"s": {"epsilon": [1.0, 2.0, 8.0], "seeds": 2}},
        tables={
            "ours": {
                "family": "comparison",
                "caption": "c",
                "section": "s",
                "rows": ["epsilon"],
                "columns": ["clipping"],
                "entries": [{"epsilon": epsilon} for epsilon in (1.0, 2.0, 8.0)],
            }
        },
    ).model_dump(exclude_none=True)
    references = [of_cells | {"epsilon": epsilon} | each for epsilon, each in numbers.items()]
    return study_of(content | {"references": references})


def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    return {"macro_accuracy": ACCURACY[cell.epsilon] + (0.01 if seed == 1 else -0.01)}


def test_numbers_differences_and_ranges(tmp_path: Path) -> None:
    compared, paths = study(comparable=True), Paths(tmp_path)
    write_cells(compared, paths, outcome)
    write(compared, paths, "ours")
    (found,) = paper_comparisons(compared, paths)
    assert found.rows is not None
    assert found.rows.rows == [
        ["1", "Tuned", "0.4000 [0.3990, 0.4020]", "0.4010 [0.3910, 0.4110]", "+0.0010", "yes"],
        ["2", "Tuned", "0.4000 [0.3990, 0.4020]", "0.5550 [0.5450, 0.5650]", "+0.1550", "no"],
        ["8", "Tuned", "0.7000", "0.7500 [0.7400, 0.7600]", "+0.0500", "–"],
    ]
    assert found.finding == (
        "3 of 3 numbers can be compared. Ours minus the paper's: mean +0.0687, from +0.0010 to "
        "+0.1550. 1 of 2 of our means lie within the range that the paper prints."
    )
    report.write(compared, Path("study.yaml"), paths)
    assert "1 of 2 of our means" in paths.report.read_text()


def test_other_data_are_not_compared(tmp_path: Path) -> None:
    other, paths = study(comparable=False), Paths(tmp_path)
    write_cells(other, paths, outcome)
    write(other, paths, "ours")
    assert paper_comparisons(other, paths) == []
    report.write(other, Path("study.yaml"), paths)
    assert "Paper against ours" not in paths.report.read_text()
