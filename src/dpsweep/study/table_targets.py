"""The families of tables: what each shows, and so which cells it needs."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from dpsweep.study.compared import ComparedCells
from dpsweep.study.selections import Selection
from dpsweep.study.target import Target


class HyperparameterGrid(Target):
    """The grid of every sweep, from the study itself (Table A1)."""

    title: ClassVar[str] = "Hyperparameter grids"
    family: Literal["hyperparameter_grid"]

    def leaves(self) -> list[Selection]:
        """It draws no cells."""
        return []


class Datasets(Target):
    """Prepared datasets: sizes, classes, balance, source (Table A2)."""

    title: ClassVar[str] = "Datasets"
    family: Literal["datasets"]

    def leaves(self) -> list[Selection]:
        """It draws no cells."""
        return []


Label = Literal["dataset", "backbone", "method", "rank", "clipping", "epsilon", "epochs"]
LABEL_TITLES = {
    "dataset": "Dataset", "backbone": "Model", "method": "Method", "rank": "Rank",
    "clipping": "Clipping", "epsilon": "ε", "epochs": "Epochs",
}  # fmt: skip


class ComparisonTable(Target):
    """Best accuracy of each selection in a grid of rows and columns, mean [min, max] over repeats.

    With the number of the study's ``references`` beside it, where there is one for the same cells.
    """

    title: ClassVar[str] = "Comparison"
    part: ClassVar[str] = "entries"
    tunes: ClassVar[bool] = True
    shows_means: ClassVar[bool] = True

    family: Literal["comparison"]
    rows: Annotated[list[Label], Field(min_length=1, description="what tells rows apart")]
    columns: Annotated[list[Label], Field(min_length=1, description="what tells columns apart")]
    entries: Annotated[list[ComparedCells], Field(min_length=1)]

    @property
    def row_titles(self) -> list[str]:
        """The head of the columns that tell rows apart."""
        return [LABEL_TITLES[label] for label in self.rows]

    def single_axes(self) -> tuple[str, ...]:
        """An entry is one problem."""
        return ("epsilon", "epochs")


class TuningImplications(Target):
    """The paper's tuning rules, each with the measured evidence.

    It is drawn from every private sweep that crosses batch sizes with clipping bounds.
    """

    title: ClassVar[str] = "Tuning rules"
    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv", "comparisons.csv")

    family: Literal["tuning_implications"]

    _cells: list[Selection] = PrivateAttr(default_factory=list)

    def leaves(self) -> list[Selection]:
        """The grids that are compared."""
        return self._cells

    def of(self, cells: Sequence[Selection]) -> Self:
        """The table of these grids."""
        table = self.model_copy()
        table._cells = list(cells)
        return table


Table = Annotated[
    HyperparameterGrid | Datasets | ComparisonTable | TuningImplications,
    Field(discriminator="family"),
]
