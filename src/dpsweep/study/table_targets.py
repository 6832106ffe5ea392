"""The families of tables: what each shows, and so which cells it needs."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, PrivateAttr

from dpsweep.study.clipping import PrivateRule
from dpsweep.study.selections import Foreach, Part, Selection, Settings
from dpsweep.study.targets import Target


class HyperparameterGrid(Target):
    """The grid of every sweep, from the study itself (Table A1)."""

    title = "Hyperparameter grids"
    family: Literal["hyperparameter_grid"]


class Datasets(Target):
    """Prepared datasets: sizes, classes, balance, source (Table A2)."""

    title = "Datasets"
    family: Literal["datasets"]


class PaperNumber(Settings):
    """A number that a paper prints, beside which ours is shown, and the cells that it is about."""

    dataset: str
    backbone: str
    method: str
    clipping_bound: PositiveFloat | PrivateRule | Literal["tuned"]
    """one C, AUTO-S, or the best of several C"""
    epsilon: PositiveFloat
    epochs: PositiveInt
    value: float
    minimum: float | None = None
    maximum: float | None = None

    def is_of(self, cells: Selection) -> bool:
        """Whether the number is about these cells, which have names and values."""
        problem, bounds = cells.problem, cells.values("clipping_bound")
        return (
            (self.dataset, self.backbone, self.method)
            == (problem.dataset, problem.backbone, problem.method)
            and problem.optimizer == "adam"
            and self.clipping_bound == (bounds[0] if len(bounds) == 1 else "tuned")
            and cells.values("epsilon") == [self.epsilon]
            and cells.values("epochs") == [self.epochs]
        )


class ComparedCells(Selection):
    """Entries of a comparison table."""

    foreach: Foreach | None = None

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


class ComparisonTable(Target):
    """Best accuracy of each selection in a grid of rows and columns, mean [min, max] over repeats.

    With the number of the study's ``references`` beside it, where there is one for the same cells.
    """

    title = "Comparison"
    part = "entries"
    tunes = True
    shows_means = True
    single = ("epsilon", "epochs")

    family: Literal["comparison"]
    rows: Annotated[list[Label], Field(min_length=1)]
    """what tells rows apart"""
    columns: Annotated[list[Label], Field(min_length=1)]
    """what tells columns apart"""
    entries: Annotated[list[ComparedCells], Field(min_length=1)]

    @property
    def row_titles(self) -> list[str]:
        """The head of the columns that tell rows apart."""
        return [LABEL_TITLES[label] for label in self.rows]


class ComparedGrids(Target):
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

    title = "Tuning rules"

    family: Literal["tuning_implications"]


class OptimizerTable(ComparedGrids):
    """The gain of each optimizer over one of them in the same settings, with paired intervals.

    It is drawn from every private sweep whose dataset, backbone and method are trained with the baseline too.
    """

    title = "Optimizers"
    tunes = True

    family: Literal["optimizers"]
    baseline: Part = "adam"
    """the optimizer that others are compared with"""


Table = Annotated[
    HyperparameterGrid | Datasets | ComparisonTable | TuningImplications | OptimizerTable,
    Field(discriminator="family"),
]
