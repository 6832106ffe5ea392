"""The table of the gains of optimizers over a baseline optimizer at the same epsilon."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Self

from dpsweep.analysis import frames, optimizers
from dpsweep.base.lazy import pd
from dpsweep.study.cells import number
from dpsweep.study.clipping import clipping_kind
from dpsweep.study.grid import MistakeError, NotDrawnError, Selection
from dpsweep.study.messages import unknown
from dpsweep.study.sweeps import Sweep
from dpsweep.tables.text import TextTable, group_starts, interval, signed
from dpsweep.tables.tuning_implications import ComparedGrids, grid

if TYPE_CHECKING:
    from dpsweep.study import Study
    from dpsweep.study.paths import Paths
from dpsweep.study.targets import Missing

NOTE = (
    "A gain is the accuracy in percentage points beyond the baseline ({baseline}) with the same dataset, "
    "network, method, ε, epochs and seed, each with the batch size, clipping bound and learning rate that "
    "other seeds choose for it; a mean over settings. In brackets 95 % t intervals: over seeds, so for these "
    "settings; and over problems (dataset, network, method), so for problems like these. Better, worse: "
    "settings whose own interval over seeds lies on one side of 0. Average over last: what the averaged "
    "parameters gain over the last ones of the same trainings, with an interval over seeds."
)


class OptimizerTable(ComparedGrids):
    """The gain of each optimizer over one of them in the same settings, with paired intervals.

    It uses every private sweep if the baseline trains the same dataset, backbone and method.
    """

    family = "optimizers"
    title = "Optimizers"
    tunes = True
    words = ("optimizer", "title", "baseline")

    baseline: str = "adam"
    """the optimizer that others are compared with"""

    def with_study(self, study: Study) -> Self:
        """Return the table with the grids of the settings that are compared."""
        return self.of(_rivals(study, self.baseline))

    def frames(
        self, study: Study, paths: Paths, missing: Missing = None
    ) -> dict[str, pd.DataFrame]:
        """Return one row per (epsilon, optimizer), and one per (setting, optimizer).

        See `dpsweep.analysis.optimizers`.
        """
        found = []
        for selection in self.selections():
            averaged = study.optimizer(selection.problem.optimizer).average is not None
            # Only optimizers that average need this column; cells of older versions lack it.
            also = ["last_macro_accuracy"] if averaged else []
            found.append(frames.load_trials(study, paths, selection.cells(), missing, also))
        trials = pd.concat([each for each in found if len(each)] or found[:1], ignore_index=True)
        gains = optimizers.paired_gains(trials, self.baseline)
        numbers = optimizers.optimizers_table(gains, self.baseline)
        titles = {name: study.optimizer_title(name, [1.0]) for name in study.every_optimizer}
        numbers = numbers.assign(
            title=[titles[name] for name in numbers.get("optimizer", [])],
            baseline=titles[self.baseline],
        )
        return {"csv": numbers, "comparisons.csv": optimizers.settings_table(trials, gains)}

    def layout(self, numbers: pd.DataFrame) -> TextTable:
        """Lay out a block of optimizers for each epsilon, and one for all epsilons."""
        rows = [
            {
                "ε": "all" if pd.isna(row["epsilon"]) else number(row["epsilon"]),
                "Optimizer": str(row["title"]),
                "Settings": str(row["settings"]),
                "Gain [these settings]": _gain(row, ""),
                "[problems like these]": interval(row["lower_elsewhere"], row["upper_elsewhere"]),
                "Better, worse": f"{row['better']}, {row['worse']}",
                "Average over last": _gain(row, "last_"),
            }
            for row in numbers.to_dict("records")
        ]
        baseline = "" if numbers.empty else str(numbers["baseline"].iloc[0])
        return TextTable.of(
            rows,
            ["l", "p0.24", "r", "r", "r", "r", "r"],
            groups=group_starts([row["ε"] for row in rows]),
            size="footnotesize",
            note=NOTE.format(baseline=baseline),
        )


def _rivals(study: Study, baseline: str) -> list[Selection]:
    """Return the private grids of the settings that the baseline and another optimizer train."""
    if baseline not in study.every_optimizer:
        raise MistakeError(f"baseline: {unknown(baseline, study.every_optimizer)}")
    # Sweeps with equal keys compare their optimizers.
    settings: dict[tuple[str, ...], list[tuple[Sweep, float, int]]] = {}
    for sweep in study.sweeps.values():
        kind = clipping_kind(sweep.clipping_bound)
        key = (sweep.dataset, sweep.backbone, sweep.method, kind)
        for epsilon, epochs in itertools.product(sweep.private_epsilon, sweep.epochs):
            settings.setdefault(key, []).append((sweep, epsilon, epochs))
    found = []
    for group in settings.values():
        trained: dict[tuple[float, int], set[str]] = {}
        for sweep, epsilon, epochs in group:
            trained.setdefault((epsilon, epochs), set()).add(sweep.problem.optimizer)
        found += [
            grid(sweep, epsilon=[epsilon], epochs=[epochs])
            for sweep, epsilon, epochs in group
            if baseline in (rivals := trained[epsilon, epochs]) and len(rivals) > 1
        ]
    if not found:
        raise NotDrawnError(f"no sweep trains with another optimizer what {baseline} trains")
    return found


def _gain(row: dict[Hashable, Any], prefix: str) -> str:
    gain, lower, upper = (row[f"{prefix}{name}"] for name in ("gain", "lower", "upper"))
    return f"{signed(gain)} {interval(lower, upper)}".rstrip()
