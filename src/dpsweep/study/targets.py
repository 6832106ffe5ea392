"""The families of figures, one class each, with the cells that they need.

A function makes a figure of the cells of a study (`dpsweep.figures.paper`). These classes import no plotting
library, because every job of a study imports them.
"""

from abc import abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from dpsweep.study.clipping import RULES
from dpsweep.study.grid import Line, LinePanel, Panel, Selection
from dpsweep.study.section import Settings

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
    """in the report; `dpsweep.study.descriptions.Words` has words for it"""

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
        draw: Any = import_module("dpsweep.figures.style").draw_frame
        found: matplotlib.figure.Figure = draw(cls.model_construct(**options), frame, style)
        return found


def named_rule(selection: Selection) -> str | None:
    """Return the clipping rule of a selection if the rule has no bound, else None."""
    first = next(iter(selection.values("clipping_bound")), None)
    return first if isinstance(first, str) and first in RULES else None


__all__ = ["Figure", "Line", "LinePanel", "Panel", "Selection"]
