"""Figures and tables as the report shows them: what is there, and what is said where it is not."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dpsweep.figures import audit
from dpsweep.figures.tables.text import TextTable
from dpsweep.figures.tables.write import read, read_numbers
from dpsweep.report.embed import Download, Picture, download, picture
from dpsweep.report.grid import Grid, count
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import Table
from dpsweep.study.targets import Figure, LinePanel, NoiseCurve, Selection
from dpsweep.study.wording import how_chosen


@dataclass(frozen=True)
class Link:
    """A file beside the report; ``address`` is relative to its folder."""

    label: str
    address: str


@dataclass(frozen=True)
class Written:
    """A table's caption and rows, or why it has none."""

    caption: str = ""
    rows: Grid | None = None
    problem: str | None = None


@dataclass(frozen=True)
class CellsOfProblem:
    """The cells of one problem behind a target; paths are relative to the report's folder."""

    problem: str
    folder: str
    found: list[str]
    missing: list[str]


@dataclass(frozen=True)
class TargetView:
    """A figure or table; ``problem`` says why it is not shown, where it is not."""

    name: str
    caption: str
    problem: str | None
    downloads: list[Download]
    links: list[Link]
    cells: list[CellsOfProblem]
    gradient_norms: list[str]
    missing_gradient_norms: list[str]

    @property
    def cell_count(self) -> int:
        """How many cells the target names."""
        return sum(len(each.found) + len(each.missing) for each in self.cells)

    @property
    def missing_count(self) -> int:
        """How many of them have no trial."""
        return sum(len(each.missing) for each in self.cells)


@dataclass(frozen=True)
class FigureView(TargetView):
    """A figure of the report."""

    picture: Picture | None
    alternative: str


@dataclass(frozen=True)
class TableView(TargetView):
    """A table of the report."""

    rows: Grid | None


@dataclass(frozen=True)
class Section:
    """A heading with the figures and tables under it."""

    title: str
    figures: list[FigureView]
    tables: list[TableView]


def sections(study: Study, paths: Paths, trained: set[tuple[str, str]]) -> list[Section]:
    """Every target under its section, in the order of the study; figures before tables.

    Args:
        study: the study.
        paths: its files.
        trained: (problem, cell name) of every cell that has trials.
    """
    found: dict[str, Section] = {}
    with ThreadPoolExecutor() as pool:  # pictures are compressed at the same time
        figures = study.figures.values()
        views = pool.map(partial(_figure, study, paths, trained), study.figures, figures)
        for figure, view in zip(figures, views, strict=True):
            section = found.setdefault(figure.section, Section(figure.section, [], []))
            section.figures.append(view)
    for name, table in study.tables.items():
        section = found.setdefault(table.section, Section(table.section, [], []))
        section.tables.append(_table(study, paths, trained, name, table))
    if study.audit is not None:
        found["Privacy audit"] = _audit(paths)
    return list(found.values())


def _audit(paths: Paths) -> Section:
    """The evidence of the privacy audit; it is made of runs of its own, not of cells."""

    def read() -> tuple[str, TextTable]:
        numbers = read_numbers(paths.audit("csv"))
        return audit.caption(numbers), audit.show(numbers)

    shown, missing_figure = _drawn(paths.audit("png"))
    written = _printed(read, paths.audit("csv"))
    stem = paths.audit("csv").with_suffix("")
    own: dict[str, Any] = {"cells": [], "gradient_norms": [], "missing_gradient_norms": []}
    figure = FigureView(
        name="audit_bounds",
        caption=(
            "What an attacker can prove about the trainer that made this study: the epsilon that "
            "is claimed, against a lower bound measured with canaries in one training run. A "
            "point above the diagonal would refute the claim."
        ),
        problem=missing_figure,
        downloads=_downloads([paths.audit("csv")]),
        links=_links(paths, stem, ("pdf", "png", "csv")),
        picture=shown,
        alternative="Measured lower bound on epsilon against the claimed epsilon.",
        **own,
    )
    table = TableView(
        name="audit_settings",
        caption=written.caption,
        problem=written.problem,
        downloads=[],
        links=_links(paths, stem, ("tex", "md", "csv")),
        rows=written.rows,
        **own,
    )
    return Section("Privacy audit", [figure], [table])


def _figure(
    study: Study, paths: Paths, trained: set[tuple[str, str]], name: str, figure: Figure
) -> FigureView:
    shown, problem = _drawn(paths.figure(name, "png"))
    return FigureView(
        name=name,
        caption=f"{figure.caption} {how_chosen(study, figure)}",
        problem=problem,
        downloads=_downloads([paths.figure(name, "csv")]),
        links=_links(paths, paths.figure(name, "csv").with_suffix(""), ("pdf", "png", "csv")),
        cells=_cells(study, paths, trained, figure.selections()),
        gradient_norms=_gradient_norms(study, paths, figure.gradient_norms(), present=True),
        missing_gradient_norms=_gradient_norms(
            study, paths, figure.gradient_norms(), present=False
        ),
        picture=shown,
        alternative=_alternative(figure),
    )


def _table(
    study: Study, paths: Paths, trained: set[tuple[str, str]], name: str, table: Table
) -> TableView:
    file = paths.table(name, "csv")
    written = _printed(lambda: read(study, paths, name), file)
    return TableView(
        name=name,
        caption=written.caption or table.caption,
        problem=written.problem,
        downloads=_downloads([paths.table(name, suffix) for suffix in table.table_files]),
        links=_links(paths, file.with_suffix(""), table.table_files),
        cells=_cells(study, paths, trained, table.selections()),
        gradient_norms=[],
        missing_gradient_norms=[],
        rows=written.rows,
    )


def _drawn(source: Path) -> tuple[Picture | None, str | None]:
    """A PNG, or why there is none."""
    try:
        return picture(source), None
    except FileNotFoundError:
        return None, "This figure has not been drawn: the file is not there."
    except OSError as error:
        reason = _without(source, error)
        return None, f"This figure cannot be shown: its PNG is damaged ({reason})."


def _printed(read: Callable[[], tuple[str, TextTable]], source: Path) -> Written:
    """A table from the CSV behind it, or why there is none."""
    try:
        caption, text = read()
    except FileNotFoundError:
        return Written(problem="This table has not been written: the file is not there.")
    except (OSError, ValueError) as error:
        reason = _without(source, error)
        return Written(problem=f"This table cannot be shown: its CSV is damaged ({reason}).")
    numeric = (title for title, kind in zip(text.header, text.columns, strict=True) if kind == "r")
    return Written(caption, Grid(text.header, text.rows, frozenset(numeric)))


def _without(path: Path, error: Exception) -> str:
    # The report may be published; folders of the machine that made it are nobody's business.
    return str(error).replace(str(path), path.name)


def _links(paths: Paths, file: Path, suffixes: Iterable[str]) -> list[Link]:
    """The files of a target that lie beside the report."""
    found = ((suffix, file.with_name(f"{file.name}.{suffix}")) for suffix in suffixes)
    return [
        Link(suffix.upper(), quote(_relative(paths, each)))
        for suffix, each in found
        if each.exists()
    ]


def _downloads(files: Iterable[Path]) -> list[Download]:
    return [download(file) for file in files if file.exists()]


def _relative(paths: Paths, file: Path) -> str:
    return Path(os.path.relpath(file, paths.drawn)).as_posix()


def _alternative(figure: Figure) -> str:
    # The family, its panels and its lines: what a caption presupposes that one sees.
    panels = figure.axes if isinstance(figure, NoiseCurve) else figure.panels
    titles = "; ".join(panel.title for panel in panels)
    family = figure.family.replace("_", " ").capitalize()
    text = f"{family}, {count(len(panels), 'panel')}: {titles}."
    labels = dict.fromkeys(
        line.label for panel in panels if isinstance(panel, LinePanel) for line in panel.lines
    )
    return f"{text} Lines: {'; '.join(labels)}." if labels else text


def _cells(
    study: Study, paths: Paths, trained: set[tuple[str, str]], selections: Iterable[Selection]
) -> list[CellsOfProblem]:
    # A dict, because several lines of a figure may share cells.
    cells: dict[Cell, None] = {}
    for selection in selections:
        cells.update(dict.fromkeys(study.cells(selection)))
    return [
        CellsOfProblem(
            problem,
            _relative(paths, paths.results / "cells" / problem),
            [name for name in names if (problem, name) in trained],
            [name for name in names if (problem, name) not in trained],
        )
        for problem in dict.fromkeys(cell.problem for cell in cells)
        for names in [[cell.name for cell in cells if cell.problem == problem]]
    ]


def _gradient_norms(
    study: Study, paths: Paths, selections: list[Selection], *, present: bool
) -> list[str]:
    files = dict.fromkeys(
        paths.gradient_norms(cell.problem, cell.epsilon, cell.epochs, cell.clipping_bound)
        for selection in selections
        for cell in study.cells(selection)
    )
    return [_relative(paths, file) for file in files if file.exists() == present]
