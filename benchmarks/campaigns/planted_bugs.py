"""Plant bugs one after another, and check that the fast tests fail.

    python -m benchmarks.campaigns.planted_bugs                      # all of planted_bugs.yaml, two at a time
    python -m benchmarks.campaigns.planted_bugs --only release.train # bugs with this text in module or name
    python -m benchmarks.campaigns.planted_bugs --untried            # bugs without a result
    python -m benchmarks.campaigns.planted_bugs --two-files          # go on until a second file catches it

A bug is a mutation of a named function (`mutations`). It is planted when Python imports the module, in a fork
of a process that has already imported the libraries; no file is changed. A test of the module must fail; an
error during collection does not count. The test that failed the last time runs first. At the end, all failed
tests must pass without a bug.

With ``--two-files``, the tests go on until a second file catches the bug, for at most `SECOND_FILE` seconds,
and the row gets the key ``files`` with both. A file of tests that stands nowhere alone may go. The files of
the bug's module run first, then all others, the quickest first; of each, only the tests that call the
function with the bug. A run without bugs records them; what the fixtures of a file call counts for all its
tests. A stopped call continues with the bugs whose rows have no such key.

Results go to benchmarks/results/planted_bugs.json, which keeps ``files`` and the rows of other bugs;
`python -m benchmarks.tables` writes the table of docs/reliability.md. The exit status is 1 if a bug
survives.
"""

import ast
import contextlib
import gc
import importlib
import importlib.machinery
import io
import multiprocessing
import os
import pkgutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.abc import MetaPathFinder
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import yaml

import dpsweep
from benchmarks.campaigns.mutations import Mutation, PlaceNotFoundError
from benchmarks.common import REPOSITORY, RESULTS, command_line
from dpsweep.base.files import read_json, write_json
from dpsweep.cli import preload
from dpsweep.study.load import StudyLoader

BUGS = REPOSITORY / "benchmarks" / "planted_bugs.yaml"
RESULT = RESULTS / "planted_bugs.json"
TIME_LIMIT = 600
SECOND_FILE = 20
"""Seconds of processor time until a second file must fail; all tests that call an engine take minutes."""
_SOURCE = REPOSITORY / "src" / "dpsweep"
TESTS = REPOSITORY / "tests"
OPTIONS = (
    *("-q", "--no-header", "--continue-on-collection-errors", "-p", "no:cacheprovider"),
    *("-m", "not slow and not nightly"),
)
_VERBS = {"in": "function", "return": "returns"}
Runs = list[list[str]]
"""Arguments of calls of pytest; a call runs only if the earlier ones find too little."""
Row = dict[str, Any]
Function = tuple[str, str]
"""The module, without ``dpsweep.``, and the qualified name."""


@dataclass(frozen=True)
class Bug:
    """A bug, and the tests that must catch it.

    Attributes:
        module: without ``dpsweep.``.
        name: description of the bug.
        mutation: the change of the code.
        tests: files of tests.
    """

    module: str
    name: str
    mutation: Mutation
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        """The package of the module; ``dpsweep`` for a top-level module."""
        package = self.module.rpartition(".")[0]
        return package or (self.module if self.module in packages_of_dpsweep() else "dpsweep")

    @property
    def file(self) -> Path:
        """The module's source."""
        path = _SOURCE / Path(*self.module.split("."))
        package = path / "__init__.py"
        return package if package.exists() else path.with_suffix(".py")

    def planted(self) -> ast.Module:
        """Return the module's tree with the bug in it.

        Raises:
            PlaceNotFoundError: the code to change does not exist any more.
        """
        try:
            return self.mutation.applied(self.file.read_text(encoding="utf-8"))
        except (OSError, PlaceNotFoundError) as error:
            raise PlaceNotFoundError(f"{self.module}, {self.name!r}: {error}") from None


def read_bugs() -> list[Bug]:
    """Return the bugs of planted_bugs.yaml."""
    modules: dict[str, Any] = yaml.load(BUGS.read_text("utf-8"), StudyLoader)  # noqa: S506 (a SafeLoader)
    return [
        Bug(
            module=module,
            name=name,
            mutation=Mutation(**{_VERBS.get(key, key): str(value) for key, value in bug.items()}),
            tests=tuple(section["tests"]),
        )
        for module, section in modules.items()
        for name, bug in section["bugs"].items()
    ]


@cache
def packages_of_dpsweep() -> tuple[str, ...]:
    """Return the names of all packages, without ``dpsweep.`` and without importing them."""
    folders = sorted(file.parent.relative_to(_SOURCE) for file in _SOURCE.glob("*/**/__init__.py"))
    return tuple(".".join(folder.parts) for folder in folders)


# -- one bug in a separate process -------------------------------------------------------------


class _Planted(importlib.machinery.SourceFileLoader):
    """A loader of a module with a bug."""

    bug: Bug

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 (the loader's signature)
        """Compile the tree with the bug."""
        return compile(self.bug.planted(), self.path, "exec")


class _Planter(MetaPathFinder):
    """A finder for the module of a bug."""

    def __init__(self, bug: Bug) -> None:
        self.bug = bug

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Return a loader for the bug's module, and None for other modules."""
        if fullname != f"dpsweep.{self.bug.module}":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.origin is not None
        spec.loader = _Planted(fullname, spec.origin)
        spec.loader.bug = self.bug
        return spec


@dataclass(eq=False)  # pytest puts its plugins into sets
class Outcome:
    """The result of the tests for a bug; a plugin of pytest that ends a run once enough files fail.

    Attributes:
        enough: number of files with a failed test after which no test runs.
        tests: the tests that may run; empty for all.
        caught: for each file with a failed test, the first that failed.
        passed: number of tests that passed before.
        seconds: processor time, which other load hardly changes.
        printed: the end of the output.
    """

    enough: int = 1
    tests: frozenset[str] = frozenset()
    caught: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    seconds: float = 0.0
    printed: str = "the process died"

    @property
    def caught_by(self) -> str | None:
        """The first test that failed, or None."""
        return next(iter(self.caught.values()), None)

    @property
    def done(self) -> bool:
        """Whether enough files have a failed test, or the time for a second one is over."""
        late = sum(os.times()[:4]) > SECOND_FILE
        return len(self.caught) >= (1 if late else self.enough)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that may not run."""
        items[:] = [item for item in items if not self.tests or item.nodeid in self.tests]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip the other tests of a file with a failed test; end the run once it is done."""
        if self.done:
            item.session.shouldstop = "caught"
        if item.nodeid.partition("::")[0] in self.caught:
            pytest.skip("the file has caught the bug")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the first test of each file that fails, and count those that pass."""
        self.passed += report.when == "call" and report.passed
        if report.failed:
            file = report.nodeid.partition("::")[0]
            self.caught.setdefault(file, report.nodeid.partition("[")[0])


def run_tests(bug: Bug | None, runs: Runs, found: Outcome, answer: Connection) -> None:
    """Run fast tests with a bug or without, in this process, until enough files fail; send the outcome."""
    with tempfile.TemporaryFile() as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # for pytest the same as Ctrl-C
        signal.alarm(TIME_LIMIT)
        if bug is not None:
            assert f"dpsweep.{bug.module}" not in sys.modules, "it would not be imported again"
            sys.meta_path.insert(0, _Planter(bug))
        for tests in runs:
            if not found.done:
                pytest.main([*OPTIONS, *tests], plugins=[found])
        log.seek(0)
        found.printed = log.read().decode(errors="replace")[-3000:]
    found.seconds = sum(os.times()[:4])
    found.tests = frozenset()
    answer.send(found)


class Calls:
    """What each test of a file calls of dpsweep; a plugin of pytest.

    A function is the pair of its module, without ``dpsweep.``, and its qualified name. The code of a
    class has the name of the class, that of a module ``<module>``.
    """

    def __init__(self) -> None:
        self.outside: dict[int, CodeType] = {}
        self.tests: dict[str, dict[int, CodeType]] = {}
        self._now = self.outside

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Note what the test calls beside its fixtures."""
        self._now = self.tests.setdefault(item.nodeid, {})
        try:
            return (yield)
        finally:
            self._now = self.outside

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call; a function for `sys.setprofile`."""
        if event == "call":
            self._now.setdefault(id(frame.f_code), frame.f_code)

    def functions(self) -> dict[Function, list[str]]:
        """Return the tests that call each function."""
        found: dict[Function, list[str]] = {}
        for test, called in self.tests.items():
            for code in (self.outside | called).values():
                if Path(code.co_filename).is_relative_to(_SOURCE):
                    name = code.co_qualname.replace(".<locals>", "")
                    found.setdefault((_module(code.co_filename), name), []).append(test)
        return found


def record_calls(file: str, answer: Connection) -> None:
    """Run the fast tests of a file in this process; send what they call, and their processor time."""
    calls = Calls()
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*OPTIONS, file], plugins=[calls])
    sys.setprofile(None)
    answer.send((calls.functions(), sum(os.times()[:4])))


@cache
def _module(file: str) -> str:
    path = Path(file).relative_to(_SOURCE).with_suffix("")
    return ".".join(path.parent.parts if path.name == "__init__" else path.parts)


def in_forks(
    call: Callable[..., None], work: Iterable[tuple[Any, tuple[Any, ...]]], workers: int
) -> Iterator[tuple[Any, Any]]:
    """Call a function in a fork of this process for each item, ``workers`` at a time.

    Yields:
        an item and what its call sent, or None if its process died.
    """
    fork = multiprocessing.get_context("fork")
    waiting, running = list(reversed(list(work))), dict[Any, Any]()
    while waiting or running:
        while waiting and len(running) < workers:
            item, arguments = waiting.pop()
            receiver, sender = fork.Pipe(duplex=False)
            fork.Process(target=call, args=(*arguments, sender)).start()
            sender.close()
            running[receiver] = item
        for receiver in wait(list(running)):
            try:
                answer = receiver.recv()
            except EOFError:
                answer = None
            yield running.pop(receiver), answer


def import_libraries(tests: Iterable[str]) -> None:
    """Import all libraries of dpsweep and of the tests; only forks import dpsweep itself."""
    modules = [each.name for each in pkgutil.walk_packages(dpsweep.__path__, "dpsweep.")]
    own = [name for name in modules if not name.endswith("__main__")]
    # Also import the plugins of pytest and the libraries that dpsweep imports lazily.
    for name in ("hypothesis", *own, *preload.LAZY_LIBRARIES):
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-p", "no:cacheprovider", *tests])
    for name in list(sys.modules):
        if name.partition(".")[0] in ("dpsweep", "tests"):
            del sys.modules[name]
    gc.freeze()  # garbage collection in forks skips these objects


# -- all bugs ------------------------------------------------------------------------------------


def tests_that_call(bugs: list[Bug], workers: int) -> dict[Bug, list[str]]:
    """Return the fast tests that call the function of each bug.

    The tests of the bug's module come first, then those of the quickest files. For a constant, the tests
    of all files that import its module are returned.
    """
    every = sorted(str(file.relative_to(REPOSITORY)) for file in TESTS.rglob("test_*.py"))
    calling, seconds = dict[str, dict[Function, list[str]]](), dict[str, float]()
    for file, answer in in_forks(record_calls, ((file, (file,)) for file in every), workers):
        calling[file], seconds[file] = answer or ({}, 0.0)
        print(f"{len(calling[file]):4} functions {seconds[file]:5.0f} s  {file}", flush=True)
    every.sort(key=lambda file: seconds[file])

    def tests(bug: Bug, function: str) -> list[str]:
        files = sorted(every, key=lambda file: file not in bug.tests)
        return [test for file in files for test in calling[file].get((bug.module, function), ())]

    return {bug: tests(bug, bug.mutation.function) or tests(bug, "<module>") for bug in bugs}


def try_bugs(bugs: list[Bug], workers: int, two_files: bool) -> list[Row]:
    """Plant each bug in a separate process, and report the results; a stopped call keeps its results."""
    before = {(row["module"], row["bug"]): row for row in earlier()}
    calling = tests_that_call(bugs, workers) if two_files and bugs else {}
    work: list[tuple[Bug, Runs, Outcome]] = []
    for bug in bugs:
        known = before.get((bug.module, bug.name), {}).get("caught_by")
        runs = [*([[known]] if known else []), list(bug.tests)]
        if two_files:
            files = dict.fromkeys(test.partition("::")[0] for test in calling[bug])
            runs.append([file for file in files if file not in bug.tests])
        work.append((bug, runs, Outcome(1 + two_files, frozenset(calling.get(bug, ())))))
    rows, catchers = [], set[str]()
    for bug, found in outcomes(work, workers):
        word = "caught  " if found.caught else "SURVIVED"
        print(f"{word} {found.seconds:5.0f} s  {bug.module}: {bug.name}", flush=True)
        if not found.caught:
            print(found.printed, flush=True)
        row = before.get((bug.module, bug.name), {})
        row |= {"package": bug.package, "module": bug.module, "bug": bug.name}
        row |= {"caught_by": found.caught_by, "seconds": round(found.seconds, 1)}
        rows.append(row | ({"files": list(found.caught)} if two_files else {}))
        write_json(RESULT, {"rows": merged(earlier(), rows)})
        catchers |= set(found.caught.values())
    check_tests_pass(catchers, workers)
    return rows


def outcomes(
    work: Iterable[tuple[Any, Runs, Outcome]], workers: int
) -> Iterator[tuple[Any, Outcome]]:
    """Run the tests for every bug in a fork of this process, ``workers`` at a time."""
    calls = ((bug, (bug, runs, outcome)) for bug, runs, outcome in work)
    for bug, found in in_forks(run_tests, calls, workers):
        yield bug, found or Outcome()


def check_tests_pass(tests: set[str], workers: int) -> None:
    """Check that the tests that caught bugs pass without a bug.

    Raises:
        SystemExit: a test fails.
    """
    files = sorted({test.partition("::")[0] for test in tests})
    shares = [files[start::workers] for start in range(workers)]
    work = [
        (None, [sorted(test for test in tests if test.partition("::")[0] in share)])
        for share in shares
        if share
    ]
    for _, outcome in outcomes(((bug, runs, Outcome()) for bug, runs in work), workers):
        if outcome.caught or not outcome.passed:
            sys.exit(f"{outcome.caught_by} fails without a bug too. {outcome.printed}")


def earlier() -> list[Row]:
    """Return the results of earlier calls, or an empty list."""
    return list(read_json(RESULT)["rows"]) if RESULT.exists() else []


def merged(before: list[Row], rows: list[Row]) -> list[Row]:
    """Return earlier rows, replaced by new ones, in the order of planted_bugs.yaml."""
    found = {(row["module"], row["bug"]): row for row in (*before, *rows)}
    listed = [(bug.module, bug.name) for bug in read_bugs()]
    return [found[key] for key in listed if key in found]


def main() -> None:
    """Try all bugs."""
    parser = command_line(__doc__)
    parser.add_argument("--only", default="", help="text in a bug's module or name")
    parser.add_argument("--untried", action="store_true", help="only bugs without a result")
    parser.add_argument("--two-files", action="store_true", help="until a second file catches it")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    bugs = [bug for bug in read_bugs() if arguments.only in f"{bug.module}: {bug.name}"]
    if arguments.untried or arguments.two_files:
        known = (row for row in earlier() if "files" in row or not arguments.two_files)
        tried = {(row["module"], row["bug"]) for row in known}
        bugs = [bug for bug in bugs if (bug.module, bug.name) not in tried]
    for bug in bugs:
        bug.planted()
    # A fork of a process with threads of OpenMP would wait for them for ever.
    os.environ["OMP_NUM_THREADS"] = "1"
    import_libraries(
        [str(TESTS)]
        if arguments.two_files
        else sorted({test for bug in bugs for test in bug.tests})
    )
    rows = try_bugs(bugs, arguments.workers, arguments.two_files)
    survivors = sum(row["caught_by"] is None for row in rows)
    minutes = sum(row["seconds"] for row in rows) / 60
    said = f"{len(rows)} bugs, {survivors} survived, {minutes:.0f} minutes of processor time"
    print(said, flush=True)
    # At a normal exit, compiler libraries would print lists of leaks.
    os._exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
