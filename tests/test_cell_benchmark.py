"""The benchmark of a cell still knows the commands of the stages."""

import pytest
from benchmarks.speed import cell

pytestmark = pytest.mark.slow


def test_a_cell_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cell, "SIZE", cell.SIZE | {"train": 40, "test": 10, "batch": 8, "epochs": 1}
    )
    timed = cell.time_cell()
    assert timed["steps"] == 10
    assert 0 < timed["share_of_steps_and_evaluation"] < 1
    assert timed["timing"]["trials"] == 2
