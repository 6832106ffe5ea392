"""Figures and tables of a study: their classes, the functions that describe them, and what these make.

A class of figures or tables says which cells it needs. The classes import no plotting library, because every
job of a study imports them.

A function takes the grids of the study (`dpsweep.study.grid`), and returns or yields figures:

    @figure("Mine", each={"dataset": ["main", "large"]}, name="by_c_{dataset}")
    def by_clipping_bound(grids: Grids, dataset: str) -> ClippingCurve:
        ...

A study has those of the paper (`dpsweep.figures.paper`) and those of its own files (``figures:
my_figures.py``). A later description replaces an earlier one of the same name. Targets that need roles or
cells that the study lacks are listed with the reason.

Titles and labels of panels and lines are made from the drawn cells, so that they stay true when a grid is
edited. `Words` has words for captions.
"""

import ast
import importlib
import inspect
import itertools
import re
import sys
import traceback
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationError

from dpsweep.base.formatting import count
from dpsweep.study.cells import NAMED, PARTS, number
from dpsweep.study.clipping import RULES
from dpsweep.study.grid import (
    Grid,
    Grids,
    Line,
    LinePanel,
    MistakeError,
    NotDrawnError,
    Panel,
    Selection,
)
from dpsweep.study.messages import LONGEST_JOINED_NAME, NAME_PATTERN, explain, shorten, value
from dpsweep.study.section import Settings
from dpsweep.study.sweeps import Sweep

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd

    from dpsweep.study.file import Study, Style
    from dpsweep.study.paths import Paths

Panels = Annotated[list[Panel], Field(min_length=1)]
LinePanels = Annotated[list[LinePanel], Field(min_length=1)]
Missing = list[Path] | None
"""Absent files are added to the list and left out. If it is None, they are an error."""


class Target(Settings):
    """A figure or a table of a study."""

    title: ClassVar[str] = "Own"
    """The heading of the family's targets."""
    family: ClassVar[str] = "own"
    """The name of the family."""
    part: ClassVar[str] = "panels"
    """The key of the target's selections."""
    needs_bounds: ClassVar[bool] = False
    """Whether the target draws C; AUTO-S and training without clipping have no C."""
    ordered: ClassVar[bool] = False
    """Whether the lines of a panel go from the easy problem to the hard one."""
    tunes: ClassVar[bool] = False
    """Whether the drawn settings are chosen by accuracy; the caption then says how."""
    shows_means: ClassVar[bool] = False
    """Whether accuracies are means over the seeds that chose; the caption then explains the optimism."""
    marks: ClassVar[tuple[str, str]] = ("", "")
    """For the caption: the mark of squares as good as the best, and the group that they are compared in."""
    tuning_note: ClassVar[str] = ""
    """A further sentence of the caption on how settings were chosen."""
    single: ClassVar[tuple[str, ...]] = ()
    """Axes that must have one value in each selection unless they are drawn: a line is one problem."""
    drawn: ClassVar[tuple[str, ...]] = ()
    """Axes that must have two values or more in each selection, such as the x axis of a curve."""
    reads_steps: ClassVar[bool] = False
    """Whether it draws what every step of the trials recorded."""

    section: str = ""
    """its heading in the report, from its function (`figure`, `table`)"""
    caption: Annotated[str, Field(min_length=1)]
    """in the report; `dpsweep.study.targets.Words` has words for it"""

    def selections(self) -> list[Selection]:
        """Return every selection of the target."""
        return self.leaves()

    def parts(self) -> list[Any]:
        """Return the panels, entries or cells of the target; none for a table that selects no cells."""
        parts = getattr(self, self.part, [])
        return parts if isinstance(parts, list) else [parts]

    def leaves(self) -> list[Selection]:
        """Return the selections of the parts, or of their lines, in the order of the file."""
        return [
            leaf
            for part in self.parts()
            for leaf in (part.lines if isinstance(part, LinePanel) else [part])
        ]

    def gradient_norms(self) -> list[Selection]:
        """Return the selections whose gradient norms the target draws (all batch sizes compete)."""
        return []

    def overlaps(self) -> list[Selection]:
        """Return the selections of cells whose overlaps of gradients the target draws."""
        return []

    def drawn_axes(self) -> tuple[str, ...]:
        """Return the axes that the target draws: each selection must have two values or more.

        Axes that are neither drawn nor ``single`` are tuned.
        """
        return self.drawn

    def caption_end(self) -> str:
        """Return the end of the caption of a resolved target."""
        return ""

    def with_study(self, study: "Study") -> Self:
        """Return the target with what it takes from the study beside its cells.

        Raises:
            NotDrawnError: the study lacks what it needs.
            MistakeError: the description is wrong.
        """
        return self

    def further_settings(self) -> dict[str, Any]:
        """Return what it has from the study beside its fields, for its fingerprint."""
        return {}

    def described_datasets(self, swept: Sequence[str]) -> Sequence[str]:
        """Return the datasets whose metadata it reads, of those with a sweep."""
        return ()


class PrintedTable(Target):
    """A table. A family of your own defines ``frames`` for its numbers and ``layout`` to print them."""

    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv")
    """Suffixes of the files of the table."""
    words: ClassVar[tuple[str, ...]] = ()
    """Columns of text that may look like numbers."""

    @property
    def row_titles(self) -> list[str]:
        """The titles of columns with row labels, which are text."""
        return []

    @abstractmethod
    def frames(
        self, study: "Study", paths: "Paths", missing: Missing = None
    ) -> "dict[str, pd.DataFrame]":
        """Read results, and return the rows of the table's files by suffix; ``csv`` is printed.

        Args:
            study: the study that has the table.
            paths: the paths of its results.
            missing: absent files are added to it and left out. If it is None, they are an error.

        Raises:
            MissingResultsError: a file is absent, and ``missing`` is None.
            UnreadableResultsError: a file has a wrong content.
        """

    @abstractmethod
    def layout(self, numbers: "pd.DataFrame") -> Any:
        """Return the text of the rows: a `dpsweep.tables.text.TextTable`, which writes LaTeX and Markdown."""


class Figure(Target):
    """A figure. A family of your own defines ``compute`` for its numbers and ``plot`` to draw them."""

    keys: ClassVar[tuple[str, ...]] = ()
    """The columns of a frame for `draw` that distinguish the rows of a line."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The other columns that it must have."""

    @abstractmethod
    def compute(self, study: "Study", paths: "Paths", missing: Missing = None) -> "pd.DataFrame":
        """Read results, and return the rows of the figure's CSV; no rows if there are no results yet.

        Args:
            study: the study that has the figure.
            paths: the paths of its results.
            missing: absent files are added to it and left out. If it is None, they are an error.

        Raises:
            MissingResultsError: a file is absent, and ``missing`` is None.
            UnreadableResultsError: a file has a wrong content.
        """

    @abstractmethod
    def plot(self, numbers: "pd.DataFrame") -> "matplotlib.figure.Figure":
        """Draw the numbers of `compute`."""

    def panel_titles(self) -> list[str]:
        """Return the titles of its panels."""
        return [panel.title for panel in self.parts()]

    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return ``keys`` and ``needs`` for the options of this figure."""
        return self.keys, self.needs

    @classmethod
    def draw(
        cls, frame: "pd.DataFrame", *, style: "Style | None" = None, **options: Any
    ) -> "matplotlib.figure.Figure":
        """Draw any frame, in a notebook: without columns for panels or lines there is one of them.

        >>> import pandas as pd
        >>> from dpsweep.figures import ClippingCurve
        >>> frame = pd.DataFrame({"clipping_bound": [0.1, 1, 10], "centre": [0.6, 0.7, 0.5]})
        >>> drawing = ClippingCurve.draw(frame)
        >>> drawing.savefig("curve.pdf")  # doctest: +SKIP
        >>> drawing.axes[-1].get_xlabel()
        'Clipping bound C (log scale)'

        Args:
            frame: the rows, in any order; the docstring of the class has the columns.
            style: colours and sizes.
            options: fields of the class, such as ``quantity`` or ``rows``.

        Raises:
            ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
            TypeError: the class has no such field.
        """
        if unknown := options.keys() - cls.model_fields.keys():
            raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
        draw: Any = importlib.import_module("dpsweep.figures.style").draw_frame
        found: matplotlib.figure.Figure = draw(cls.model_construct(**options), frame, style)
        return found


def named_rule(selection: Selection) -> str | None:
    """Return the clipping rule of a selection if the rule has no bound, else None."""
    first = next(iter(selection.values("clipping_bound")), None)
    return first if isinstance(first, str) and first in RULES else None


# -- descriptions -----------------------------------------------------------------------------

PAPER = "dpsweep.figures.paper"
"""The module that describes the figures and tables of the paper."""

Series = Mapping[str, str | Sequence[str]]
"""Roles or names by part of the problem; every combination of them is one member of the series."""


@dataclass(frozen=True)
class Description:
    """A function that describes a figure or a table, or each member of a series.

    Attributes:
        name: of the target; braces with a part of the problem or an axis are replaced by what it draws.
        section: heading of the report.
        series: its members; ``({},)`` for a single target.
        function: takes the grids and a member's roles, and returns a target or yields several.
    """

    name: str
    section: str
    series: tuple[Series, ...]
    function: Callable[..., Any]

    def __call__(self, *arguments: Any, **member: Any) -> Any:
        """Call the function, for another description that builds on it."""
        return self.function(*arguments, **member)

    def members(self) -> Iterator[dict[str, str]]:
        """Yield the roles of each member of the series, by part."""
        for series in self.series:
            lists = ([each] if isinstance(each, str) else each for each in series.values())
            for roles in itertools.product(*lists):
                yield dict(zip(series, roles, strict=True))

    @property
    def file(self) -> Path:
        """The file with the function."""
        return Path(inspect.unwrap(self.function).__code__.co_filename)

    @property
    def where(self) -> str:
        """File, line and name, for messages."""
        line = inspect.unwrap(self.function).__code__.co_firstlineno
        return f"{self.file.name}, line {line}: {self.function.__name__}"

    def targets(self, grids: Grids, roles: Mapping[str, str]) -> Iterator[Target]:
        """Yield the figures or tables of the function, with their section.

        Raises:
            NotDrawnError: the study lacks roles or cells.
            MistakeError: the function returns something else.
        """
        # A table that selects no cells needs no grids.
        given = [grids] if inspect.signature(self.function).parameters else []
        found = self.function(*given, **roles)
        for each in found if isinstance(found, Iterator) else [found]:
            if not isinstance(each, Target):
                raise MistakeError(f"found {value(each)}; allowed: a figure or a table")
            yield each.model_copy(update={"section": self.section})


def figure(
    section: str, *, name: str = "", each: Series | Sequence[Series] = ({},)
) -> Callable[[Callable[..., Any]], Description]:
    """Mark a function that describes a figure.

    >>> @figure("Mine")
    ... def accuracy(grids: Grids) -> Figure: ...
    >>> accuracy.name
    'accuracy'

    Args:
        section: the heading in the report.
        name: of the figure, by default the function's. ``{dataset}``, ``{epsilon}`` and the like are replaced
            by what the figure draws, so that each figure of a series has its name.
        each: a series: one figure for every combination of roles or names of dataset, backbone, method and
            optimizer, by key. The function takes them as arguments. A list of such mappings is one series
            after the other.
    """
    if not isinstance(section, str):
        raise TypeError(f"found section {section!r}; allowed: @figure('Section')")
    series = (each,) if isinstance(each, Mapping) else tuple(each)
    return lambda function: Description(name or function.__name__, section, series, function)


table = figure
"""Mark a function that describes a table; arguments as of `figure`."""


def descriptions(files: Sequence[str], paper: bool = True) -> list[Description]:
    """Return the descriptions of a study in their order: the paper's, then those of its own files.

    Args:
        files: Python files of the study.
        paper: whether to include the paper's.

    Raises:
        MistakeError: a file cannot be read, or fails; the message names the line.
    """
    own = [each for file in files for each in _described(_content(file))]
    shipped = _described(vars(importlib.import_module(PAPER))) if paper else []
    names = {each.name for each in own}
    return [*(each for each in shipped if each.name not in names), *own]


def _described(content: Mapping[str, Any]) -> list[Description]:
    """Return the descriptions in a module, each once, also if it has two names."""
    return list(
        {id(each): each for each in content.values() if isinstance(each, Description)}.values()
    )


def _content(file: str) -> dict[str, Any]:
    """Run a Python file of a study, and return what it defines."""
    path = Path(file)
    if path.suffix != ".py":
        raise MistakeError(f"figures: found {file}; allowed: a Python file, whose name ends in .py")
    module = ModuleType(f"figures_of_{file}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # pydantic resolves annotations of its classes there
    try:
        tree = ast.parse(path.read_bytes(), file)
        _refuse_lost_functions(tree)
        code = compile(tree, file, "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102
    except (Exception, SystemExit) as error:
        raise MistakeError(_error_text(error, path)) from error
    return vars(module)


def _refuse_lost_functions(tree: ast.Module) -> None:
    """Refuse two functions of one name, of which Python would keep the last."""
    lines: dict[str, int] = {}
    for each in tree.body:
        if isinstance(each, ast.FunctionDef):
            first = lines.setdefault(each.name, each.lineno)
            if first != each.lineno and each.name != "_":
                raise MistakeError(
                    f"found two functions {each.name}, in the lines {first} and {each.lineno}; allowed: one, "
                    "because Python keeps only the last"
                )


def _error_text(error: BaseException, file: Path, where: str = "") -> str:
    """Return the error in a file of descriptions, with its line.

    Args:
        error: the error.
        file: the file.
        where: the place if no line of the file raised the error.
    """
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    what = str(error)
    if isinstance(error, ValidationError):
        content = {each["loc"][0]: each["input"] for each in error.errors() if each["loc"]}
        what = f"{error.title}: {'; '.join(explain(error, content))}"
    elif not isinstance(error, MistakeError):
        # Those of pydantic go on with addresses of its pages.
        what = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{f'{file.name}, line {lines[-1]}' if lines else where or file.name}: {what}"


_SHADES: dict[int, tuple[str | None, ...]] = {2: ("easy", "hard"), 3: ("easy", "medium", "hard")}


@dataclass
class Targets:
    """Figures and tables of a study.

    Attributes:
        figures: figures by name.
        tables: tables by name.
        undrawn: by name of a target that is not drawn, the reason.
        own_undrawn: names of them that files of the study describe.
        mistakes: errors in the descriptions, each once.
        places: by name of a figure or table, the file, line and function that describe it.
    """

    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, PrintedTable] = field(default_factory=dict)
    undrawn: dict[str, str] = field(default_factory=dict)
    own_undrawn: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)

    def add(self, study: "Study", description: Description, roles: Mapping[str, str]) -> None:
        """Add the targets of a member of a description, or the reason why there are none."""
        grids, names = Grids(study), {part: f"<{role}>" for part, role in roles.items()}
        try:
            for part, role in roles.items():
                names[part] = grids.name(part, role)
            for target in description.targets(grids, roles):
                self._add(description, names, target, grids)
                if grids.left_out:
                    parts = f"parts of {_name(description, names, target)}"
                    self._leave_out(description, parts, "; ".join(grids.left_out))
        except NotDrawnError as reason:
            self._leave_out(description, _name(description, names), str(reason))
        except (Exception, SystemExit) as error:
            said = _error_text(error, description.file, description.where)
            if said not in self.mistakes:
                self.mistakes.append(said)

    def _leave_out(self, description: Description, name: str, reason: str) -> None:
        self.undrawn[name] = reason
        if description.function.__module__ != PAPER:
            self.own_undrawn.append(name)

    def _add(
        self, description: Description, names: Mapping[str, str], target: Target, grids: Grids
    ) -> None:
        for leaf in target.leaves():
            if target.needs_bounds and (rule := named_rule(leaf)):
                raise MistakeError(f"clipping_bound: found {rule}; allowed: numbers, the bounds C")
            for axis in target.single:
                if len(values := leaf.values(axis)) > 1 and axis not in target.drawn_axes():
                    raise MistakeError(
                        f"{axis}: found {shorten(map(number, values))}; allowed: one of them (a "
                        f"{target.family} draws one {axis} here)"
                    )
        target = _finished(target.with_study(grids.study), grids)
        name = _name(description, names, target)
        usable = re.fullmatch(NAME_PATTERN, name) and len(name) <= LONGEST_JOINED_NAME
        if (other := self.places.get(name)) or not usable:
            which = f", which {other} has too" if other else ""
            raise MistakeError(
                f"found the name {name}{which}; allowed: one that no other target has, with at most "
                f"{LONGEST_JOINED_NAME} letters, digits, '.', '_' and '-'"
            )
        self.places[name] = description.where
        targets: dict[str, Any] = self.figures if isinstance(target, Figure) else self.tables
        targets[name] = target


def resolve_targets(study: "Study") -> Targets:
    """Return the figures and tables of a study with checked sections."""
    found = Targets()
    try:
        every = descriptions(study.figure_files, paper=study.has_paper_figures)
    except MistakeError as mistake:
        found.mistakes.append(str(mistake))
        return found
    for description in every:
        for roles in description.members():
            found.add(study, description, roles)
    return found


def _name(description: Description, names: Mapping[str, str], target: Target | None = None) -> str:
    """Return the name of a target: keys in braces are replaced by its roles' names and its values."""
    first = next(iter(target.leaves()), None) if target else None

    def text(key: str) -> str:
        if key in NAMED:
            return str(names.get(key) or getattr(first, key, f"<{key}>"))
        return number(first.values(key)[0]) if first else f"<{key}>"

    return re.sub(r"\{(\w+)\}", lambda key: text(key[1]), description.name)


def _finished(target: Target, grids: Grids) -> Target:
    """Return a target with titles, and the end of its caption."""
    # A name in braces, or what it has: {dataset}, {say.dataset}, {say.tuned('batch_size')}, {names[0]}.
    if word := re.search(r"\{[A-Za-z_]\w*([.(\[][^{}]*)?\}", target.caption):
        raise MistakeError(f"caption: found {word[0]}; allowed: an f-string with `Words`")
    if target.part == "panels" and target.parts():
        target = target.model_copy(update={"panels": _titled(target, grids)})
    return target.model_copy(
        update={"caption": f"{target.caption} {target.caption_end()}".rstrip()}
    )


def _titled(target: Target, grids: Grids) -> list[Any]:
    """Return the panels of a figure, each once and with a title; leave out panels with two equal lines."""
    found: dict[Any, Any] = {}
    for panel in target.parts():
        leaves = _leaves(panel)
        cells = [each.model_dump_json(exclude={"label", "difficulty"}) for each in leaves]
        if len(set(cells)) == len(cells):
            # Panels of the same cells with titles of their own are all drawn.
            found.setdefault((panel.title, *cells), panel)
        else:
            grids.left_out[f"{leaves[0].problem.name} has one value of what is compared"] = None
    if not found:
        raise NotDrawnError("; ".join(grids.left_out))
    said = [[facts(grids.study, each) for each in _leaves(panel)] for panel in found.values()]
    titles = tell_apart([shared(own) for own in said])
    panels = []
    for panel, own, title in zip(found.values(), said, titles, strict=True):
        update: dict[str, Any] = {"title": panel.title or title}
        if isinstance(panel, LinePanel):
            update["lines"] = _labelled(panel.lines, tell_apart(own), target.ordered)
        panels.append(panel.model_copy(update=update))
    return panels


def _leaves(panel: Any) -> list[Any]:
    return panel.lines if isinstance(panel, LinePanel) else [panel]


def _labelled(lines: Sequence[Line], labels: Sequence[str], ordered: bool) -> list[Line]:
    """Return lines with labels and difficulties; those that are given stay.

    Raises:
        NotDrawnError: two lines have one label, and would be drawn as one.
    """
    labels = [line.label or label for line, label in zip(lines, labels, strict=True)]
    if double := [label for label, times in Counter(labels).items() if times > 1]:
        raise NotDrawnError(f"several lines are called {double[0]}: give each a title or a label")
    shades = _SHADES.get(len(lines) if ordered else 0, (None,) * len(lines))
    return [
        line.model_copy(update={"label": label, "difficulty": line.difficulty or shade})
        for line, label, shade in zip(lines, labels, shades, strict=True)
    ]


# -- titles, labels and captions -----------------------------------------------------------------

# Facts that titles and labels can show, in their order.
_TOLD_APART = (*PARTS, "optimizer", "clipping", "epsilon", "clipping_bound", "epochs")
# Axis, its words in a caption where it is tuned, and its symbol where it has one value.
_TUNED = (("batch_size", "batch size", "B"), ("clipping_bound", "clipping bound", "C"))
_ALONE = ("dataset", "backbone", "epsilon")

FEWEST_FOR_A_BAND = 5
"""With fewer seeds, figures draw each seed as a point; see `dpsweep.figures.accuracy_lines`."""

Facts = dict[str, str | None]


def listed(values: Iterable[Any]) -> str:
    """Return a list in words: a, b and c."""
    *most, last = [str(value) for value in values] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def facts(study: "Study", selection: Selection) -> Facts:
    """Describe a selection in words; an axis with several values is None."""
    bounds = selection.values("clipping_bound")
    problem = selection.problem
    method = study.methods[problem.method]
    return {
        "dataset": study.datasets[problem.dataset].title,
        "backbone": study.backbones[problem.backbone].title,
        "method": method.title,
        "optimizer": study.optimizer_title(problem.optimizer, selection.values("epsilon")),
        "clipping": RULES[bounds[0]].title if bounds[0] in RULES else "Tuned",
        "epsilon": _single(selection.values("epsilon"), "ε = {}"),
        "clipping_bound": _single([each for each in bounds if not isinstance(each, str)], "C = {}"),
        "epochs": _single(selection.values("epochs"), "{} epochs"),
        "batch_size": _single(selection.values("batch_size"), "B = {}"),
        "rank": str(getattr(method, "rank", "–")),
    }


def shared(parts: Sequence[Facts]) -> Facts:
    """Return the facts that are the same for several selections; the others become None."""
    first, *others = parts
    return {
        name: text if all(each[name] == text for each in others) else None
        for name, text in first.items()
    }


def tell_apart(parts: Sequence[Facts]) -> list[str]:
    """Return a short text for each part of a figure: the facts that differ between the parts."""
    texts = list[str]()
    for names in (_TOLD_APART, (*_TOLD_APART, "batch_size")):
        differing = [name for name in names if len({each[name] for each in parts}) > 1]
        texts = [
            ", ".join(text for name in differing or _ALONE if (text := each[name]))
            for each in parts
        ]
        if len(set(texts)) == len(texts):
            break
    return texts


class Words:
    """Words for the caption of some cells, as in f"{say.backbone} on {say.dataset}, {say.epochs}".

    Args:
        study: the study.
        cells: the drawn cells.

    Attributes:
        dataset, backbone, method, optimizer: titles, and DP-Adam or DP-SGD.
        epsilon, clipping_bound, batch_size: "ε = 8", "C = 1", "1,024".
        epochs, seeds: "8 epochs", "3 to 5 seeds".
        spread: how the spread over seeds is drawn.
        theory_seeds: the seeds behind the theory, "seeds 1 to 3".
    """

    def __init__(self, study: "Study", cells: Iterable[Selection]) -> None:
        self._study, self._cells = study, list(cells)
        self._sweeps = _sweeps(study, self._cells)
        said = [facts(study, each) for each in self._cells]
        self.dataset, self.backbone, self.method, self.optimizer = (
            listed(dict.fromkeys(str(each[part]) for each in said)) for part in NAMED
        )
        self.epsilon, self.clipping_bound, self.batch_size = (
            _values(axis, self._cells) for axis in ("epsilon", "clipping_bound", "batch_size")
        )
        seeds = [sweep.seeds for sweep in self._sweeps] or [0]
        measured = min(study.theory.seeds, max(1, *seeds))
        self.epochs = _epochs(study, self._cells)
        fewest, most = min(seeds), max(seeds)
        self.seeds = f"{fewest} to {most} seeds" if fewest < most else count(most, "seed")
        self.spread = _spread(fewest, most)
        self.theory_seeds = f"seeds 1 to {measured}" if measured > 1 else "seed 1"

    @classmethod
    def of(cls, grids: Sequence[Grid]) -> Self:
        """Return the words of grids at their chosen values."""
        return cls(grids[0].study, [Selection.of(each) for each in grids])

    def tuned(self, *axes: str) -> str:
        """Return what is tuned for every point, and what is fixed: "learning rate tuned (C = 1)".

        Args:
            axes: those of batch_size and clipping_bound that are neither drawn nor named in the caption.
        """
        tuned, fixed = [], []
        for axis, noun, symbol in _TUNED:
            grids = [
                (self._study.datasets[each.problem.dataset].title, values)
                for each in self._cells
                if axis in axes
                if (values := [value for value in each.values(axis) if value not in RULES])
            ]
            several = any(len(values) > 1 for _, values in grids)
            tuned += [noun] * several
            fixed += [
                f"{symbol} = {number(values[0])}" + f" on {dataset}" * several
                for dataset, values in grids
                if len(values) == 1
            ]
        rates = [sweep.learning_rates for sweep in self._sweeps]
        if any(len(each) > 1 for each in rates):
            tuned.append("learning rate")
        else:
            fixed += [f"η = {number(rate)}" for rate in sorted({rate for (rate,) in rates})]
        once = listed(dict.fromkeys(fixed))
        if not tuned:
            return once
        return f"{listed(tuned)} tuned ({once})" if fixed else f"{listed(tuned)} tuned"


def how_chosen(study: "Study", target: Target) -> list[str]:
    """Return the last sentences of a caption: how settings were chosen, if any were.

    The rule itself is in `dpsweep.study.choice`.
    """
    where = "the test set" if study.training.select_on == "test" else "held-out training examples"
    said = []
    if target.tunes:
        said.append(
            f"Tuned values have the highest mean accuracy over all seeds on {where}; learning rates are "
            "tuned with the first seed."
        )
    if target.shows_means:
        said.append(
            "These means are optimistic: the same seeds chose the settings. Column cross_fitted of the CSV "
            "has means over seeds that did not choose."
        )
    if any(target.marks):
        said.append(marks_sentence(study, target))
    if target.tuning_note:
        said.append(target.tuning_note)
    return said


def marks_sentence(study: "Study", target: Target) -> str:
    """Return the meaning of the marks of a figure (`dpsweep.analysis.statistics`)."""
    mark, group = target.marks
    if max((sweep.seeds for sweep in _sweeps(study, target.leaves())), default=0) < 2:
        return f"There is no {mark}: with one seed nothing tells the best of a {group} from luck."
    return f"Each {mark} is not significantly worse than the best of its {group} (95 %)."


def _single(values: Sequence[Any], text: str) -> str | None:
    return text.format(number(values[0])) if len(values) == 1 else None


def _values(axis: str, selections: Sequence[Selection]) -> str:
    values = {value for each in selections for value in each.values(axis)}
    numbers = sorted(value for value in values if not isinstance(value, str))
    if axis == "batch_size":
        return listed([f"{value:,}" for value in numbers] + ["full"] * ("full" in values))
    symbol = {"epsilon": "ε", "clipping_bound": "C"}[axis]
    return f"{symbol} = {listed(map(number, numbers))}"


def _epochs(study: "Study", selections: Sequence[Selection]) -> str:
    datasets: dict[str, dict[str, None]] = {}
    for each in selections:
        title = study.datasets[each.problem.dataset].title
        epochs = each.values("epochs")
        text = count(epochs[0], "epoch") if len(epochs) == 1 else f"{listed(epochs)} epochs"
        datasets.setdefault(text, {})[title] = None
    if len(datasets) == 1:
        return next(iter(datasets))
    return ", ".join(f"{text} on {listed(titles)}" for text, titles in datasets.items())


def _spread(fewest: int, most: int) -> str:
    """Return how the spread over seeds is drawn."""
    some_have_more = fewest < most
    if fewest >= FEWEST_FOR_A_BAND:
        band = "the band is from the lowest to the highest seed"
        return band + ", and wider where there are more seeds" * some_have_more
    points = "small points are the seeds"
    return points + ", of which some lines have more than others" * some_have_more


def _sweeps(study: "Study", selections: Sequence[Selection]) -> list[Sweep]:
    """Return the sweeps with cells in some selections."""
    return [
        sweep
        for sweep in study.sweeps.values()
        if any(
            sweep.problem == each.problem
            and all(set(each.values(axis)) & set(values) for axis, values in sweep.axes.items())
            for each in selections
        )
    ]
