"""Effect of clipping on each class, from the easiest class to the hardest."""

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dpsweep.analysis.frames import (
    UnreadableResultsError,
    load_gradient_norms,
    load_trials,
    stack_panels,
)
from dpsweep.analysis.statistics import (
    class_order,
    relative_retained_weight,
    retained_weight,
    running_mean,
)
from dpsweep.base.files import read_checked_json
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Panel, PerClass

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "clipping_bound", "batch_size",
    "learning_rate", "seed", "class_rank", "class", "class_name", "baseline_accuracy", "accuracy",
    "accuracy_difference", "accuracy_difference_smooth", "retained_weight",
    "relative_retained_weight", "relative_retained_weight_smooth", "running_mean_over",
    "full_batch",
]  # fmt: skip
_OF_THE_CELL = [
    "problem", "epsilon", "epochs", "clipping_bound", "batch_size", "learning_rate", "seed",
]  # fmt: skip
_NAMED = 10  # with more classes, their rank is written instead of their name
_LONGEST_NAME = 18
_CROWD = 40  # with more classes, a running mean over about a twentieth of them carries the line
_FAR = 4  # a line that far above the baseline's largest would press that one to the ground
_FROM_ZERO = 0.6  # the smallest weight that a vertical axis starts above 0 for
_COLUMN = {
    "retained_weight": "relative_retained_weight",
    "accuracy_difference": "accuracy_difference",
}
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

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    return stack_panels(
        figure.panels, lambda panel: _panel(study, paths, figure, panel, missing), COLUMNS
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
                    "running_mean_over": window,
                    "full_batch": row["full_batch"],
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
    classes = study.datasets[panel.problem.dataset].classes
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
        of = {"trainable": "norm", "classifier": "head_norm"}[figure.retained_weight_of]
        weights[bound] = retained_weight(group[of], group["label"], bound, classes)
    return weights


def _class_names(paths: Paths, dataset: str, order: np.ndarray) -> list[str]:
    metadata = paths.dataset(dataset) / "metadata.json"
    if not metadata.exists():
        return [f"class {index}" for index in order]
    names = read_checked_json(metadata)["classes"]
    return [str(names[index]) for index in order]


def plot(figure: PerClass, numbers: pd.DataFrame) -> Figure:
    """Draw a row for each quantity and a column for each panel, one line per C."""
    panels = [panel for _, panel in numbers.groupby("panel")]
    colours = style.colours_by(numbers["clipping_bound"])
    bounds = list(colours)
    markers = dict(zip(bounds, style.MARKERS * len(bounds), strict=False))
    named = max(panel["class"].nunique() for panel in panels) <= _NAMED
    names = max(map(len, _short_names(numbers))) if named else 0
    rows = len(figure.rows)
    height = 1.4 * rows + 0.75 + 0.11 * len(bounds) + 0.05 * names
    drawing = style.panels_figure(len(panels), height)
    grid = drawing.subplots(rows, len(panels), squeeze=False, sharey="row", sharex="col")
    for column, panel in zip(grid.T, panels, strict=True):
        for axes, quantity in zip(column, figure.rows, strict=True):
            shown = panel
            if quantity == "accuracy_difference":
                axes.axhline(0, color=colours[figure.baseline], linewidth=1.2)
                shown = panel[panel["clipping_bound"] != figure.baseline]
            _draw(axes, shown, _COLUMN[quantity], colours, markers if named else {})
        chosen = panel.drop_duplicates("clipping_bound").sort_values("clipping_bound")
        style.title(
            column[0], str(panel["title"].iloc[0]),
            *[style.write_chosen(settings) for _, settings in chosen.iterrows()],
            colours=[colours[bound] for bound in chosen["clipping_bound"]],
        )  # fmt: skip
        _class_axis(column[-1], panel, named)
    for axes, quantity in zip(grid[:, 0], figure.rows, strict=True):
        label = _TITLES[quantity].format(style.write_value(figure.baseline))
        if quantity == "retained_weight" and figure.retained_weight_of == "classifier":
            label += "\n(classifier)"
        if quantity == "retained_weight" and _weight_axis(axes, numbers):
            label = style.log_label(label)
        axes.set_ylabel(label)
    drawing.legend(
        handles=[
            Line2D(
                [], [], color=colours[bound], marker=markers[bound] if named else None,
                label=f"C = {style.write_value(bound)}"
                + (" (baseline)" if bound == figure.baseline else ""),
            )
            for bound in bounds
        ],
        loc="outside upper center", ncols=min(len(bounds), 5),
    )  # fmt: skip
    window = int(numbers["running_mean_over"].max())
    if window > 1:
        style.note(drawing, f"Thin: every class. Thick: running mean over {window} classes.")
    return drawing


def _draw(
    axes: Axes,
    lines: pd.DataFrame,
    column: str,
    colours: dict[float, str],
    markers: dict[float, str],
) -> None:
    drawn = {"x": "class_rank", "hue": "clipping_bound", "palette": colours, "legend": False}
    drawn |= {"estimator": None, "errorbar": None, "ax": axes}
    if lines["running_mean_over"].max() > 1:
        sns.lineplot(lines, y=column, alpha=0.3, linewidth=0.4, **drawn)
    if markers:
        drawn |= {"style": "clipping_bound", "markers": markers, "dashes": False}
        drawn |= {"markeredgewidth": 0}
    sns.lineplot(lines, y=f"{column}_smooth", **drawn)
    axes.set(xlabel="", ylabel="")


def _weight_axis(axes: Axes, numbers: pd.DataFrame) -> bool:
    """Show where the weights lie; whether the axis is logarithmic."""
    weights = numbers["relative_retained_weight"]
    if weights.max() > _FAR:
        style.log_axis(axes, "y")
        return True
    # From 0, unless all lines lie so far above it that they could not be told apart.
    axes.margins(y=0.12)
    if weights.min() < _FROM_ZERO:
        axes.set_ylim(bottom=0)
    return False


def _short_names(numbers: pd.DataFrame) -> list[str]:
    names = numbers["class_name"].astype(str)
    short = names.str.slice(stop=_LONGEST_NAME - 1) + "…"
    return list(names.where(names.str.len() <= _LONGEST_NAME, short))


def _class_axis(axes: Axes, numbers: pd.DataFrame, named: bool) -> None:
    if named:
        classes = numbers.drop_duplicates("class_rank")
        names = _short_names(classes)
        long = max(map(len, names)) > 2
        axes.set_xticks(classes["class_rank"], names, rotation=90 if long else 0, fontsize=6.5)
        axes.set_xlabel("Class, easy to hard")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlabel("Class rank, easy to hard")
