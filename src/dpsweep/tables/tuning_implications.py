"""The table of the paper's tuning rules with the evidence of the study (Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from pydantic import PrivateAttr

from dpsweep.analysis import evidence, frames, statistics
from dpsweep.base.lazy import pd
from dpsweep.study import Paths, Study
from dpsweep.study.cells import NAMED
from dpsweep.study.datasets import related_datasets
from dpsweep.study.grid import NotDrawnError, Selection
from dpsweep.study.sweeps import Sweep
from dpsweep.study.targets import Missing, PrintedTable
from dpsweep.tables.text import TextTable, group_starts, interval, signed, with_range

NOTE = (
    "Effect: the accuracy in percentage points that following the rule gains, measured by seeds that did not "
    "choose, without what noise alone would gain. Brackets: t intervals, which hold together with 95 %, over "
    "the problems of this study, or over datasets that share no examples. Supported or contradicted: the "
    "interval and most units lie beyond the margin, the smallest effect that matters, and beyond the error "
    "of the reference. No difference: within the margin. Not resolved: anything else. Here: for this study "
    "only. A verdict needs {units} units, one for other datasets {datasets} datasets. Visible: the smallest "
    "effect that this study would find with 80 %."
)
"""The explanation of the columns, below the caption."""
_WIDTHS = [
    "p0.08", "p0.11", "p0.15", "p0.14", "p0.13", "p0.06", "p0.06", "p0.06", "p0.09", "p0.08",
]  # fmt: skip


class ComparedGrids(PrintedTable):
    """A table that compares grids of the study; a further file has the comparisons."""

    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv", "comparisons.csv")

    _cells: list[Selection] = PrivateAttr(default_factory=list)

    def leaves(self) -> list[Selection]:
        """Return the grids that are compared."""
        return self._cells

    def of(self, cells: Sequence[Selection]) -> Self:
        """Return the table with these grids."""
        table = self.model_copy()
        table._cells = list(cells)
        return table


def grid(sweep: Sweep, **axes: list[Any]) -> Selection:
    """Return the grid of a sweep, with other values for some axes."""
    names = {key: getattr(sweep, key) for key in NAMED}
    return Selection.model_validate({**names, **sweep.axes, **axes})


class TuningImplications(ComparedGrids):
    """The paper's tuning rules, each with the measured evidence.

    It uses every private sweep that crosses batch sizes with clipping bounds.
    """

    family = "tuning_implications"
    title = "Tuning rules"

    def with_study(self, study: Study) -> Self:
        """Return the table with the private grid of each sweep that crosses B with C."""
        found = []
        for sweep in study.sweeps.values():
            bounds = [each for each in sweep.clipping_bounds if not isinstance(each, str)]
            if sweep.private_epsilon and len(bounds) > 1 and len(sweep.batch_size) > 1:
                found.append(grid(sweep, epsilon=sweep.private_epsilon))
        if not found:
            raise NotDrawnError("no sweep has two batch sizes and two clipping bounds")
        return self.of(found)

    def frames(
        self, study: Study, paths: Paths, missing: Missing = None
    ) -> dict[str, pd.DataFrame]:
        """Return one row per rule, and one row per comparison; see `dpsweep.analysis.evidence`."""
        cells = [cell for selection in self.selections() for cell in selection.cells()]
        sizes = {name: dataset.test_size for name, dataset in study.datasets.items()}
        comparisons = evidence.compare(
            statistics.grids(frames.load_trials(study, paths, cells, missing), sizes)
        )
        return {
            "csv": evidence.evidence_table(comparisons, related_datasets(study.datasets)),
            "comparisons.csv": evidence.comparison_table(comparisons),
        }

    def layout(self, numbers: pd.DataFrame) -> TextTable:
        """Lay out the rules; an effect is positive if it agrees with the rule."""
        rows = [
            {
                "Condition": str(row["condition"]),
                "Rule": str(row["implication"]),
                "Measured": f"{row['effect_measured']} ({row['unit']})",
                "Effect [this study]": (
                    f"{signed(row['effect'])} {interval(row['lower_here'], row['upper_here'])}"
                ),
                "Other datasets": interval(row["lower_elsewhere"], row["upper_elsewhere"]),
                "Margin": f"{row['margin']:g}",
                # Accuracies differ by at most 100 points.
                "Visible": with_range(visible if visible <= 100 else None, decimals=2),
                "Comparisons": str(row["comparisons"]),
                "Units (for, against)": f"{row['units']} ({row['in_favour']}, {row['against']}) in "
                f"{row['groups_of_datasets']}",
                "Verdict": str(row["verdict"]),
            }
            for row in numbers.to_dict("records")
            for visible in [row["smallest_visible_here"]]
        ]
        return TextTable.of(
            rows,
            _WIDTHS,
            groups=group_starts([row["Condition"] for row in rows]),
            size="footnotesize",
            note=NOTE.format(units=evidence.FEWEST_UNITS, datasets=evidence.FEWEST_DATASETS),
        )
