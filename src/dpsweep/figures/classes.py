"""Effect of clipping on each class, from the easiest class to the hardest one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from dpsweep.analysis import frames, statistics
from dpsweep.base.files import read_checked_json
from dpsweep.base.lazy import matplotlib, np, pd
from dpsweep.figures import style
from dpsweep.study import Paths, Study, choice, targets
from dpsweep.study.cells import number
from dpsweep.study.grid import MistakeError, Panel, Selection
from dpsweep.study.messages import shorten

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

_NAMED = 10  # with more classes, ticks are ranks instead of names

_LONGEST_NAME = 18

_CROWD = 40  # with more classes, the line is a running mean over about a twentieth of them

_FAR = 4  # with larger relative weights, a linear axis would flatten the baseline

_FROM_ZERO = 0.6  # with smaller relative weights, the vertical axis starts at 0

# By quantity: the column that is drawn, and its label.
_ROWS = {
    "retained_weight": ("relative_retained_weight", "Relative\nretained weight"),
    "accuracy_difference": ("accuracy_difference", "Accuracy − accuracy\nat C = {}"),
}


class PerClass(targets.Figure):
    """Per class, ordered from easy to hard: relative retained weight, and accuracy difference.

    Each panel names the clipping bounds to draw; they include the baseline.

    A frame for `draw` has columns ``class``, ``class_name``, ``class_rank`` (from easy to hard; NaN without
    test examples), ``clipping_bound`` and, as ``rows`` need them, ``relative_retained_weight`` and
    ``accuracy_difference``; optional their running means (``..._smooth``) with ``running_mean_over``
    (classes), ``panel``, ``title``, ``batch_size``, ``learning_rate``.
    """

    family = "per_class"
    title = "Classes: retained weight and accuracy"
    needs_bounds = True
    tunes = True
    single = ("epsilon", "epochs")
    drawn = ("clipping_bound",)

    baseline: Annotated[float, Field(gt=0)] = 1.0
    """the C that the others are compared with"""
    rows: Annotated[
        list[Literal["retained_weight", "accuracy_difference"]], Field(min_length=1)
    ] = ["retained_weight", "accuracy_difference"]
    retained_weight_of: Literal["trainable", "classifier"] = "trainable"
    """the gradient norms behind the retained weight: those of all trainable parameters, which
    are clipped, or of the classifier alone"""
    panels: targets.Panels

    def selections(self) -> list[Selection]:
        """Return every panel, and its cells at the baseline even if the panel does not name them."""
        return [each for panel in self.panels for each in (panel, self.at_baseline(panel))]

    def at_baseline(self, panel: Selection) -> Selection:
        """Return the cells of a panel at the baseline C."""
        return panel.model_copy(update={"clipping_bound": [self.baseline]})

    def gradient_norms(self) -> list[Selection]:
        """Return all selections if retained weight is a row."""
        return self.selections() if "retained_weight" in self.rows else []

    def described_datasets(self, swept: Sequence[str]) -> Sequence[str]:
        """Return the datasets of the panels, for the names of their classes."""
        return [each.problem.dataset for each in self.panels]

    def with_study(self, study: Study) -> Self:
        """Return the figure, whose baseline is a bound of the study."""
        for each in self.panels:
            if not all(map(study.has, self.at_baseline(each).cells())):
                raise MistakeError(
                    f"baseline: found {number(self.baseline)}; allowed: a clipping bound of "
                    f"{each.problem.name}"
                )
        return self

    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns of a frame for `draw`."""
        shown = (_ROWS[row][0] for row in self.rows)
        return ("clipping_bound", "class"), ("class_name", "class_rank", *shown)

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per (panel, C, class), with classes ranked by the baseline's per-class accuracy.

        A class without a test example comes last, without a rank and an accuracy. Numbers are those of the
        first seed, at the best (B, learning rate) of each C. The retained weight is that of the gradients
        after the last epoch, at the C of training.
        """

        def of_panel(panel: Panel) -> pd.DataFrame:
            both = [panel, self.at_baseline(panel)]
            cells = dict.fromkeys(cell for selection in both for cell in selection.cells())
            trials = frames.load_trials(study, paths, cells, missing, also=["per_class_accuracy"])
            tuned = choice.choose(trials, by=["clipping_bound"]).set_index(
                "clipping_bound", drop=False
            )
            if self.baseline not in tuned.index:
                return pd.DataFrame()  # partial: nothing to compare with yet
            of_trials = trials.set_index("trial_key")["per_class_accuracy"]
            accuracy = {
                bound: np.asarray(of_trials[key], dtype=np.float64)
                for bound, key in zip(tuned.index, tuned["trial_key"], strict=True)
            }
            weights: dict[float, np.ndarray] = {}
            if "retained_weight" in self.rows:
                norms = frames.load_gradient_norms(
                    study, paths, both, epoch="last", missing=missing
                )
                if missing is None:
                    frames.check_measured(study, paths, cells, tuned["trial_key"], norms)
                weights = _retained_weights(study, self, panel, norms)
            rows = tuned.to_dict("records")
            return pd.concat([_classes(paths, self, row, accuracy, weights) for row in rows])

        return frames.stack_panels(self.panels, of_panel, COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a row for each quantity, a column for each panel, and a line for each C.

        Classes without a test example are not drawn, but named below.

        Raises:
            ValueError: no row has the baseline.
        """
        untested = numbers[numbers["class_rank"].isna()]
        numbers = numbers.dropna(subset="class_rank").astype({"class_rank": int})
        colours = style.colours_by(numbers["clipping_bound"])
        if self.baseline not in colours:
            raise ValueError(f"baseline: found {self.baseline:g}; allowed: one of {list(colours)}")
        bounds = style.write_values(colours)
        named = numbers.groupby("panel")["class"].nunique().max() <= _NAMED
        # Only few classes leave room for markers.
        markers = dict(zip(colours, style.MARKERS * len(colours), strict=False)) if named else {}
        points = {
            "style": "clipping_bound",
            "markers": markers,
            "dashes": False,
            "markeredgewidth": 0,
        }
        look: dict[str, Any] = points if named else {}
        names = max(map(len, _short_names(numbers))) if named else 0
        rows = len(self.rows)
        height = 1.4 * rows + 0.75 + 0.14 * len(colours) + 0.05 * names
        drawing, panels = style.panels(numbers, height, rows, sharey="row", sharex="col")
        for column, panel in panels:
            for axes, quantity in zip(column, self.rows, strict=True):
                shown = panel
                if quantity == "accuracy_difference":
                    axes.axhline(0, color=colours[self.baseline], linewidth=1.2)
                    shown = panel[panel["clipping_bound"] != self.baseline]
                y, by = _ROWS[quantity][0], "clipping_bound"
                style.draw_smoothed(axes, shown, "class_rank", y, colours, by, 0.3, **look)
            column[0].set_title(panel["title"].iloc[0])
            _class_axis(column[-1], panel, named)
        for axes, quantity in zip(panels[0][0], self.rows, strict=True):
            label = _ROWS[quantity][1].format(bounds[self.baseline])
            if quantity == "retained_weight" and self.retained_weight_of == "classifier":
                label += "\n(classifier)"
            if quantity == "retained_weight" and _weight_axis(axes, numbers):
                label = style.log_label(label)
            axes.set_ylabel(label)
        handles = [
            style.legend_line(
                f"C = {bounds[bound]}{_chosen(self, numbers, bound)}",
                colour,
                marker=markers.get(bound),
            )
            for bound, colour in colours.items()
        ]
        drawing.legend(
            handles=handles, loc="outside upper center",
            title="B and η in the panels from left to right" if len(panels) > 1 else None,
        )  # fmt: skip
        window = int(numbers["running_mean_over"].max())
        if window > 1:
            style.note(drawing, f"Thin: every class. Thick: running mean over {window} classes.")
        if len(untested):
            lacking = shorten(dict.fromkeys(_short_names(untested)))
            style.note(drawing, f"Not drawn, because they have no test example: {lacking}.")
        return drawing


def _classes(
    paths: Paths,
    figure: PerClass,
    row: Mapping[Hashable, Any],
    accuracy: dict[float, np.ndarray],
    weights: dict[float, np.ndarray],
) -> pd.DataFrame:
    """Return the rows of one C; ``row`` has its chosen settings."""
    bound, reference = row["clipping_bound"], accuracy[figure.baseline]
    order = statistics.class_order(reference)
    unknown = np.full(order.size, np.nan)
    weight = weights.get(bound, unknown)
    relative = statistics.relative_retained_weight(weight, weights.get(figure.baseline, unknown))[
        order
    ]
    difference = (accuracy[bound] - reference)[order]
    window = 1 if order.size <= _CROWD else 2 * (order.size // 40) + 1
    tested = np.isfinite(reference[order])
    ranks = pd.array(np.arange(1, order.size + 1), dtype="Int64")
    ranks[~tested] = pd.NA
    return pd.DataFrame(
        {
            "class_rank": ranks,
            "class": order,
            "class_name": _class_names(paths, row["dataset"], order),
            "baseline_accuracy": reference[order],
            "accuracy": accuracy[bound][order],
            "accuracy_difference": difference,
            "accuracy_difference_smooth": statistics.running_mean(difference, window),
            "retained_weight": weight[order],
            "relative_retained_weight": relative,
            "relative_retained_weight_smooth": statistics.running_mean(
                np.where(tested, relative, np.nan), window
            ),
            "running_mean_over": window,
            "full_batch": row["full_batch"],
        }
    ).assign(**{name: row[name] for name in _OF_THE_CELL})


def _retained_weights(
    study: Study, figure: PerClass, panel: Panel, norms: pd.DataFrame
) -> dict[float, np.ndarray]:
    classes = study.datasets[panel.problem.dataset].classes
    of = {"trainable": "norm", "classifier": "head_norm"}[figure.retained_weight_of]
    weights = {}
    for bound in norms["clipping_bound"].unique():
        rows = norms[norms["clipping_bound"] == bound]
        weights[bound] = statistics.retained_weight(rows[of], rows["label"], bound, classes)
    return weights


def _class_names(paths: Paths, dataset: str, order: np.ndarray) -> list[str]:
    metadata = paths.dataset(dataset) / "metadata.json"
    if not metadata.exists():
        return [f"class {index}" for index in order]
    names = read_checked_json(metadata)["classes"]
    return [str(names[index]) for index in order]


def _chosen(figure: PerClass, numbers: pd.DataFrame, bound: float) -> str:
    """Write whether a bound is the baseline, and the settings that were chosen for it in every panel."""
    baseline = " (baseline)" if bound == figure.baseline else ""
    of_bound = numbers[numbers["clipping_bound"] == bound]
    chosen = [style.chosen_values(rows.iloc[0]) for _, rows in of_bound.groupby("panel")]
    listed = []
    for symbol in chosen[0]:
        values = [each.get(symbol, "–") for each in chosen]
        shown = values[:1] if len(set(values)) == 1 else values
        listed.append(f"{symbol} = {', '.join(shown)}")
    return f"{baseline}: {'; '.join(listed)}".removesuffix(": ")


def _weight_axis(axes: matplotlib.axes.Axes, numbers: pd.DataFrame) -> bool:
    """Fit the vertical axis to the weights, and return whether it is logarithmic."""
    weights = numbers["relative_retained_weight"]
    if weights.max() > _FAR:
        style.log_axis(axes, "y")
        return True
    # Start at 0, unless this would squeeze all lines together at the top.
    axes.margins(y=0.12)
    if weights.min() < _FROM_ZERO:
        axes.set_ylim(bottom=0)
    return False


def _short_names(numbers: pd.DataFrame) -> list[str]:
    names = numbers["class_name"].astype(str)
    # Do not cut an escape in two.
    short = names.str.slice(stop=_LONGEST_NAME - 1).str.removesuffix("\\") + "…"
    return list(names.where(names.str.len() <= _LONGEST_NAME, short))


def _class_axis(axes: matplotlib.axes.Axes, numbers: pd.DataFrame, named: bool) -> None:
    if named:
        classes = numbers.drop_duplicates("class_rank")
        names = _short_names(classes)
        long = max(map(len, names)) > 2
        look: dict[str, Any] = {"rotation": 90 if long else 0, "fontsize": style.look().points(6.5)}
        axes.set_xticks(classes["class_rank"], names, **look)
        axes.set_xlabel("Class, easy to hard")
    else:
        axes.xaxis.set_major_locator(
            matplotlib.ticker.MaxNLocator(nbins=5, integer=True, steps=[1, 2, 5, 10])
        )
        axes.set_xlabel("Class rank, easy to hard")
