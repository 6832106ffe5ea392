"""The report: one page with all results of a study, its figures and tables, and why some are missing."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from dpsweep.analysis.frames import is_private, newest_results, present_trials, read_numbers
from dpsweep.base.files import DamagedFileError, write_text
from dpsweep.base.formatting import count, rounded_up, texts_in
from dpsweep.figures import audit
from dpsweep.release import CERTIFICATE, budget_in_words, planned_cells
from dpsweep.release.ledger import Account, account
from dpsweep.report import summary
from dpsweep.report.embed import Download, Picture, download_content, picture, render
from dpsweep.report.warnings import warnings
from dpsweep.study import Paths, Study
from dpsweep.study.fingerprints import report_fingerprint, write_settings
from dpsweep.study.grid import LinePanel
from dpsweep.study.messages import group_by_message
from dpsweep.study.targets import Figure, Target, facts, how_chosen, shared
from dpsweep.tables.compared_grids import TuningImplications
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


def write(study: Study, study_file: Path, paths: Paths, lacking: Sequence[str] = ()) -> None:
    """Write the report of a study: one self-contained HTML file.

    It shows the results that exist and names those that are missing. Equal results, with equal file times,
    give equal bytes.

    Args:
        study: the study.
        study_file: its file, to be named; of an absolute path, only the file name is shown.
        paths: its files; the report is ``paths.report``.
        lacking: a line for every output that is missing or belongs to another version of the
            study, for the head of the page.

    Raises:
        UnreadableResultsError: a trial file is damaged or lacks a column.
    """
    trials = present_trials(study, paths)
    once = summary.each_once(trials)
    private = once[is_private(once)]
    trained = set(zip(trials["problem"], trials["cell"], strict=True))
    planned = planned_cells(study, trained)
    grouped = sections(study, paths, trained)
    targets = [target for section in grouped.values() for target in section]
    configuration = study_yaml(study)
    page = render(
        "page.html.j2",
        script="numbers.js",
        study=study,
        partial=paths.partial,
        lacking=lacking,
        study_file=study_file.name if study_file.is_absolute() else study_file.as_posix(),
        sentence=summary.sentence(study, trials, len(planned)),
        newest_results=newest_results(study, paths),
        inputs=summary.inputs(study, trials),
        hardware=summary.hardware(trials),
        software=summary.software(trials),
        verdicts=_verdicts(study, targets),
        finding=summary.finding(study, trials),
        best=summary.best_settings(study, paths, trials),
        costs=summary.choice_costs(study, trials),
        warnings=warnings(study, paths, trials),
        said=summary.choice_sentences(study, trials),
        habit=summary.HABIT,
        explore=paths.explore.exists(),
        sections=grouped,
        not_drawn=group_by_message(study.targets.undrawn.items()),
        shared_sentences=shared_sentences(grouped),
        figures=[target for target in targets if target.is_figure],
        target_count=len(targets),
        absent=[target.name for target in targets if target.reason],
        planned_cells=len(planned),
        missing_cells=sum((cell.problem, cell.name) not in trained for cell in planned),
        trial_count=len(once),
        private_count=len(private),
        epsilons=sorted(set(private["epsilon"].astype(float))),
        account=(spent := account(study, paths) if study.release else None),
        budget=budget_in_words(study, paths),
        released=spent and _released(spent),
        worth=_worth(paths),
        ledger=paths.ledger.name,
        configuration=configuration,
        configuration_download=download_content("study.yaml", configuration.encode()),
    )
    write_text(paths.report, page)
    write_settings(paths.report, report_fingerprint(study))


def _verdicts(study: Study, targets: Iterable[TargetView]) -> dict[str, Counter[str]]:
    """Return the number of rules with each verdict, by the table of tuning rules."""
    return {
        each.name: Counter(row[each.rows.header.index("Verdict")] for row in each.rows.rows)
        for each in targets
        if each.rows and isinstance(study.tables.get(each.name), TuningImplications)
    }


def _worth(paths: Paths) -> list[str]:
    """Return what the study's own release is worth, in sentences; none without one of today's format."""
    if (paths.release / CERTIFICATE).exists():
        # It imports torch.
        from dpsweep.release.files import sentences  # noqa: PLC0415

        with suppress(DamagedFileError):  # `verify` says what is wrong
            return sentences(paths.release)
    return []


def _released(spent: Account) -> TextTable:
    rows = [
        {
            "Day (UTC)": line.day or "unknown",
            "Certificate": line.model.certificate[:12],
            "ε": rounded_up(line.model.epsilon),
            "δ": rounded_up(line.model.delta),
            "Setting": "fixed" if line.model.noise else "the best of several, covered by ε",
        }
        for line in spent.lines
    ]
    return TextTable.of(rows, "llrrl")


def study_yaml(study: Study) -> str:
    """Return the study as YAML with its defaults, without what no sweep uses.

    `dpsweep.study.load_study` reads a study with the same cells back.
    """
    content = study.model_dump(exclude_none=True)
    trained = {(each.dataset, each.backbone, each.method) for each in study.problems.values()}
    content["references"] = [
        each
        for each in content["references"]
        if (each["dataset"], each["backbone"], each["method"]) in trained
    ]
    parts = ("datasets", "backbones", "methods")
    used = set(texts_in({key: value for key, value in content.items() if key not in parts}))
    # A dataset names the backbone of its tokenizer, and a backbone the dataset of its pretraining.
    for _ in parts:
        kept = {part: {k: v for k, v in content[part].items() if k in used} for part in parts}
        used |= set(texts_in(kept))
    content |= kept
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


# -- figures and tables --------------------------------------------------------------------


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
