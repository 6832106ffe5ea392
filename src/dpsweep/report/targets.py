"""Figures and tables of the report, each with its files or the reason why it is missing."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dpsweep.analysis.frames import read_numbers
from dpsweep.base.units import count
from dpsweep.figures import audit
from dpsweep.report.embed import Download, Picture, download_content, picture
from dpsweep.study import Study
from dpsweep.study.descriptions import facts, how_chosen, shared
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Figure, LinePanel, Target
from dpsweep.tables.text import TextTable, read


@dataclass(frozen=True, kw_only=True)
class TargetView:
    """A figure or table of the report.

    Attributes:
        name: name of the target.
        title: its title, with the dataset, backbone and ε that all its parts share.
        caption: its caption.
        chosen: further sentences of the caption, on how settings were chosen.
        reason: why it is not shown, or None if it is.
        downloads: files inside the page.
        links: files beside the page: label, and address relative to the page's folder.
        cells: whether there are trials, by the name of the cell, by the folder of the problem.
        alternative: the alternative text of a figure; empty for a table.
        picture: the figure.
        rows: the table.
    """

    name: str
    title: str
    caption: str
    downloads: Sequence[Download]
    links: Sequence[tuple[str, str]]
    reason: str | None = None
    chosen: Sequence[str] = ()
    cells: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    alternative: str = ""
    picture: Picture | None = None
    rows: TextTable | None = None

    @property
    def is_figure(self) -> bool:
        """Whether it has a ``picture``; a table has ``rows``."""
        return bool(self.alternative)


def sections(
    study: Study, paths: Paths, trained: set[tuple[str, str]]
) -> dict[str, list[TargetView]]:
    """Return all targets by section, in the order of the study, figures before tables.

    Args:
        study: the study.
        paths: its files.
        trained: (problem, cell name) of every cell with trials.
    """
    found: dict[str, list[TargetView]] = {}
    with ThreadPoolExecutor() as pool:  # compresses pictures in parallel
        names = [*study.figures, *study.tables]
        for section, view in pool.map(partial(_of_study, study, paths, trained), names):
            found.setdefault(section, []).append(view)
    if study.audit is not None:
        found["Privacy audit"] = _audit(paths)
    return found


def shared_sentences(sections: Mapping[str, Sequence[TargetView]]) -> list[str]:
    """Return the sentences on how settings were chosen that captions share, most frequent first."""
    sentences = Counter(
        each for views in sections.values() for view in views for each in view.chosen
    )
    return [sentence for sentence, count in sentences.most_common() if count > 1]


def _of_study(
    study: Study, paths: Paths, trained: set[tuple[str, str]], name: str
) -> tuple[str, TargetView]:
    """Return the section of a target, and its view."""
    target: Target = study.tables.get(name) or study.figures[name]
    about: dict[str, Any] = {
        "name": name,
        "title": _title(study, target),
        "cells": _cells(paths, trained, target),
        "caption": target.caption,
    }
    if name in study.tables:
        files = [paths.table(name, suffix) for suffix in study.tables[name].table_files]
        return target.section, _table(paths, files, files, about, lambda: read(study, paths, name))
    figure = study.figures[name]
    about |= {"chosen": how_chosen(study, figure), "alternative": _alternative(figure)}
    files = [paths.figure(name, suffix) for suffix in ("pdf", "png", "csv")]
    return target.section, _figure(paths, files, about)


def _audit(paths: Paths) -> list[TargetView]:
    """Return figure and table of the privacy audit, which has its own runs instead of cells."""

    def read_audit() -> tuple[str, TextTable]:
        numbers = read_numbers(paths.audit("csv"))
        return audit.caption(numbers), audit.show(numbers)

    figure = {
        "name": "audit_bounds",
        "title": "Measured lower bounds on ε",
        "caption": "What an attacker can prove about the trainer that made this study: the epsilon that is "
        "claimed, against a lower bound measured with canaries in one training run. A point above the "
        "diagonal would refute the claim.",
        "alternative": "Measured lower bound on epsilon against the claimed epsilon.",
    }
    table = {"name": "audit_settings", "title": "Settings of the audit", "caption": ""}
    drawn, written = (
        [paths.audit(suffix) for suffix in suffixes]
        for suffixes in (("pdf", "png", "csv"), ("tex", "md", "csv"))
    )
    return [_figure(paths, drawn, figure), _table(paths, written, [], table, read_audit)]


def _figure(paths: Paths, files: Sequence[Path], about: dict[str, Any]) -> TargetView:
    """Make the view of a figure from its PDF, PNG and CSV; of these, only the CSV is a download."""
    _, png, csv = files
    with _reason(about, png, "figure", "drawn"):
        about["picture"] = picture(png)
    return _view(paths, files, [csv], about)


def _table(
    paths: Paths,
    files: Sequence[Path],
    downloads: Sequence[Path],
    about: dict[str, Any],
    read: Callable[[], tuple[str, TextTable]],
) -> TargetView:
    """Make the view of a table; its third file is the CSV, from which its caption and rows are read."""
    with _reason(about, files[2], "table", "written"):
        about["caption"], about["rows"] = read()
    return _view(paths, files, downloads, about)


@contextmanager
def _reason(about: dict[str, Any], source: Path, noun: str, made: str) -> Iterator[None]:
    """Note why a figure or table cannot be shown if its file is missing or damaged."""
    try:
        yield
    except FileNotFoundError:
        about["reason"] = f"This {noun} has not been {made}: the file is not there."
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all of them
        # The report may be published, so it must not contain paths of this machine.
        reason = str(error).replace(str(source), source.name)
        kind = source.suffix.removeprefix(".").upper()
        about["reason"] = f"This {noun} cannot be shown: its {kind} is damaged ({reason})."


def _view(
    paths: Paths, files: Sequence[Path], downloads: Iterable[Path], about: dict[str, Any]
) -> TargetView:
    target = files[0].stem  # may contain dots: model_eps0.5
    return TargetView(
        links=[
            (file.name.removeprefix(f"{target}.").upper(), quote(_relative(paths, file)))
            for file in files
            if file.exists()
        ],
        downloads=[
            download_content(each.name, each.read_bytes()) for each in downloads if each.exists()
        ],
        **about,
    )


def _relative(paths: Paths, file: Path) -> str:
    return Path(os.path.relpath(file, paths.drawn)).as_posix()


def _title(study: Study, target: Target) -> str:
    selections = target.leaves()
    said = shared([facts(study, each) for each in selections]) if selections else {}
    about = [text for part in ("dataset", "backbone", "epsilon") if (text := said.get(part))]
    return ": ".join(filter(None, [target.title, ", ".join(about)]))


def _alternative(figure: Figure) -> str:
    # Family, panels and lines, which a caption does not describe.
    titles = figure.panel_titles()
    family = figure.family.replace("_", " ").capitalize()
    text = f"{family}, {count(len(titles), 'panel')}: {'; '.join(titles)}."
    labels = dict.fromkeys(
        line.label
        for panel in figure.parts()
        if isinstance(panel, LinePanel)
        for line in panel.lines
    )
    return f"{text} Lines: {'; '.join(labels)}." if labels else text


def _cells(
    paths: Paths, trained: set[tuple[str, str]], target: Target
) -> dict[str, dict[str, bool]]:
    """Return the cells of every problem, each once although lines of a figure may share cells."""
    there: dict[str, dict[str, bool]] = {}
    for selection in target.selections():
        for cell in selection.cells():
            folder = _relative(paths, paths.results / "cells" / cell.problem)
            there.setdefault(folder, {})[cell.name] = (cell.problem, cell.name) in trained
    return there
