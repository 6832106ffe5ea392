"""The families of tables: what each shows, and so which cells it needs."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from dpsweep.config.references import PaperNumber
from dpsweep.config.selections import Axis, Part, Selection
from dpsweep.study.targets import Target


class PrintedTable(Target):
    """A table."""

    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv")
    """Suffixes of its files."""


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
    """keys of which every value, or every name of the role, is an entry of its own"""

    _row: list[str] = PrivateAttr(default_factory=list)
    _column: str = PrivateAttr(default="")
    _reference: PaperNumber | None = PrivateAttr(default=None)

    @property
    def row(self) -> list[str]:
        """Labels of the entry's row."""
        return self._row

    @property
    def column(self) -> str:
        """Label of the entry's column."""
        return self._column

    @property
    def reference(self) -> PaperNumber | None:
        """The paper's number for these cells, if there is one."""
        return self._reference

    def placed(self, row: Sequence[str], column: str, reference: PaperNumber | None) -> Self:
        """The entry at its place in the table."""
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
    """Best accuracy of each selection in a grid of rows and columns, mean [min, max] over repeats.

    With the number of the study's ``references`` beside it, where there is one for the same cells.
    """

    family = "comparison"
    title = "Comparison"
    part = "entries"
    tunes = True
    shows_means = True
    single = ("epsilon", "epochs")
    rows: Annotated[list[Label], Field(min_length=1)]
    """what tells rows apart"""
    columns: Annotated[list[Label], Field(min_length=1)]
    """what tells columns apart"""
    entries: Annotated[list[ComparedCells], Field(min_length=1)]

    @property
    def row_titles(self) -> list[str]:
        """The head of the columns that tell rows apart."""
        return [LABEL_TITLES[label] for label in self.rows]


class ComparedGrids(PrintedTable):
    """A table of grids that the study has, compared; their comparisons stand in a file of their own."""

    table_files = ("tex", "md", "csv", "comparisons.csv")

    _cells: list[Selection] = PrivateAttr(default_factory=list)

    def leaves(self) -> list[Selection]:
        """The grids that are compared."""
        return self._cells

    def of(self, cells: Sequence[Selection]) -> Self:
        """The table of these grids."""
        table = self.model_copy()
        table._cells = list(cells)
        return table


class TuningImplications(ComparedGrids):
    """The paper's tuning rules, each with the measured evidence.

    It is drawn from every private sweep that crosses batch sizes with clipping bounds.
    """

    family = "tuning_implications"
    title = "Tuning rules"


class OptimizerTable(ComparedGrids):
    """The gain of each optimizer over one of them in the same settings, with paired intervals.

    It is drawn from every private sweep whose dataset, backbone and method are trained with the baseline too.
    """

    family = "optimizers"
    title = "Optimizers"
    tunes = True
    baseline: Part = "adam"
    """the optimizer that others are compared with"""
