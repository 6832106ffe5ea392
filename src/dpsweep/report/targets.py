"""Figures and tables as the report shows them: each with its files, or the reason why it is missing."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from dpsweep.base.units import count
from dpsweep.figures import audit
from dpsweep.figures.tables.text import TextTable
from dpsweep.figures.tables.write import read, read_numbers
from dpsweep.report.embed import Download, Picture, download, picture
from dpsweep.study import Cell, Study
from dpsweep.study.captions import facts, how_chosen, shared
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import Table
from dpsweep.study.targets import Figure, LinePanel, NoiseCurve, Selection


@dataclass(frozen=True)
class CellsOfProblem:
    """The cells of one problem behind a target; paths are relative to the report's folder."""

    problem: str
    folder: str
    found: list[str]
    missing: list[str]


@dataclass(frozen=True)
class TargetView:
    """A figure or table of the report.

    Attributes:
        name: of the target.
        title: what it shows, and of what: the dataset, backbone and ε that all its parts share.
        caption: as the page shows it.
        is_figure: whether it has a ``picture``; a table has ``rows``.
        problem: the reason why it is not shown, if it is not.
        downloads: files inside the page.
        links: files beside the page: label, and address relative to the page's folder.
        cells: those that it is made from.
        gradient_norms, missing_gradient_norms: files that it is made from, and that are not there.
        picture: the figure.
        alternative: the words for who does not see it.
        rows: the table.
    """

    name: str
    title: str
    caption: str
    is_figure: bool
    problem: str | None
    downloads: Sequence[Download]
    links: Sequence[tuple[str, str]]
    cells: Sequence[CellsOfProblem] = ()
    gradient_norms: Sequence[str] = ()
    missing_gradient_norms: Sequence[str] = ()
    picture: Picture | None = None
    alternative: str = ""
    rows: TextTable | None = None

    @property
    def cell_count(self) -> int:
        """Number of cells that the target names."""
        return sum(len(each.found) + len(each.missing) for each in self.cells)

    @property
    def missing_count(self) -> int:
        """Number of them that have no trial."""
        return sum(len(each.missing) for each in self.cells)


def sections(
    study: Study, paths: Paths, trained: set[tuple[str, str]]
) -> dict[str, list[TargetView]]:
    """Every target by its section, in the order of the study; figures before tables.

    Args:
        study: the study.
        paths: its files.
        trained: (problem, cell name) of every cell that has trials.
    """
    found: dict[str, list[TargetView]] = {}
    with ThreadPoolExecutor() as pool:  # pictures are compressed at the same time
        figures = study.figures.values()
        views = pool.map(partial(_figure, study, paths, trained), study.figures, figures)
        for figure, view in zip(figures, views, strict=True):
            found.setdefault(figure.section, []).append(view)
    for name, table in study.tables.items():
        view = _table(study, paths, trained, name, table)
        found.setdefault(table.section, []).append(view)
    if study.audit is not None:
        found["Privacy audit"] = _audit(paths)
    return found


def _audit(paths: Paths) -> list[TargetView]:
    """The evidence of the privacy audit; it is made of runs of its own, not of cells."""

    def read() -> tuple[str, TextTable]:
        numbers = read_numbers(paths.audit("csv"))
        return audit.caption(numbers), audit.show(numbers)

    shown, missing_figure = _drawn(paths.audit("png"))
    caption, rows, missing_table = _printed(read, paths.audit("csv"))
    figure = TargetView(
        name="audit_bounds",
        title="Measured lower bounds on ε",
        caption=(
            "What an attacker can prove about the trainer that made this study: the epsilon that "
            "is claimed, against a lower bound measured with canaries in one training run. A "
            "point above the diagonal would refute the claim."
        ),
        is_figure=True,
        problem=missing_figure,
        downloads=_downloads([paths.audit("csv")]),
        links=_links(paths, [paths.audit(suffix) for suffix in ("pdf", "png", "csv")]),
        picture=shown,
        alternative="Measured lower bound on epsilon against the claimed epsilon.",
    )
    table = TargetView(
        name="audit_settings",
        title="Settings of the audit",
        caption=caption,
        is_figure=False,
        problem=missing_table,
        downloads=[],
        links=_links(paths, [paths.audit(suffix) for suffix in ("tex", "md", "csv")]),
        rows=rows,
    )
    return [figure, table]


def _figure(
    study: Study, paths: Paths, trained: set[tuple[str, str]], name: str, figure: Figure
) -> TargetView:
    shown, problem = _drawn(paths.figure(name, "png"))
    norms, missing_norms = _gradient_norms(study, paths, figure.gradient_norms())
    return TargetView(
        name=name,
        title=_title(study, figure),
        caption=f"{figure.caption} {how_chosen(study, figure)}",
        is_figure=True,
        problem=problem,
        downloads=_downloads([paths.figure(name, "csv")]),
        links=_links(paths, [paths.figure(name, suffix) for suffix in ("pdf", "png", "csv")]),
        cells=_cells(study, paths, trained, figure.selections()),
        gradient_norms=norms,
        missing_gradient_norms=missing_norms,
        picture=shown,
        alternative=_alternative(figure),
    )


def _table(
    study: Study, paths: Paths, trained: set[tuple[str, str]], name: str, table: Table
) -> TargetView:
    files = [paths.table(name, suffix) for suffix in table.table_files]
    caption, rows, problem = _printed(lambda: read(study, paths, name), paths.table(name, "csv"))
    return TargetView(
        name=name,
        title=_title(study, table),
        caption=caption or table.caption,
        is_figure=False,
        problem=problem,
        downloads=_downloads(files),
        links=_links(paths, files),
        cells=_cells(study, paths, trained, table.selections()),
        rows=rows,
    )


def _title(study: Study, target: Figure | Table) -> str:
    selections = target.leaves()
    said = shared([facts(study, each) for each in selections]) if selections else {}
    about = [text for part in ("dataset", "backbone", "epsilon") if (text := said.get(part))]
    return ": ".join([target.title, *filter(None, [", ".join(about)])])


def _drawn(source: Path) -> tuple[Picture | None, str | None]:
    """A PNG, or why there is none."""
    try:
        return picture(source), None
    except FileNotFoundError:
        return None, "This figure has not been drawn: the file is not there."
    except OSError as error:
        reason = _without(source, error)
        return None, f"This figure cannot be shown: its PNG is damaged ({reason})."


def _printed(
    read: Callable[[], tuple[str, TextTable]], source: Path
) -> tuple[str, TextTable | None, str | None]:
    """Caption and rows of a table from the CSV behind it, or why there are none."""
    try:
        return *read(), None
    except FileNotFoundError:
        return "", None, "This table has not been written: the file is not there."
    except (OSError, ValueError) as error:
        reason = _without(source, error)
        return "", None, f"This table cannot be shown: its CSV is damaged ({reason})."


def _without(path: Path, error: Exception) -> str:
    # The report may be published; folders of the machine that made it are nobody's business.
    return str(error).replace(str(path), path.name)


def _links(paths: Paths, files: Iterable[Path]) -> list[tuple[str, str]]:
    """Label and address of the files of a target that lie beside the report."""
    return [
        (file.name.partition(".")[2].upper(), quote(_relative(paths, file)))
        for file in files
        if file.exists()
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
    study: Study, paths: Paths, selections: list[Selection]
) -> tuple[list[str], list[str]]:
    """The files of gradient norms that are there, and those that are not."""
    files = dict.fromkeys(
        paths.gradient_norms(cell.problem, cell.epsilon, cell.epochs, cell.clipping_bound)
        for selection in selections
        for cell in study.cells(selection)
    )
    there, missing = (
        [_relative(paths, file) for file in files if file.exists() == present]
        for present in (True, False)
    )
    return there, missing
