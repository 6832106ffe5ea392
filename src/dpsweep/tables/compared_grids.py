"""Tables that compare grids of a study: the paper's tuning rules (Table 1), and the gains of optimizers.

Gains are those over a baseline optimizer at the same epsilon, seed by seed. A setting is a (dataset,
backbone, method, clipping rule, epsilon, epochs). In each setting, every optimizer has its own best batch
size, clipping bound and learning rate. It is measured by seeds that did not choose them
(`dpsweep.study.choice`). Runs with the same seed share initial parameters and data, so differences are taken
seed by seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Self

from pydantic import PrivateAttr

from dpsweep.analysis import evidence, frames, statistics
from dpsweep.base.lazy import np, pd
from dpsweep.study import Paths, Study, choice
from dpsweep.study.cells import NAMED, number
from dpsweep.study.clipping import clipping_kind
from dpsweep.study.datasets import related_datasets
from dpsweep.study.grid import MistakeError, NotDrawnError, Selection
from dpsweep.study.messages import unknown
from dpsweep.study.sweeps import Sweep
from dpsweep.study.targets import Missing, PrintedTable
from dpsweep.tables.text import TextTable, group_starts, interval, signed, with_range

# Explanations of the columns, below the captions.
_RULES_NOTE = (
    "Effect: the accuracy in percentage points that following the rule gains, measured by seeds that did not "
    "choose, without what noise alone would gain. Brackets: t intervals, which hold together with 95 %, over "
    "the problems of this study, or over datasets that share no examples. Supported or contradicted: the "
    "interval and most units lie beyond the margin, the smallest effect that matters, and beyond the error "
    "of the reference. No difference: within the margin. Not resolved: anything else. Here: for this study "
    "only. A verdict needs {units} units, one for other datasets {datasets} datasets. Visible: the smallest "
    "effect that this study would find with 80 %."
)
_GAINS_NOTE = (
    "A gain is the accuracy in percentage points beyond the baseline ({baseline}) with the same dataset, "
    "network, method, ε, epochs and seed, each with the batch size, clipping bound and learning rate that "
    "other seeds choose for it; a mean over settings. In brackets 95 % t intervals: over seeds, so for these "
    "settings; and over problems (dataset, network, method), so for problems like these. Better, worse: "
    "settings whose own interval over seeds lies on one side of 0. Average over last: what the averaged "
    "parameters gain over the last ones of the same trainings, with an interval over seeds."
)
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
            note=_RULES_NOTE.format(units=evidence.FEWEST_UNITS, datasets=evidence.FEWEST_DATASETS),
        )


# -- optimizers ----------------------------------------------------------------------------


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

        See `optimizers_table` and `settings_table`.
        """
        found = []
        for selection in self.selections():
            averaged = study.optimizer(selection.problem.optimizer).average is not None
            # Only optimizers that average need this column; cells of older versions lack it.
            also = ["last_macro_accuracy"] if averaged else []
            found.append(frames.load_trials(study, paths, selection.cells(), missing, also))
        trials = pd.concat([each for each in found if len(each)] or found[:1], ignore_index=True)
        gains = paired_gains(trials, self.baseline)
        numbers = optimizers_table(gains, self.baseline)
        titles = {name: study.optimizer_title(name, [1.0]) for name in study.every_optimizer}
        numbers = numbers.assign(
            title=[titles[name] for name in numbers.get("optimizer", [])],
            baseline=titles[self.baseline],
        )
        return {"csv": numbers, "comparisons.csv": settings_table(trials, gains)}

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
            note=_GAINS_NOTE.format(baseline=baseline),
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


SETTING = ["dataset", "backbone", "method", "clipping", "epsilon", "epochs"]
OVER = {"gain": "", "over_last": "last_"}
"""Columns of differences, with the prefix of their columns in the tables."""
_KEY = [*SETTING, "optimizer"]
_GAINS = [*_KEY, "seed", "accuracy", "gain", "over_last"]


def paired_gains(trials: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return one row per (setting, optimizer, seed): accuracy, and the difference to the baseline.

    Args:
        trials: a row per trial, as `dpsweep.analysis.frames.load_trials` reads them, and perhaps
            ``last_macro_accuracy``, which is NaN if the optimizer does not average parameters.
        baseline: the optimizer that others are compared with.

    Returns:
        Columns `SETTING`, ``optimizer``, ``seed``, ``accuracy``, ``gain`` (0 for the baseline, NaN if the
        baseline lacks the seed), ``over_last`` (averaged minus last parameters of the same training).
    """
    tuned = choice.repeats(trials).assign(
        last=lambda rows: rows.get("last_macro_accuracy", pd.Series(np.nan, rows.index))
    )
    found = []
    for key, group in tuned.groupby(_KEY, sort=False):
        selection, accuracy, last = (
            _by_seed(group, column) for column in ("selection_accuracy", "macro_accuracy", "last")
        )
        seeds = group["seed"].sort_values().unique()[: selection.shape[1]]
        measured = choice.measured_by_others(selection, accuracy)
        over_last = measured - choice.measured_by_others(selection, last)
        rows = {"seed": seeds[1:], "accuracy": measured, "over_last": over_last}
        known: dict[str, Any] = dict(zip(_KEY, key, strict=True))
        found.append(pd.DataFrame(rows).assign(**known))
    if not found:
        return pd.DataFrame(columns=_GAINS)
    gains = pd.concat(found, ignore_index=True)
    base = gains.loc[gains["optimizer"] == baseline, [*SETTING, "seed", "accuracy"]]
    gains = gains.merge(
        base, on=[*SETTING, "seed"], how="left", suffixes=("", "_of_baseline"), sort=False
    )
    gains["gain"] = gains["accuracy"] - gains.pop("accuracy_of_baseline")
    return gains[_GAINS]


def _by_seed(group: pd.DataFrame, column: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return a column of a setting's cells, in order of the axes, shape (cells, seeds of all cells)."""
    order = group.drop_duplicates(choice.CELL).sort_values(choice.AXES, kind="stable")
    table = group.pivot(index=choice.CELL, columns="seed", values=column)
    cells = table.loc[pd.MultiIndex.from_frame(order[choice.CELL])].to_numpy(dtype=np.float64)
    # While seeds are added to a study, some cells have more seeds than others.
    fewest = int(group.groupby(choice.CELL)["seed"].nunique().min())
    return cells[:, :fewest]


def settings_table(trials: pd.DataFrame, gains: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (setting, optimizer): the chosen cell, and gains with intervals over seeds."""
    chosen = choice.choose(trials, by=_KEY)
    kept = [*_KEY, "batch_size", "clipping_bound", "learning_rate", "cross_fitted", "repeats"]
    rows = [
        dict(zip(_KEY, key, strict=True)) | _estimates(group)
        for key, group in gains.groupby(_KEY, sort=False)
    ]
    if not rows:
        return pd.DataFrame(columns=kept)
    return chosen[kept].merge(pd.DataFrame(rows), on=_KEY, how="left")


def optimizers_table(gains: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return one row per (epsilon, optimizer), and one per optimizer over all epsilons (epsilon is NaN).

    ``gain``, with ``lower`` and ``upper``: the mean over settings; the interval is over seeds, so it is
    valid for other seeds in these settings. ``lower_elsewhere``, ``upper_elsewhere``: the interval with
    problems (dataset, backbone, method) as units; NaN for a single problem. ``better`` and ``worse`` count
    the settings whose own interval over seeds excludes 0. ``last_gain`` and so on compare averaged with
    last parameters of the same trainings. All are in percentage points.
    """
    gains = gains.assign(
        problem_name=gains["dataset"] + "/" + gains["backbone"] + "/" + gains["method"]
    )
    rows = []
    others = [name for name in dict.fromkeys(gains["optimizer"]) if name != baseline]
    for epsilon in [*sorted(gains["epsilon"].unique()), np.nan]:
        for optimizer in others:
            own = gains[gains["optimizer"] == optimizer].dropna(subset="gain")
            own = own if np.isnan(epsilon) else own[own["epsilon"] == epsilon]
            if len(own):
                rows.append({"epsilon": epsilon, "optimizer": optimizer} | _summary(own))
    # With a single epsilon, the rows over all epsilons would repeat the others.
    table = pd.DataFrame(rows)
    return table.dropna(subset="epsilon") if gains["epsilon"].nunique() == 1 else table


def _summary(own: pd.DataFrame) -> dict[str, float]:
    settings = [_estimates(group) for _, group in own.groupby(SETTING, sort=False)]
    elsewhere = _estimate(own, "gain", "problem_name")
    return {
        "settings": len(settings),
        **_estimates(own),
        "lower_elsewhere": elsewhere.lower,
        "upper_elsewhere": elsewhere.upper,
        "problems": own["problem_name"].nunique(),
        "better": sum(each["lower"] > 0 for each in settings),
        "worse": sum(each["upper"] < 0 for each in settings),
    }


def _estimates(rows: pd.DataFrame) -> dict[str, float]:
    """Return gains with intervals over seeds, in points."""
    found: dict[str, float] = {}
    for column, prefix in OVER.items():
        estimate = _estimate(rows, column, "seed")
        found |= {
            f"{prefix}gain": estimate.value,
            f"{prefix}lower": estimate.lower,
            f"{prefix}upper": estimate.upper,
        }
    return found


def _estimate(rows: pd.DataFrame, column: str, unit: str) -> statistics.Estimate:
    """Return the mean of a column over the settings in points, with an interval over the units."""
    known = rows.dropna(subset=column).assign(problem=lambda some: some[unit])

    def mean(some: pd.DataFrame) -> float:
        return 100 * float(some.groupby(SETTING)[column].mean().mean())

    return statistics.jackknife(known, mean)
