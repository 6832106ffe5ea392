"""The list of planted bugs fits the code: `make planted-bugs` itself takes twenty minutes."""

from pathlib import Path

import pytest
from benchmarks import planted_bugs

from dpsweep.files import read_json

ROOT = Path(__file__).parents[1]
LISTED = planted_bugs.read_bugs()


@pytest.mark.parametrize("bug", LISTED, ids=lambda bug: f"{bug.group}: {bug.name}")
def test_a_bug_can_be_planted(bug) -> None:
    source = (ROOT / "src" / "dpsweep" / bug.file).read_text(encoding="utf-8")
    assert source.count(bug.find) == 1
    assert source.replace(bug.find, bug.replace) != source
    for test in bug.tests:
        assert (ROOT / test.partition("::")[0]).exists()


def test_no_bug_has_survived() -> None:
    rows = read_json(ROOT / "benchmarks" / "results" / "planted_bugs.json")["rows"]
    assert len(LISTED) >= 60
    assert {(row["group"], row["bug"]) for row in rows} == {(bug.group, bug.name) for bug in LISTED}
    assert all(row["caught_by"] for row in rows)
