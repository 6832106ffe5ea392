"""The record of a trial has one schema: rows, readers and documentation agree with it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsweep.analysis import frames
from dpsweep.report import trials
from dpsweep.study.records import TRIALS, documentation, trial_table

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
VALUES = {pa.string(): "a", pa.int64(): 1, pa.float64(): 0.5, pa.bool_(): True}
ROW: dict[str, Any] = {each.name: VALUES.get(each.type, [0.5]) for each in TRIALS}


def test_the_page_has_every_column() -> None:
    table = documentation()
    assert table in DESIGN.read_text(encoding="utf-8"), "run python -m dpsweep.study.records"
    assert all(f"| `{name}` |" in table for name in TRIALS.names)


def test_what_is_read_is_written() -> None:
    assert {*frames.TRIAL_COLUMNS, *trials.COLUMNS} <= {*TRIALS.names, "problem"}


def test_rows_come_back() -> None:
    assert trial_table([ROW, ROW]).to_pylist() == [ROW, ROW]


@pytest.mark.parametrize("name", ["noise_multiplier", "trial_key"])
def test_a_row_without_a_column_is_refused(name: str) -> None:
    row = {key: value for key, value in ROW.items() if key != name}
    with pytest.raises(ValueError, match=name):
        trial_table([row])


def test_a_row_with_another_column_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        trial_table([ROW | {"nonsense": 1}])


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        trial_table([ROW | {"seed": "first"}])
