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
    assert len(LISTED) >= 160
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


def test_a_file_that_has_caught_a_bug_runs_no_more_and_the_next_one_runs(tmp_path: Path) -> None:
    """So every file that catches a bug is found at the cost of its first failure."""
    tests = "def test_one(): pass\ndef test_two(): assert 0\ndef test_three(): assert 0\n"
    for name in ("test_caught_here.py", "test_caught_there.py"):
        (tmp_path / name).write_text(tests, encoding="utf-8")
    (tmp_path / "test_not_caught.py").write_text("def test_four(): pass\n", encoding="utf-8")
    found = planted_bugs.Outcome()
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", str(tmp_path)], plugins=[found])
    assert [Path(each).name for each in found.files] == [
        "test_caught_here.py",
        "test_caught_there.py",
    ]
    assert found.passed == 3
    assert found.caught_by is not None and found.caught_by.endswith("here.py::test_two")


def test_a_bug_without_its_place_is_an_error() -> None:
    bug = planted_bugs.Bug("base.files", "nothing is written", Mutation("gone", returns="1"), ())
    with pytest.raises(
        PlaceNotFoundError,
        match=r"base\.files, 'nothing is written': gone is defined 0 times, not once",
    ):
        bug.planted()


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


def changed(function: str, **verbs: str) -> str:
    """Return the function's code with the mutation."""
    return ast.unparse(Mutation(function, **verbs).applied(SOURCE))


@pytest.mark.parametrize(
    ("verbs", "line"),
    [
        ({"replace": "each > 0", "by": "each >= 0"}, "if each >= 0 and each < 10:"),
        ({"replace": "_1 < 10", "by": "10 < _1"}, "if each > 0 and 10 < each:"),
        ({"negate": "each < 10"}, "if each > 0 and (not each < 10):"),
        ({"drop": "total += _1"}, "pass"),
        ({"returns": "0"}, "return 0"),
        (
            {"replace": "self.scaled(..., power=_1)", "by": "self.scaled(..., power=_1 + 1)"},
            "return self.scaled(total, 2, power=3 + 1, sign=1)",
        ),
        (
            {"replace": "self.scaled(_1, _2, ...)", "by": "self.scaled(_2, _1, ...)"},
            "return self.scaled(2, total, power=3, sign=1)",
        ),
    ],
)
def test_a_mutation_changes_the_tree(verbs: dict[str, str], line: str) -> None:
    lines = [each.strip() for each in changed("Sum.add", **verbs).splitlines()]
    assert line in lines
    before = {each.strip() for each in ast.unparse(ast.parse(SOURCE)).splitlines()}
    assert len(set(lines) - before) <= 1


@pytest.mark.parametrize(
    ("verbs", "message"),
    [
        ({"replace": "each > 1", "by": "True"}, "has `each > 1` 0 times"),
        ({"replace": "each", "by": "0"}, "has `each` 3 times"),
        ({"replace": "_1 < 10", "by": "_1 < 10"}, "is the same"),
        ({"drop": "total -= _1"}, "has `total -= _1` 0 times"),
    ],
)
def test_a_missing_or_ambiguous_place_is_an_error(verbs: dict[str, str], message: str) -> None:
    with pytest.raises(PlaceNotFoundError, match=message):
        changed("Sum.add", **verbs)
