"""The list of planted bugs fits the code; `make planted-bugs`, which tries them, takes minutes."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.campaigns import planted_bugs
from benchmarks.campaigns.mutations import Mutation, PlaceNotFoundError

from dpsweep.base.files import read_json

ROOT = Path(__file__).parents[1]
LISTED = planted_bugs.read_bugs()


@pytest.mark.parametrize("bug", LISTED, ids=lambda bug: f"{bug.module}: {bug.name}")
def test_a_bug_can_be_planted(bug: planted_bugs.Bug) -> None:
    compile(bug.planted(), str(bug.file), "exec")
    assert bug.tests and all((ROOT / test).exists() for test in bug.tests)


def test_every_package_has_five_bugs() -> None:
    counts = Counter(bug.package for bug in LISTED)
    assert len(LISTED) >= 600
    assert {
        name: counts[name] for name in planted_bugs.packages_of_dpsweep() if counts[name] < 5
    } == {}


def recorded() -> dict[tuple[str, str], str | None]:
    """Return the tests that have caught bugs, by the bug's module and name."""
    rows = read_json(ROOT / "benchmarks" / "results" / "planted_bugs.json")["rows"]
    return {(row["module"], row["bug"]): row["caught_by"] for row in rows}


def test_every_bug_that_was_tried_is_caught() -> None:
    """A bug that moved with its code is untried; the next run of the list drops its old row."""
    listed = {(bug.module, bug.name) for bug in LISTED}
    assert [bug for bug, test in recorded().items() if bug in listed and not test] == []


@pytest.mark.nightly  # `make nightly` tries them all first; a new bug takes `--untried`
def test_every_bug_has_been_tried() -> None:
    assert recorded().keys() == {(bug.module, bug.name) for bug in LISTED}


# -- mutations -------------------------------------------------------------------------------

SOURCE = '''
class Sum:
    def add(self, values, *, start=0):
        """Add."""
        # A comment.
        total = start
        for each in values:
            if each > 0 and each < 10:
                total += each
        return self.scaled(total, 2, power=3, sign=1)
'''


@pytest.mark.parametrize(
    ("verbs", "line"),
    [
        ({"replace": "_1 < 10", "by": "10 < _1"}, "if each > 0 and 10 < each:"),
        ({"negate": "each < 10"}, "if each > 0 and (not each < 10):"),
        ({"drop": "total += _1"}, "pass"),
        ({"returns": "0"}, "return 0"),
        (
            {"replace": "self.scaled(_1, _2, ...)", "by": "self.scaled(_2, _1, ...)"},
            "return self.scaled(2, total, power=3, sign=1)",
        ),
        ({"replace": "each > 1", "by": "True"}, "has `each > 1` 0 times"),
        ({"replace": "each", "by": "0"}, "has `each` 3 times"),
        ({"replace": "_1 < 10", "by": "_1 < 10"}, "is the same"),
    ],
)
def test_a_mutation_changes_one_line_or_is_an_error(verbs: dict[str, str], line: str) -> None:
    try:
        changed = ast.unparse(Mutation("Sum.add", **verbs).applied(SOURCE))
    except PlaceNotFoundError as error:
        changed = str(error)
    assert line in changed
    before = {each.strip() for each in ast.unparse(ast.parse(SOURCE)).splitlines()}
    assert len({each.strip() for each in changed.splitlines()} - before) <= 1
