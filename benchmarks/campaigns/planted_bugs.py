"""Plant bugs one after another, and check that the fast tests fail.

    python -m benchmarks.campaigns.planted_bugs                      # all of planted_bugs.yaml, two at a time
    python -m benchmarks.campaigns.planted_bugs --only release.train # bugs with this text in module or name
    python -m benchmarks.campaigns.planted_bugs --untried            # bugs without a result
    python -m benchmarks.campaigns.planted_bugs --two-files          # go on until a second file catches it

A bug is a mutation of a named function (`mutations`). It is planted when Python imports the module, in a fork
of a process that has already imported the libraries; no file is changed. A test of the module must fail; an
error during collection does not count. The test that failed the last time runs first. At the end, all failed
tests must pass without a bug.

With ``--two-files``, the tests go on until a second file catches the bug, and the row gets the key ``files``
with both. A file of tests may go if it stands nowhere alone. The tests of the bug's module run first, then
all others that call its function, the quickest file first; a run without bugs records which file calls what.
A stopped call continues with the bugs whose rows have no such key.

Results go to benchmarks/results/planted_bugs.json, which keeps the results of other bugs;
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
_SOURCE = REPOSITORY / "src" / "dpsweep"
TESTS = REPOSITORY / "tests"
OPTIONS = ("-q", "--no-header", "-p", "no:cacheprovider", "-m", "not slow and not nightly")
_VERBS = {"in": "function", "return": "returns"}
Runs = list[list[str]]
"""Arguments of calls of pytest; a call runs only if the earlier ones pass."""
Row = dict[str, Any]


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
    """The result of the tests for a bug; a plugin of pytest.

    Attributes:
        caught_by: the first test that failed, or None.
        files: the files with a failed test.
        passed: number of tests that passed before.
        seconds: processor time, which other load hardly changes.
        printed: the end of the output.
    """

    caught_by: str | None = None
    files: list[str] = field(default_factory=list)
    passed: int = 0
    seconds: float = 0.0
    printed: str = "the process died"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the first test that fails and its file, and count those that pass."""
        self.passed += report.when == "call" and report.passed
        if report.failed:
            self.caught_by = self.caught_by or report.nodeid.partition("[")[0]
            self.files = [*dict.fromkeys([*self.files, report.nodeid.partition("::")[0]])]


def run_tests(bug: Bug | None, runs: Runs, enough: int, answer: Connection) -> None:
    """Run fast tests with a bug or without, in this process; send an `Outcome`.

    Each run ends with the first test that fails. No run follows once ``enough`` files have a failed test.
    """
    found = Outcome()
    with tempfile.TemporaryFile() as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # for pytest the same as Ctrl-C
        signal.alarm(TIME_LIMIT)
        if bug is not None:
            assert f"dpsweep.{bug.module}" not in sys.modules, "it would not be imported again"
            sys.meta_path.insert(0, _Planter(bug))
        for tests in runs:
            pytest.main([*OPTIONS, "-x", *tests], plugins=[found])
            if len(found.files) >= enough:
                break
        log.seek(0)
        found.printed = log.read().decode(errors="replace")[-3000:]
    found.seconds = sum(os.times()[:4])
    answer.send(found)


def record_calls(file: str, answer: Connection) -> None:
    """Run the fast tests of a file in this process; send what they call of dpsweep, and their processor time.

    A function is the pair of its module, without ``dpsweep.``, and its qualified name. The code of a
    class has the name of the class, that of a module ``<module>``.
    """
    called: dict[int, CodeType] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.setdefault(id(frame.f_code), frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*OPTIONS, file])
    sys.setprofile(None)
    own = [code for code in called.values() if Path(code.co_filename).is_relative_to(_SOURCE)]
    names = {(_module(code.co_filename), code.co_qualname.replace(".<locals>", "")) for code in own}
    answer.send((names, sum(os.times()[:4])))


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


def files_that_call(bugs: list[Bug], workers: int) -> dict[Bug, list[str]]:
    """Return the files of fast tests that call the function of each bug.

    The tests of the bug's module come first, then the quickest. For a constant, files that import its
    module are returned.
    """
    every = sorted(str(file.relative_to(REPOSITORY)) for file in TESTS.rglob("test_*.py"))
    called, seconds = dict[str, set[tuple[str, str]]](), dict[str, float]()
    for file, answer in in_forks(record_calls, ((file, (file,)) for file in every), workers):
        called[file], seconds[file] = answer or (set(), 0.0)
        print(f"{len(called[file]):4} functions {seconds[file]:5.0f} s  {file}", flush=True)
    every.sort(key=lambda file: seconds[file])

    def files(bug: Bug, function: str) -> list[str]:
        found = [file for file in every if (bug.module, function) in called[file]]
        return sorted(found, key=lambda file: file not in bug.tests)

    return {bug: files(bug, bug.mutation.function) or files(bug, "<module>") for bug in bugs}


def try_bugs(bugs: list[Bug], workers: int, two_files: bool) -> list[Row]:
    """Plant each bug in a separate process, and report the results; a stopped call keeps its results."""
    before = {(row["module"], row["bug"]): row["caught_by"] for row in earlier()}
    work: list[tuple[Bug, Runs]] = []
    if two_files:
        work = [
            (bug, [[file] for file in files])
            for bug, files in files_that_call(bugs, workers).items()
        ]
    else:
        for bug in bugs:
            known = before.get((bug.module, bug.name))
            work.append((bug, [*([[known]] if known else []), list(bug.tests)]))
    rows = []
    for bug, found in outcomes(work, workers, 1 + two_files):
        word = "caught  " if found.caught_by else "SURVIVED"
        print(f"{word} {found.seconds:5.0f} s  {bug.module}: {bug.name}", flush=True)
        if not found.caught_by:
            print(found.printed, flush=True)
        row = {"package": bug.package, "module": bug.module, "bug": bug.name}
        row |= {"caught_by": found.caught_by, "seconds": round(found.seconds, 1)}
        rows.append(row | ({"files": found.files} if two_files else {}))
        write_json(RESULT, {"rows": merged(earlier(), rows)})
    return rows


def outcomes(
    work: Iterable[tuple[Any, Runs]], workers: int, enough: int = 1
) -> Iterator[tuple[Any, Outcome]]:
    """Run the tests for every bug in a fork of this process, ``workers`` at a time."""
    calls = ((bug, (bug, runs, enough)) for bug, runs in work)
    for bug, found in in_forks(run_tests, calls, workers):
        yield bug, found or Outcome()


def check_tests_pass(rows: list[Row], workers: int) -> None:
    """Check that the tests that caught bugs pass without a bug.

    Raises:
        SystemExit: a test fails.
    """
    tests = sorted({row["caught_by"] for row in rows if row["caught_by"]})
    files = sorted({test.partition("::")[0] for test in tests})
    shares = [files[start::workers] for start in range(workers)]
    work: list[tuple[None, Runs]] = [
        (None, [[test for test in tests if test.partition("::")[0] in share]])
        for share in shares
        if share
    ]
    for _, outcome in outcomes(work, workers):
        if outcome.caught_by or not outcome.passed:
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
    check_tests_pass(rows, arguments.workers)
    survivors = sum(row["caught_by"] is None for row in rows)
    minutes = sum(row["seconds"] for row in rows) / 60
    said = f"{len(rows)} bugs, {survivors} survived, {minutes:.0f} minutes of processor time"
    print(said, flush=True)
    # At a normal exit, compiler libraries would print lists of leaks.
    os._exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
