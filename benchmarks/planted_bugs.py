"""Plant one bug after another and see the fast tests fail.

    python -m benchmarks.planted_bugs                     # all of planted_bugs.yaml, two at a time
    python -m benchmarks.planted_bugs --only "sampling"   # those whose name or group has this text

A bug is a piece of a source file and what stands there instead. Each is planted in a copy of the
repository, where the tests that it names must fail: a test that fails, not one that cannot be
collected. They pass without it, which is checked first. Results go to
benchmarks/results/planted_bugs.json, where the bugs that were not tried keep theirs;
`python -m benchmarks.tables` writes the table of docs/privacy.md. The exit status is 1 if a bug survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpsweep.files import read_json, write_json

REPOSITORY = Path(__file__).parents[1]
BUGS = REPOSITORY / "benchmarks" / "planted_bugs.yaml"
RESULTS = REPOSITORY / "benchmarks" / "results" / "planted_bugs.json"
TIME_LIMIT = 600
PASSED, FAILED = 0, 1  # exit statuses of pytest; others are errors of its own


@dataclass(frozen=True)
class Bug:
    """A mistake, and who must see it.

    Attributes:
        name: what is wrong.
        group: the part of the program.
        file: under ``src/dpsweep``.
        find: text that stands in the file once.
        replace: what stands there instead.
        tests: arguments of pytest.
    """

    name: str
    group: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    def plant(self, root: Path) -> None:
        """Put the bug into a copy of the repository.

        Raises:
            ValueError: the text is not there, or more than once.
        """
        path = root / "src" / "dpsweep" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.find) != 1:
            raise ValueError(f"{self.name}: {self.file} has the text {text.count(self.find)} times")
        path.write_text(text.replace(self.find, self.replace), encoding="utf-8")


def read_bugs() -> list[Bug]:
    """The list of planted_bugs.yaml."""
    groups: dict[str, Any] = yaml.safe_load(BUGS.read_text(encoding="utf-8"))
    return [
        Bug(
            name=name,
            group=group,
            file=bug["file"],
            find=bug["find"].rstrip("\n"),
            replace=bug["replace"].rstrip("\n"),
            tests=tuple(bug.get("tests", section["tests"])),
        )
        for group, section in groups.items()
        for name, bug in section["bugs"].items()
    ]


def copy_repository(folder: Path) -> None:
    """Copy what tests read: all that git knows or would add, without results."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = REPOSITORY / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def run_tests(root: Path, tests: tuple[str, ...]) -> tuple[int, str, float]:
    """Run fast tests in a copy; return exit status, the first failure and seconds."""
    environment = os.environ | {
        "PYTHONPATH": str(root / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    started = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "-m", "not slow", *tests],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end after {TIME_LIMIT} s", TIME_LIMIT
    lines = done.stdout.splitlines()
    failure = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "")
    if done.returncode not in (PASSED, FAILED):
        failure = done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode, failure, time.monotonic() - started


def try_bug(bug: Bug) -> dict[str, Any]:
    """Plant a bug in a copy of its own and run its tests."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy_repository(root)
        bug.plant(root)
        status, failure, seconds = run_tests(root, bug.tests)
    caught = status == FAILED
    print(f"{'caught  ' if caught else 'SURVIVED'} {seconds:5.0f} s  {bug.group}: {bug.name}")
    if not caught:
        print(failure)
    test = failure.partition(" ")[2].partition(" - ")[0].partition("[")[0]
    return {
        "group": bug.group,
        "bug": bug.name,
        "caught_by": test if caught else None,
        "seconds": round(seconds, 1),
    }


def check_tests_pass(bugs: list[Bug], workers: int) -> None:
    """See that the tests pass without a bug.

    Raises:
        SystemExit: one fails.
    """
    tests = sorted({test for bug in bugs for test in bug.tests})

    def check(test: str) -> tuple[str, int, str]:
        status, failure, _ = run_tests(REPOSITORY, (test,))
        return test, status, failure

    with ThreadPoolExecutor(workers) as pool:
        for test, status, failure in pool.map(check, tests):
            if status != PASSED:
                sys.exit(f"{test} does not pass without a bug: {failure}")


def merged(result: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """An earlier result with new rows, in the order of the list; minutes are those of the earlier one."""
    found = {(row["group"], row["bug"]): row for row in (*result["rows"], *rows)}
    listed = [(bug.group, bug.name) for bug in read_bugs()]
    return result | {"rows": [found[key] for key in listed if key in found]}


def main() -> None:
    """Try all bugs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="text in a bug's name or group")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    bugs = [bug for bug in read_bugs() if arguments.only in f"{bug.group}: {bug.name}"]
    started = time.monotonic()
    check_tests_pass(bugs, arguments.workers)
    with ThreadPoolExecutor(arguments.workers) as pool:
        rows = list(pool.map(try_bug, bugs))
    survivors = [row["bug"] for row in rows if row["caught_by"] is None]
    minutes = (time.monotonic() - started) / 60
    result = {"minutes": round(minutes, 1), "rows": rows}
    write_json(RESULTS, merged(read_json(RESULTS), rows) if arguments.only else result)
    print(f"{len(rows)} bugs, {len(survivors)} survived, {minutes:.1f} minutes")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
