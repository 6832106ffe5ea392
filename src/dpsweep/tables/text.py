"""Tables as text, written as LaTeX and as Markdown, and the files of a study's tables.

Cells are plain Unicode (ε, 2⁸, 10⁻³, –). Markdown gets them unchanged; for LaTeX they become mathematics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from dpsweep.analysis import frames
from dpsweep.base.files import write_text
from dpsweep.base.formatting import count, markdown, one_line
from dpsweep.base.lazy import pd
from dpsweep.study import Paths, Study
from dpsweep.study.fingerprints import target_fingerprint, write_settings
from dpsweep.study.messages import pick
from dpsweep.study.targets import PrintedTable, how_chosen

_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_FROM_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"$<$", ">": r"$>$", "|": r"\textbar{}", "–": "--", "—": "---", "−": r"$-$",
    "×": r"$\times$", "±": r"$\pm$", "·": r"$\cdot$", "∞": r"$\infty$", "≤": r"$\leq$",
    "≥": r"$\geq$", "≈": r"$\approx$", "→": r"$\rightarrow$", "√": r"$\surd$",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "η": r"$\eta$", "σ": r"$\sigma$", "γ": r"$\gamma$",
    "°": r"$^{\circ}$", "’": "'", "“": "``", "”": "''", "…": r"\dots{}", "`": r"\textasciigrave{}",
}  # fmt: skip


def superscript(number: int) -> str:
    """Return an exponent in Unicode: -3 becomes ⁻³."""
    return str(number).translate(_SUPERSCRIPTS)


def signed(value: float, decimals: int = 2) -> str:
    """Return a number with its sign, or a dash for NaN: +0.50, −0.12."""
    return "–" if math.isnan(value) else f"{value:+.{decimals}f}".replace("-", "−")


def interval(lower: float, upper: float) -> str:
    """Return an interval with the signs of its ends, or '' for NaN: [−0.12, +0.50]."""
    return "" if math.isnan(lower) else f"[{signed(lower)}, {signed(upper)}]"


def with_range(
    value: float | None, low: float | None = None, high: float | None = None, *, decimals: int
) -> str:
    """Return a number with its range, if known, or a dash for an absent number.

    >>> with_range(0.36, 0.31, 0.41, decimals=2), with_range(0.36, decimals=2)
    ('0.36 [0.31, 0.41]', '0.36')

    Args:
        value: the number.
        low: the lower end of its range.
        high: the upper end.
        decimals: number of decimals.
    """
    if pd.isna(value):
        return "–"
    text = f"{value:.{decimals}f}"
    return text if pd.isna(low) else f"{text} [{low:.{decimals}f}, {high:.{decimals}f}]"


def latex(text: str) -> str:
    """Convert plain text to LaTeX: escape special characters, write known Unicode as mathematics.

    Letters with accents stay, because pdfLaTeX reads them.
    """
    # LaTeX would join two hyphens or apostrophes into another character.
    apart = re.sub(r"-(?=-)|'(?=')", r"\g<0>\0", one_line(text))
    escaped = "".join(_LATEX.get(character, character) for character in apart)
    return re.sub(
        r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+",
        lambda match: f"$^{{{match[0].translate(_FROM_SUPERSCRIPTS)}}}$",
        escaped.replace("\0", "{}"),
    )


@dataclass(frozen=True)
class TextTable:
    """Header and rows of text.

    Attributes:
        header: column titles.
        rows: cells, as many in each row as there are titles.
        columns: the kind of each column: ``l`` (flush left), ``r`` (flush right: numbers), or ``p0.2``, a
            ragged paragraph of 0.2 line widths.
        groups: indices of the rows with a horizontal rule above them.
        size: LaTeX type size.
        note: remarks on the rows, for the caption.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    columns: Sequence[str]
    groups: frozenset[int] = frozenset()
    size: str = "small"
    note: str = ""

    @classmethod
    def of(cls, rows: Sequence[Mapping[Any, str]], columns: Sequence[str], **look: Any) -> Self:
        """Return a table of rows that are mappings from column title to cell.

        >>> table = TextTable.of([{"B": "64", "lost": "0.5"}, {"B": "full", "lost": "–"}], "rr")
        >>> table.header, table.rows
        (['B', 'lost'], [['64', '0.5'], ['full', '–']])

        Args:
            rows: text by title, with the same titles in each row; no rows give no titles.
            columns: see the class.
            look: ``groups``, ``size`` and ``note``.
        """
        return cls(
            list(rows[0]) if rows else [], [list(row.values()) for row in rows], columns, **look
        )

    def latex(self, caption: str, label: str) -> str:
        """Return a floating ``table``, written by pandas; it needs the packages array and booktabs."""
        kinds = "".join(
            rf">{{\raggedright\arraybackslash}}p{{{kind[1:]}\linewidth}}"
            if kind.startswith("p")
            else kind
            for kind in self.columns
        )
        frame = pd.DataFrame(list(self.rows), columns=list(self.header), dtype=str)
        styler = frame.style.hide(axis="index").format(_cell).format_index(_cell, axis="columns")
        styler.set_table_styles(
            [
                {"selector": self.size, "props": ":{}"},
                {"selector": "setlength", "props": r":{\tabcolsep}{3pt}"},
            ]
        )
        text: str = styler.to_latex(
            column_format=f"@{{}}{kinds}@{{}}", position="t", position_float="centering",
            hrules=True, caption=latex(caption), label=label,
        )  # fmt: skip
        lines = ["% \\usepackage{array,booktabs}", *text.splitlines()]
        first = lines.index(r"\midrule") + 1
        for row in sorted(self.groups - {0}, reverse=True):
            lines.insert(first + row, r"\midrule")
        return "\n".join(lines) + "\n"

    def markdown(self, caption: str, heading: bool = False) -> str:
        """Return a GitHub-flavoured Markdown table below its caption.

        Args:
            caption: plain text.
            heading: whether the caption is the heading of a section.
        """
        rules = ["---:" if kind == "r" else ":---" for kind in self.columns]
        above = ("## " if heading else "") + markdown(caption)
        head, *rows = (_markdown_row(map(markdown, cells)) for cells in (self.header, *self.rows))
        lines = [above, "", head, _markdown_row(rules), *rows]
        return "\n".join(lines) + "\n"


def _cell(content: object) -> str:
    text = latex(str(content))
    # LaTeX would read [ or * at the start of a row as an argument of the \\ before it.
    return "{}" + text if text.startswith(("[", "*")) else text


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def group_starts(keys: Sequence[object]) -> frozenset[int]:
    """Return the indices of rows whose key differs from that of the row before."""
    return frozenset(i for i in range(1, len(keys)) if keys[i] != keys[i - 1])


def write(study: Study, paths: Paths, target: str) -> None:
    """Write ``<target>.csv`` with full precision, and the printed table as ``.tex`` and ``.md``.

    Comparisons get a separate CSV, ``<target>.comparisons.csv``. With partial paths, absent results are
    left out and counted in the caption.

    Raises:
        DpsweepError: the study has no such table.
        MissingResultsError: results are absent, and the paths are not partial.
    """
    table = pick("table", target, study.tables)
    missing: list[Path] | None = [] if paths.partial else None
    rows = table.frames(study, paths, missing)
    caption, printed = _printed(study, table, rows["csv"])
    if missing:
        files = count(len(set(missing)), "result file is", "result files are")
        caption += f" Partial: {files} not there yet."
    write_printed(partial(paths.table, target), printed, caption, target)
    for suffix, frame in rows.items():
        frames.write_numbers(frame, paths.table(target, suffix))
    write_settings(paths.table(target, "csv"), target_fingerprint(study, table))


def write_printed(
    file: Callable[[str], Path], printed: TextTable, caption: str, label: str
) -> None:
    """Write a table as LaTeX and as Markdown.

    Args:
        file: returns the path of the table's file with a suffix, ``tex`` or ``md``.
        printed: the table.
        caption: its caption.
        label: its LaTeX label, without the prefix ``tab:``.
    """
    write_text(file("tex"), printed.latex(caption, f"tab:{label}"))
    write_text(file("md"), printed.markdown(caption))


def read(study: Study, paths: Paths, target: str) -> tuple[str, TextTable]:
    """Return caption and text of a table, read from the CSV of `write`.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: the file is not a CSV of this table.
    """
    table = study.tables[target]
    words = dict.fromkeys([*table.words, *table.row_titles], str)
    numbers = frames.read_numbers(paths.table(target, "csv"), words)
    try:
        return _printed(study, table, numbers)
    except KeyError as error:
        raise ValueError(f"it has no column {error}") from error


def _printed(study: Study, table: PrintedTable, numbers: pd.DataFrame) -> tuple[str, TextTable]:
    printed = table.layout(numbers)
    notes = [table.caption, *how_chosen(study, table), printed.note]
    return " ".join(note for note in notes if note), printed
