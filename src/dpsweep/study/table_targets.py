"""The families of tables, with the cells that each needs."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from dpsweep.config.references import PaperNumber
from dpsweep.config.selections import Axis, Part, Selection
from dpsweep.study.targets import Target


class PrintedTable(Target):
    """A table."""

    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv")
    """Suffixes of the files of the table."""


class HyperparameterGrid(PrintedTable):
    """The grid of every sweep, from the study itself (Table A1)."""

    family = "hyperparameter_grid"
    title = "Hyperparameter grids"


class Datasets(PrintedTable):
    """Prepared datasets: sizes, classes, balance, source (Table A2)."""

    family = "datasets"
    title = "Datasets"


class ComparedCells(Selection):
    """Entries of a comparison table."""

    each: tuple[Axis, ...] = ()
    """keys with an entry for every value, or for every name of the role"""

    _row: list[str] = PrivateAttr(default_factory=list)
    _column: str = PrivateAttr(default="")
    _reference: PaperNumber | None = PrivateAttr(default=None)

    @property
    def row(self) -> list[str]:
        """The labels of the entry's row."""
        return self._row

    @property
    def column(self) -> str:
        """The label of the entry's column."""
        return self._column

    @property
    def reference(self) -> PaperNumber | None:
        """The paper's number for these cells, if there is one."""
        return self._reference

    def placed(self, row: Sequence[str], column: str, reference: PaperNumber | None) -> Self:
        """Return the entry with its place in the table."""
        entry = self.model_copy()
        entry._row, entry._column, entry._reference = list(row), column, reference
        return entry


Label = Literal[
    "dataset", "backbone", "method", "optimizer", "rank", "clipping", "epsilon", "epochs"
]
LABEL_TITLES = {
    "dataset": "Dataset", "backbone": "Model", "method": "Method", "optimizer": "Optimizer", "rank": "Rank",
    "clipping": "Clipping", "epsilon": "ε", "epochs": "Epochs",
}  # fmt: skip


class ComparisonTable(PrintedTable):
    """Best accuracy of each selection in rows and columns: mean [min, max] over repeats.

    Beside it is the number of the study's ``references`` for the same cells, if there is one.
    """

    family = "comparison"
    title = "Comparison"
    part = "entries"
    tunes = True
    shows_means = True
    single = ("epsilon", "epochs")
    rows: Annotated[list[Label], Field(min_length=1)]
    """the labels of a row"""
    columns: Annotated[list[Label], Field(min_length=1)]
    """the labels of a column"""
    entries: Annotated[list[ComparedCells], Field(min_length=1)]

    @property
    def row_titles(self) -> list[str]:
        """The titles of the columns with row labels."""
        return [LABEL_TITLES[label] for label in self.rows]


class ComparedGrids(PrintedTable):
    """A table that compares grids of the study; a further file has the comparisons."""

    table_files = ("tex", "md", "csv", "comparisons.csv")

    _cells: list[Selection] = PrivateAttr(default_factory=list)

    def leaves(self) -> list[Selection]:
        """Return the grids that are compared."""
        return self._cells

    def of(self, cells: Sequence[Selection]) -> Self:
        """Return the table with these grids."""
        table = self.model_copy()
        table._cells = list(cells)
        return table


class TuningImplications(ComparedGrids):
    """The paper's tuning rules, each with the measured evidence.

    It uses every private sweep that crosses batch sizes with clipping bounds.
    """

    family = "tuning_implications"
    title = "Tuning rules"


class OptimizerTable(ComparedGrids):
    """The gain of each optimizer over one of them in the same settings, with paired intervals.

    It uses every private sweep if the baseline trains the same dataset, backbone and method.
    """

    family = "optimizers"
    title = "Optimizers"
    tunes = True
    baseline: Part = "adam"
    """the optimizer that others are compared with"""
