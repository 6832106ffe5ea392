"""The schema of trials: rows, readers and documentation agree with it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsweep.analysis import frames
from dpsweep.training.cell import COLUMNS, TRIALS, trial_table

FILES = Path(__file__).parents[2] / "docs" / "files.md"
VALUES = {pa.string(): "a", pa.int64(): 1, pa.float64(): 0.5, pa.bool_(): True}
ROW: dict[str, Any] = {each.name: VALUES.get(each.type, [0.5]) for each in TRIALS}


def test_documentation_and_readers_have_the_columns_of_the_schema():
    assert COLUMNS in FILES.read_text(encoding="utf-8"), "src/dpsweep/training/trial_columns.md"
    assert {*frames.TRIAL_COLUMNS, *frames.REPORT_COLUMNS} <= {*TRIALS.names, "problem"}


def test_rows_are_kept_and_wrong_rows_are_refused():
    assert trial_table([ROW, ROW]).to_pylist() == [ROW, ROW]
    of_rows = {key: value for key, value in ROW.items() if key != "unit_accuracy"}
    assert trial_table([of_rows]).to_pylist() == [of_rows]
    assert trial_table([ROW, of_rows]).to_pylist() == [ROW, of_rows | {"unit_accuracy": None}]
    for name in ("noise_multiplier", "trial_key"):
        with pytest.raises(ValueError, match=name):
            trial_table([{key: value for key, value in ROW.items() if key != name}])
    with pytest.raises(ValueError, match="nonsense"):
        trial_table([ROW | {"nonsense": 1}])
    with pytest.raises(pa.ArrowInvalid):
        trial_table([ROW | {"seed": "first"}])
