"""What clipping does to each class, from the easiest class to the hardest."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dpsweep.analysis.frames import (
    UnreadableResultsError,
    load_gradient_norms,
    load_trials,
    stack,
)
from dpsweep.analysis.statistics import (
    class_order,
    relative_retained_weight,
    retained_weight,
    running_mean,
)
from dpsweep.choice import choose
from dpsweep.figures import style
from dpsweep.files import read_json
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Panel, PerClass

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "clipping_bound", "batch_size",
    "learning_rate", "seed", "class_rank", "class", "class_name", "baseline_accuracy", "accuracy",
    "accuracy_difference", "accuracy_difference_smooth", "retained_weight",
    "relative_retained_weight", "relative_retained_weight_smooth",
]  # fmt: skip
_OF_THE_CELL = [
    "problem", "epsilon", "epochs", "clipping_bound", "batch_size", "learning_rate", "seed",
]  # fmt: skip
_NAMED = 10  # with more classes, their rank is written instead of their name
_LONGEST_NAME = 18
_CROWD = 40  # with more classes, a running mean over about a twentieth of them carries the line
_FAR = 4  # a line that far above the baseline's largest would press that one to the ground
_TITLES = {
    "retained_weight": "Relative\nretained weight",
    "accuracy_difference": "Accuracy − accuracy\nat C = {}",
}


def effects_on_classes(
    study: Study, paths: Paths, figure: PerClass, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per (panel, C, class), classes ranked by the baseline's per-class accuracy.

    Everything is of the first seed, at the best (B, learning rate) of each C; retained weight is
    of the gradients after the last epoch, at the C that the model was trained with.
    """
    return stack(
        [
            _panel(study, paths, figure, panel, missing).assign(panel=index, title=panel.title)
            for index, panel in enumerate(figure.panels)
        ],
        COLUMNS,
    )


def _panel(
    study: Study,
    paths: Paths,
    figure: PerClass,
    panel: Panel,
    missing: list[Path] | None,
) -> pd.DataFrame:
    cells = dict.fromkeys([*study.cells(panel), *study.cells(figure.at_baseline(panel))])
    trials = load_trials(paths, cells, missing, per_class=True)
    tuned = choose(trials, by=["clipping_bound"])
    if figure.baseline not in set(tuned["clipping_bound"]):
        return pd.DataFrame()  # partial: nothing to compare with yet
    accuracy = {
        bound: np.asarray(values, dtype=np.float64)
        for bound, values in zip(
            tuned["clipping_bound"],
            trials.set_index("trial_key").loc[tuned["trial_key"], "per_class_accuracy"],
            strict=True,
        )
    }
    weights = {}
    if "retained_weight" in figure.rows:
        weights = _retained_weights(study, paths, figure, panel, tuned, missing)
    reference = accuracy[figure.baseline]
    order = class_order(reference)
    unknown = np.full(reference.size, np.nan)
    frames = []
    window = 1 if order.size <= _CROWD else 2 * (order.size // 40) + 1
    for row in tuned.to_dict("records"):
        bound = row["clipping_bound"]
        weight = weights.get(bound, unknown)
        relative = relative_retained_weight(weight, weights.get(figure.baseline, unknown))[order]
        difference = (accuracy[bound] - reference)[order]
        frames.append(
            pd.DataFrame(
                {
                    "class_rank": np.arange(1, order.size + 1),
                    "class": order,
                    "class_name": _class_names(paths, row["dataset"], order),
                    "baseline_accuracy": reference[order],
                    "accuracy": accuracy[bound][order],
                    "accuracy_difference": difference,
                    "accuracy_difference_smooth": running_mean(difference, window),
                    "retained_weight": weight[order],
                    "relative_retained_weight": relative,
                    "relative_retained_weight_smooth": running_mean(relative, window),
                }
            ).assign(**{name: row[name] for name in _OF_THE_CELL})
        )
    return pd.concat(frames)


def _retained_weights(
    study: Study,
    paths: Paths,
    figure: PerClass,
    panel: Panel,
    tuned: pd.DataFrame,
    missing: list[Path] | None,
) -> dict[float, np.ndarray]:
    norms = load_gradient_norms(
        study, paths, [panel, figure.at_baseline(panel)], epoch="last", missing=missing
    )
    classes = study.datasets[study.sweeps[panel.sweep].dataset].classes
    chosen_trials = dict(zip(tuned["clipping_bound"], tuned["trial_key"], strict=True))
    weights = {}
    for bound in norms["clipping_bound"].unique():
        group = norms[norms["clipping_bound"] == bound]
        chosen = chosen_trials.get(bound)
        measured = group["trial_key"].iloc[0]
        if chosen != measured and missing is None:
            cell = next(
                cell
                for cell in (*study.cells(panel), *study.cells(figure.at_baseline(panel)))
                if cell.clipping_bound == bound
            )
            file = paths.gradient_norms(cell.problem, cell.epsilon, cell.epochs, bound)
            raise UnreadableResultsError(
                f"{file}: the gradient norms are of trial {measured}, but the best trial of "
                f"{cell.problem} at C = {bound} is {chosen}",
                (file,),
            )
        weights[bound] = retained_weight(group["norm"], group["label"], bound, classes)
    return weights


def _class_names(paths: Paths, dataset: str, order: np.ndarray) -> list[str]:
    metadata = paths.dataset(dataset) / "metadata.json"
    if not metadata.exists():
        return [f"class {index}" for index in order]
    names = read_json(metadata)["classes"]
    return [str(names[index]) for index in order]


def plot(figure: PerClass, numbers: pd.DataFrame) -> Figure:
    """Draw a row for each quantity and a column for each panel, one line per C."""
    rows, columns = len(figure.rows), len(figure.panels)
    named = len(numbers) > 0 and numbers.groupby("panel")["class"].nunique().max() <= _NAMED
    names = max(map(len, _short_names(numbers)), default=0) if named else 0
    drawing = style.panels_figure(columns, height=1.4 * rows + 0.65 + 0.05 * names)
    grid = drawing.subplots(rows, columns, squeeze=False, sharey="row", sharex="col")
    bounds = sorted(numbers["clipping_bound"].unique())
    colours = dict(zip(bounds, style.ordered_colours(len(bounds)), strict=True))
    for column, panel in enumerate(figure.panels):
        here = numbers[numbers["panel"] == column]
        for row, quantity in enumerate(figure.rows):
            for bound, line in here.groupby("clipping_bound"):
                if quantity == "accuracy_difference" and bound == figure.baseline:
                    grid[row, column].axhline(0, color=colours[bound], linewidth=1.2)
                else:
                    _draw(grid[row, column], line, quantity, colours[bound])
        grid[0, column].set_title(panel.title)
        _class_axis(grid[-1, column], here, named)
    for row, quantity in enumerate(figure.rows):
        grid[row, 0].set_ylabel(_TITLES[quantity].format(style.write_value(figure.baseline)))
        if quantity == "retained_weight":
            _weight_axis(grid[row, 0], numbers)
    handles = [
        Line2D(
            [], [], color=colours[bound],
            label=f"C = {style.write_value(bound)}"
            + (" (baseline)" if bound == figure.baseline else ""),
        )
        for bound in bounds
    ]  # fmt: skip
    drawing.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5) or 1)
    return drawing


def _draw(axes: Axes, line: pd.DataFrame, quantity: str, colour: str) -> None:
    column = "relative_retained_weight" if quantity == "retained_weight" else quantity
    rank, smooth = line["class_rank"], line[f"{column}_smooth"]
    if len(line) > _CROWD:
        axes.plot(rank, line[column], color=colour, alpha=0.3, linewidth=0.4)
        axes.plot(rank, smooth, color=colour)
    else:
        axes.plot(rank, smooth, color=colour, marker="o" if len(line) <= _NAMED else None)


def _weight_axis(axes: Axes, numbers: pd.DataFrame) -> None:
    if numbers["relative_retained_weight"].max() > _FAR:
        style.log_axis(axes, "y")
    else:
        axes.set_ylim(bottom=0)


def _short_names(numbers: pd.DataFrame) -> list[str]:
    names = [str(name) for name in numbers["class_name"]]
    return [
        name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…" for name in names
    ]


def _class_axis(axes: Axes, numbers: pd.DataFrame, named: bool) -> None:
    if named and len(numbers):
        classes = numbers.drop_duplicates("class_rank")
        names = _short_names(classes)
        long = max(map(len, names)) > 2
        axes.set_xticks(
            classes["class_rank"], names,
            rotation=90 if long else 0, fontsize=6.5,
        )  # fmt: skip
        axes.set_xlabel("Class, easy to hard")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlabel("Class rank, easy to hard")
