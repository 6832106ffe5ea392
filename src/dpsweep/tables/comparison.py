"""Tables of the best accuracy of each selection, next to the number from a paper."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr

from dpsweep.analysis import frames
from dpsweep.base.lazy import np, pd
from dpsweep.study import Paths, Study, choice
from dpsweep.study.cells import number
from dpsweep.study.file import PaperNumber
from dpsweep.study.grid import MistakeError, Selection
from dpsweep.study.targets import Missing, PrintedTable, facts
from dpsweep.tables.text import TextTable, group_starts, signed, with_range

_OF_THE_CELL = [
    "problem", "epsilon", "epochs", "batch_size", "clipping", "clipping_bound", "learning_rate",
]  # fmt: skip
ACCURACY = ["macro_accuracy", "minimum", "maximum"]
"""Columns of the study's accuracy with its range."""
REFERENCE = ["reference", "reference_minimum", "reference_maximum"]
"""Columns of the paper's accuracy with its range."""


class _Place(NamedTuple):
    """Where an entry stands in the table, and the paper's number for its cells, if there is one."""

    row: tuple[str, ...]
    column: str
    reference: PaperNumber | None


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
    words = ("column",)
    part = "entries"
    tunes = True
    shows_means = True
    single = ("epsilon", "epochs")
    rows: Annotated[list[Label], Field(min_length=1)]
    """the labels of a row"""
    columns: Annotated[list[Label], Field(min_length=1)]
    """the labels of a column"""
    entries: Annotated[list[Selection], Field(min_length=1)]

    _places: list[_Place] = PrivateAttr(default_factory=list)

    @property
    def row_titles(self) -> list[str]:
        """The titles of the columns with row labels."""
        return [LABEL_TITLES[label] for label in self.rows]

    def with_study(self, study: Study) -> Self:
        """Return the table with its entries in rows and columns, and the paper's numbers for them."""
        places = []
        for entry in self.entries:
            said = facts(study, entry)
            epsilons = " ".join(map(number, entry.values("epsilon")))
            row = [(said | {"epsilon": epsilons})[label] or "–" for label in self.rows]
            column = ", ".join(said[label] or "–" for label in self.columns)
            references = (each for each in study.reference_values if _is_of(each, entry))
            places.append(_Place(tuple(row), column, next(references, None)))
        for (*row, column), times in Counter((*of.row, of.column) for of in places).items():
            if times > 1:
                raise MistakeError(f"{', '.join([*row, column])} appears twice in the table")
        table = self.model_copy()
        table._places = places
        return table

    def further_settings(self) -> dict[str, Any]:
        """Return the paper's numbers."""
        numbers = [place.reference for place in self._places]
        return {"references": [each and each.model_dump(mode="json") for each in numbers]}

    def frames(
        self, study: Study, paths: Paths, missing: Missing = None
    ) -> dict[str, pd.DataFrame]:
        """Return one row per entry: mean and range over repeats, the reference, and the difference.

        ``cross_fitted`` is the accuracy without optimism (`dpsweep.study.choice`).
        ``within_reference`` is True if the mean lies in the reference's range, and empty without a range.
        """
        rows = []
        for entry, (row, column, paper) in zip(self.entries, self._places, strict=True):
            trials = frames.load_trials(study, paths, entry.cells(), missing)
            best = choice.choose(trials, by=["problem"]).rename(
                columns={"centre": "macro_accuracy"}
            )
            ours = best.iloc[0] if len(best) else pd.Series(dtype=object)
            mean = float(ours.get("macro_accuracy", np.nan))
            ranged = paper is not None and paper.minimum is not None and paper.maximum is not None
            rows.append(
                {
                    **dict(zip(self.row_titles, row, strict=True)),
                    "column": column,
                    **{name: ours.get(name) for name in _OF_THE_CELL},
                    "macro_accuracy": mean,
                    **{
                        name: ours.get(name, np.nan)
                        for name in ("cross_fitted", "minimum", "maximum")
                    },
                    "repeats": ours.get("repeats", 0),
                    "reference": paper.value if paper else np.nan,
                    "reference_minimum": paper.minimum if paper else np.nan,
                    "reference_maximum": paper.maximum if paper else np.nan,
                    "difference": mean - paper.value if paper else np.nan,
                    "within_reference": bool(paper.minimum <= mean <= paper.maximum)  # type: ignore[union-attr, operator]
                    if ranged
                    else None,
                }
            )
        return {"csv": pd.DataFrame(rows)}

    def which_is_better(self, numbers: pd.DataFrame) -> str:
        """Return sentences that compare each two columns by accuracies without optimism."""
        rows = numbers.pivot_table(index=self.row_titles, columns="column", values="cross_fitted")
        columns = [name for name in dict.fromkeys(numbers["column"]) if name in rows]
        sentences = []
        for one, other in itertools.combinations(columns, 2):
            difference = (rows[other] - rows[one]).dropna()
            if len(difference):
                sentences.append(
                    f"{other} has a higher accuracy than {one} in {(difference > 0).sum()} of "
                    f"{len(difference)} rows (mean difference {signed(100 * difference.mean(), 1)} points)"
                )
        listed = "; ".join(sentences)
        return f"Measured by seeds that did not choose: {listed}." if sentences else ""

    def layout(self, numbers: pd.DataFrame) -> TextTable:
        """Lay out rows and columns as in the entries, with a paper's column next to each with a reference."""
        rounding = (numbers["reference"] - numbers["reference"].round(3)).abs().max()
        decimals = 4 if rounding > 1e-9 else 3
        columns: dict[str, tuple[str, list[str]]] = {}
        for column in numbers["column"].unique():
            columns[column] = (column, ACCURACY)
            if numbers.loc[numbers["column"] == column, "reference"].notna().any():
                columns[f"{column} (paper)"] = (column, REFERENCE)
        rows = []
        for key, entries in numbers.groupby(self.row_titles, sort=False):
            of_column = entries.drop_duplicates("column").set_index("column")
            row = [str(each) for each in key]
            for column, names in columns.values():
                known = column in of_column.index
                written = of_column.loc[column, names] if known else [np.nan] * 3
                row.append(with_range(*written, decimals=decimals))
            rows.append(row)
        return TextTable(
            header=[*self.row_titles, *columns],
            rows=rows,
            columns=["l"] * len(self.row_titles) + ["r"] * len(columns),
            groups=group_starts([row[0] for row in rows])
            if len(self.row_titles) > 1
            else frozenset(),
            size="footnotesize",
            note=" ".join(filter(None, [_against_paper(numbers), self.which_is_better(numbers)])),
        )


def _against_paper(numbers: pd.DataFrame) -> str:
    """Return sentences on the differences to the paper's numbers, if it has any."""
    known = numbers.dropna(subset=["difference"])
    if known.empty:
        return ""
    mean, least, most = (
        signed(known["difference"].agg(each), 4) for each in ("mean", "min", "max")
    )
    text = (
        f"Ours minus the paper's, in {len(known)} of {numbers['reference'].count()} numbers: mean {mean}, "
        f"from {least} to {most}."
    )
    ranged = known.dropna(subset=["reference_minimum"])
    if len(ranged):
        inside = (ranged["within_reference"].astype(str) == "True").sum()
        text += (
            f" {inside} of {len(ranged)} of our means lie within the range that the paper prints."
        )
    return text


def _is_of(paper: PaperNumber, cells: Selection) -> bool:
    """Return whether a number of a paper describes some cells."""
    problem, bounds = cells.problem, cells.values("clipping_bound")
    return (
        (paper.dataset, paper.backbone, paper.method)
        == (problem.dataset, problem.backbone, problem.method)
        and problem.optimizer == "adam"
        and paper.clipping_bound == (bounds[0] if len(bounds) == 1 else "tuned")
        and cells.values("epsilon") == [paper.epsilon]
        and cells.values("epochs") == [paper.epochs]
    )
