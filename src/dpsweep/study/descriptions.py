"""Functions that describe figures and tables, and the files that hold them.

A description speaks of roles and words (`dpsweep.config.selections`):

    @figure("Mine", each={"dataset": ["main", "large"]}, name="by_c_{dataset}")
    def by_clipping_bound(dataset: str) -> ClippingCurve:
        ...

The paper's are `dpsweep.figures.paper`. A study has those, and those of its own files (``figures:
my_figures.py``); one that has the name of another takes its place.
"""

import importlib
import importlib.util
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from dpsweep.config.messages import explain, value
from dpsweep.config.selections import Settings
from dpsweep.study.bound import MistakeError
from dpsweep.study.table_targets import PrintedTable
from dpsweep.study.targets import Figure, Target

PAPER = "dpsweep.figures.paper"
"""The module that describes the figures and tables of the paper."""

Series = Mapping[str, str | Sequence[Any]]
"""Roles, names, words or values by key; every combination of them is one member of the series."""


@dataclass(frozen=True)
class Description:
    """A function that describes a figure or a table, or each member of a series.

    Attributes:
        kind: what it returns.
        name: of the target; what tells the members of a series apart is in braces.
        section: heading of the report.
        series: its members; ``({},)`` of a single target.
        function: takes a member's keys, and returns the description.
    """

    kind: type[Target]
    name: str
    section: str
    series: tuple[Series, ...]
    function: Callable[..., Any]

    def __call__(self, **member: Any) -> Any:
        """Return what the function returns, to build another description on it."""
        return self.function(**member)

    @property
    def file(self) -> Path:
        """The file of the function."""
        return Path(self.function.__code__.co_filename)

    @property
    def where(self) -> str:
        """File, line and name, for messages."""
        line = self.function.__code__.co_firstlineno
        return f"{self.file.name}, line {line}: {self.function.__name__}"

    def target(self, **member: Any) -> Target:
        """The figure or table with its section.

        Raises:
            MistakeError: the function fails; the message names the line of its file.
        """
        try:
            found = self.function(**member)
        except Exception as error:
            raise MistakeError(_said(error, self.file)) from error
        if not isinstance(found, self.kind):
            wanted = "figure" if self.kind is Figure else "table"
            raise MistakeError(f"{self.where}: found {value(found)}; allowed: a {wanted}")
        return found.model_copy(update={"section": self.section})


def _decorator(
    kind: type[Target], section: str, name: str, each: Series | Sequence[Series]
) -> Callable[[Callable[..., Any]], Description]:
    series = (each,) if isinstance(each, Mapping) else tuple(each)

    def described(function: Callable[..., Any]) -> Description:
        return Description(kind, name or function.__name__, section, series, function)

    return described


def figure(
    section: str, *, name: str = "", each: Series | Sequence[Series] = ({},)
) -> Callable[[Callable[..., Any]], Description]:
    """Mark a function that describes a figure.

    >>> @figure("Mine")
    ... def accuracy() -> Figure: ...
    >>> accuracy.name
    'accuracy'

    Args:
        section: heading of the report that it appears under.
        name: of the figure, by default the function's; in a series the keys of ``each`` are in braces.
        each: a series: one figure for every combination of the roles or names (of dataset, backbone, method,
            optimizer), and of the values or words (of epsilon, epochs, clipping_bound) by key, which the
            function takes as arguments. A list of such mappings is one series after the other.
    """
    return _decorator(Figure, section, name, each)


def table(
    section: str, *, name: str = "", each: Series | Sequence[Series] = ({},)
) -> Callable[[Callable[..., Any]], Description]:
    """Mark a function that describes a table; arguments as of `figure`."""
    return _decorator(PrintedTable, section, name, each)


def descriptions(files: Sequence[str], paper: bool = True) -> list[Description]:
    """The descriptions of a study in their order: the paper's, then those of its own files.

    Args:
        files: Python files of the study.
        paper: whether the paper's are among them.

    Raises:
        MistakeError: a file cannot be read, or fails; the message names its line.
    """
    found: dict[str, Description] = {}
    for module in [*([importlib.import_module(PAPER)] if paper else []), *map(_module, files)]:
        described = list(_in(module))
        for name, times in Counter(each.name for each in described).items():
            if times > 1:
                raise MistakeError(
                    f"{module.__file__}: found {times} targets of the name {name}; allowed: one"
                )
        found |= {each.name: each for each in described}
    return list(found.values())


def _in(module: ModuleType) -> Iterator[Description]:
    return (each for each in vars(module).values() if isinstance(each, Description))


def _module(file: str) -> ModuleType:
    path = Path(file)
    name = f"dpsweep_figures_of_{path.stem}"
    if not path.is_file():
        raise MistakeError(f"figures: found {file}, which is no file; allowed: a Python file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise MistakeError(f"figures: found {file}; allowed: a Python file, whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where classes look for the names in their annotations
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise MistakeError(_said(error, path)) from error
    return module


def _said(error: Exception, file: Path) -> str:
    """Say what is wrong in a file of descriptions, and in which line."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    if isinstance(error, SyntaxError):
        lines, what = [error.lineno], f"not valid Python: {error.msg}"
    elif isinstance(error, ValidationError) and (model := _models().get(error.title)):
        content = {each["loc"][0]: each["input"] for each in error.errors() if each["loc"]}
        what = f"{error.title}: {'; '.join(explain(error, content, model.model_json_schema()))}"
    else:
        what = f"{type(error).__name__}: {error}"
    return f"{file.name}, line {lines[-1]}: {what}" if lines else f"{file.name}: {what}"


def _models() -> dict[str, type[Settings]]:
    """The classes that describe figures and tables, and their parts, by name."""
    found: dict[str, type[Settings]] = {}
    classes = [Settings]
    while classes:
        found |= {each.__name__: each for each in classes}
        classes = [below for each in classes for below in each.__subclasses__()]
    return found
