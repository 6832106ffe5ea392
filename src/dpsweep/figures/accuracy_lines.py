"""Three families of line figures: accuracy over C, accuracy of methods over epsilon, best B over epochs.

Each point tunes the settings that are not on the horizontal axis. Strips under a panel show the tuned values.

`plot_lines` draws rows with columns ``panel, title, line, label``, the one along the x axis, ``centre,
minimum, maximum, repeats``, the chosen settings, and those of `with_repeats`. Legends list lines in the order
of ``line``.

Optimal bounds are lines with the range of their draws (`plot_bounds`). A bound may be 0, which a
logarithmic axis cannot show: a band down to 0 would fill the panel. So ranges are bars, and values far
below the lines are drawn on the lower edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from dpsweep.analysis import frames, statistics
from dpsweep.base.lazy import matplotlib, np, pd
from dpsweep.figures import style
from dpsweep.study import Paths, Study, choice, targets
from dpsweep.study.grid import Line, LinePanel, Panel

CLIPPING_CURVE_COLUMNS = [
    "panel", "title", "line", "label", "problem", "epsilon", "epochs", "clipping_bound", "batch_size",
    "full_batch", "learning_rate", "centre", "cross_fitted", "minimum", "maximum", "repeats",
    "diverged", "best", "as_good", "difficulty",
]  # fmt: skip

METHOD_COLUMNS = [
    "panel", "title", "line", "label", "problem", "epsilon", "epochs", "batch_size", "full_batch",
    "clipping", "clipping_bound", "learning_rate", "centre", "minimum", "maximum",
    "macro_accuracy", "cross_fitted", "cross_fitted_difference", "repeats", "diverged",
]  # fmt: skip

BATCH_SIZE_COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "mean_batch_size", "minimum", "maximum", "repeats",
    "batch_size", "train_size", "clipping_bound", "learning_rate", "as_good_smallest", "as_good_largest",
]  # fmt: skip

_BUDGET = ["epsilon", "epochs"]

# Lower points are written as numbers, so that the axis resolves small differences to the best.
_FLOOR = -0.1


class ClippingCurve(targets.Figure):
    """Accuracy against C with B and learning rate tuned jointly; band from worst to best repeat.

    The lines of a panel go from the easy problem to the hard one. Points that are as good as the best
    of their line are ringed (`dpsweep.analysis.statistics`).

    A frame for `draw` has columns ``clipping_bound`` and ``centre`` (the accuracy, or its difference to the
    best); optional ``panel``, ``title``, ``label`` (of a line), ``minimum``, ``maximum``, ``repeats``,
    ``seed_1``, ``seed_2``, ... (accuracies of repeats), ``batch_size``, ``learning_rate``, ``as_good``
    (points with a ring) and ``difficulty`` (easy, medium or hard: the colour).
    """

    family = "clipping_curve"
    title = "Accuracy by clipping bound"
    needs_bounds = True
    ordered = True
    tunes = True
    shows_means = True
    marks = ("ringed point", "line")
    single = ("epsilon", "epochs")
    drawn = ("clipping_bound",)

    quantity: Literal["accuracy", "difference"] = "accuracy"
    """difference: to the best centre of the same line"""
    centre: Literal["mean", "median"] = "mean"
    panels: targets.LinePanels

    keys = ("clipping_bound",)
    needs = ("centre",)

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per point: its centre, band and repeats, as accuracy or as difference to the best.

        A difference of ``cross_fitted`` is to the cross-fitted accuracy of the line's own choice of C.
        """

        def of_line(line: Line) -> pd.DataFrame:
            trials = frames.load_trials(study, paths, line.cells(), missing)
            points = choice.choose(trials, by=["clipping_bound"], centre=self.centre)
            points["as_good"] = statistics.as_good_as_best(points, trials)
            points = with_repeats(points, trials)
            points["best"] = statistics.first_best(points["selection_accuracy"])
            if self.quantity == "difference":
                band = ["centre", "minimum", "maximum", *frames.seed_columns(points)]
                points[band] -= points["centre"].max()
                points["cross_fitted"] -= choice.choose(trials, by=["problem"])[
                    "cross_fitted"
                ].max()
            return points.assign(difficulty=line.difficulty)

        return stack_lines(self.panels, of_line, CLIPPING_CURVE_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a line for each problem, rings around points as good as its best, strips of B and rates."""
        difference = self.quantity == "difference"
        palettes = [_by_difficulty(panel) for _, panel in numbers.groupby("panel", sort=False)]
        lowest = float(numbers["centre"].min())
        floor = 1.2 * _FLOOR if difference and lowest < 2 * _FLOOR else lowest
        # Points below the floor are drawn on it, with their numbers.
        drawing, panels = plot_lines(
            numbers.assign(centre=numbers["centre"].clip(lower=floor)), "clipping_bound", palettes,
            chosen=["batch_size", "learning_rate"], height=1.9, x_label=style.CLIPPING_LABEL,
            y_label="Accuracy − best" if difference else "Macro accuracy", share_y=difference,
        )  # fmt: skip
        for (axes, panel), palette in zip(panels, palettes, strict=True):
            ringed = panel[panel["as_good"]]
            axes.scatter(
                ringed["clipping_bound"], ringed["centre"], s=60, facecolors="none",
                edgecolors=[palette[label] for label in ringed["label"]], linewidths=1.1, zorder=3,
            )  # fmt: skip
            ends = {panel["clipping_bound"].min(): "left", panel["clipping_bound"].max(): "right"}
            below = numbers[
                (numbers["centre"] < floor) & (numbers["panel"] == panel["panel"].iloc[0])
            ]
            for bound, points in below.groupby("clipping_bound"):
                for height, (_, point) in enumerate(points.iterrows()):
                    axes.annotate(
                        f"↓ {point['centre']:.2f}".replace("-", "−"), (bound, floor),
                        (0, 5 + 8 * height), textcoords="offset points", va="bottom",
                        ha=ends.get(bound, "center"), fontsize=style.look().small,
                        color=palette[point["label"]], zorder=4,
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85},
                    )  # fmt: skip
        first = panels[0][0]
        first.margins(y=0.12)
        if floor > lowest:
            highest = float(np.nanmax(numbers[["centre", "maximum"]].to_numpy(dtype=float)))
            first.set_ylim(1.04 * floor, highest - 0.1 * floor)
        if (
            numbers["difficulty"].notna().any()
            and numbers.groupby("panel")["label"].agg(tuple).nunique() > 1
        ):
            style.note(
                drawing,
                "In each panel the first line is the easy problem, the last one the hard problem.",
            )
        return drawing


def _by_difficulty(panel: pd.DataFrame) -> dict[str, str]:
    of_lines = panel.drop_duplicates("line")
    colours = style.line_colours(
        [None if pd.isna(each) else str(each) for each in of_lines["difficulty"]]
    )
    return dict(zip(of_lines["label"], colours, strict=True))


class MethodComparison(targets.Figure):
    """Accuracy against epsilon, as a difference to the best line; everything else is tuned.

    A frame for `draw` has columns ``epsilon``, ``label`` (the method) and ``centre`` (the difference);
    optional ``panel``, ``title``, ``minimum``, ``maximum``, ``repeats``, ``seed_1``, ..., ``batch_size``,
    ``learning_rate`` and ``clipping_bound``.
    """

    family = "method_comparison"
    title = "Methods by ε"
    tunes = True
    shows_means = True
    single = ("epochs",)
    drawn = ("epsilon",)

    panels: targets.LinePanels

    keys = ("epsilon",)
    needs = ("label", "centre")

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per point: mean, band and repeats, minus the best line's mean at that epsilon.

        The mean is over the seeds that chose the settings. This favours methods with more settings to tune,
        so compare methods by ``cross_fitted_difference``: ``cross_fitted`` minus that of the best line.
        """

        def of_line(line: Line) -> pd.DataFrame:
            trials = frames.load_trials(study, paths, line.cells(), missing)
            points = with_repeats(choice.choose(trials, by=["epsilon"]), trials)
            return points.assign(
                macro_accuracy=points["centre"], cross_fitted_difference=points["cross_fitted"]
            )

        points = stack_lines(self.panels, of_line, METHOD_COLUMNS)
        best = points.groupby(["panel", "epsilon"])[["macro_accuracy", "cross_fitted"]].transform(
            "max"
        )
        for column in ("centre", "minimum", "maximum", *frames.seed_columns(points)):
            points[column] -= best["macro_accuracy"]
        points["cross_fitted_difference"] -= best["cross_fitted"]
        return points

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a panel for each problem, a line for each method, and strips of the chosen settings."""
        palettes = []
        for _panel, rows in numbers.groupby("panel"):
            labels = list(rows["label"].unique())
            palettes.append(dict(zip(labels, style.category_colours(len(labels)), strict=True)))
        drawing, _panels = plot_lines(
            numbers, "epsilon", palettes, chosen=["clipping_bound", "batch_size", "learning_rate"],
            height=1.7, x_label=style.EPSILON_LABEL, y_label="Accuracy − best", share_y=False, base=2,
        )  # fmt: skip
        return drawing


class OptimalBatchSize(targets.Figure):
    """The best batch size against epochs, mean over repeats, a line per epsilon.

    A frame for `draw` has columns ``epsilon``, ``epochs``, ``mean_batch_size`` and ``train_size``; optional
    ``panel``, ``title``, ``minimum``, ``maximum``, ``repeats``, ``seed_1``, ..., ``learning_rate`` and
    ``clipping_bound``.
    """

    family = "optimal_batch_size"
    title = "Best batch size by epochs"
    tunes = True
    drawn = ("epochs", "batch_size")

    panels: targets.Panels

    keys = ("epsilon", "epochs")
    needs = ("mean_batch_size", "train_size")

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per (panel, epsilon, epochs): the best B of each seed alone, and of all seeds.

        ``mean_batch_size``, ``minimum`` and ``maximum`` summarise the B that each seed alone chooses; the
        paper draws their mean. ``batch_size`` is the choice of all seeds together, with its C and learning
        rate. Choices without an accuracy do not count. Batch sizes from ``as_good_smallest`` to
        ``as_good_largest`` are as good as the best, as far as seeds can tell; both are empty with one seed.
        """

        def of_panel(panel: Panel) -> pd.DataFrame:
            trials = frames.load_trials(study, paths, panel.cells(), missing)
            if trials.empty:
                return trials  # partial: nothing to choose from yet
            alone = [
                _best_batch_sizes(group).assign(seed=seed) for seed, group in trials.groupby("seed")
            ]
            by_seed = pd.concat(alone).pivot(index=_BUDGET, columns="seed", values="batch_size")
            over_seeds = by_seed.agg(["mean", "min", "max", "count"], axis=1)
            over_seeds.columns = ["mean_batch_size", "minimum", "maximum", "repeats"]
            choices = _best_batch_sizes(trials).join(over_seeds, on=_BUDGET)
            choices = choices.merge(_as_good_batch_sizes(trials), on=_BUDGET)
            return choices.join(by_seed.add_prefix("seed_"), on=_BUDGET).assign(
                problem=panel.problem.name, train_size=study.train_size(panel.problem.dataset)
            )

        return frames.stack_panels(self.panels, of_panel, BATCH_SIZE_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw the mean over seeds as a line for each epsilon, the seeds around it, and N as a dotted line.

        Bars span the batch sizes that are as good as the best. A line's ups and downs within them may be
        chance.
        """
        labels = numbers["epsilon"].map(style.write_epsilons(numbers["epsilon"]))
        points = numbers.assign(
            centre=numbers["mean_batch_size"], line=numbers["epsilon"], label=labels
        )
        colours = style.colours_by(numbers["epsilon"])
        palettes = [
            {row["label"]: colours[row["epsilon"]] for _, row in panel.iterrows()}
            for _, panel in points.groupby("panel")
        ]
        drawing, panels = plot_lines(
            points, "epochs", palettes, chosen=["clipping_bound", "learning_rate"], height=2.0,
            x_label="Epochs", y_label=style.log_label("Mean best batch size", panels=3), share_y=True,
            base=2, apart=True,
        )  # fmt: skip
        for axes, panel in panels:
            full = int(panel["train_size"].iloc[0])
            axes.axhline(full, color=style.GREY, linestyle=":", linewidth=1)
            axes.annotate(
                "Full", (1, full), (2, 0), xycoords=axes.get_yaxis_transform(),
                textcoords="offset points", ha="left", va="center", color=style.GREY,
                size=style.look().points(6.5),
            )  # fmt: skip
            budgets = list(panel.groupby("epsilon"))
            for place, (epsilon, line) in enumerate(budgets):
                good = line.dropna(subset="as_good_smallest")
                with style.aside(axes, right=4 * (place - (len(budgets) - 1) / 2)):
                    axes.vlines(
                        good["epochs"], good["as_good_smallest"], good["as_good_largest"],
                        colors=colours[epsilon], linewidth=3, alpha=0.4, zorder=0,
                    )  # fmt: skip
            axes.set_yscale("log", base=2)
            axes.margins(y=0.08)
        style.note(
            drawing,
            "Bars: batch sizes that are as good as the best, as far as seeds can tell (with 95 %). Lines are "
            "drawn a little apart where they would hide each other.",
        )
        return drawing


def _best_batch_sizes(trials: pd.DataFrame) -> pd.DataFrame:
    choices = choice.choose(trials, by=_BUDGET)
    columns = [*_BUDGET, "batch_size", "clipping_bound", "learning_rate"]
    return choices.loc[choices["selection_accuracy"].notna(), columns]


def _as_good_batch_sizes(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the range of batch sizes that are as good as the best, for each (epsilon, epochs)."""
    rows = []
    for budget, sizes in choice.choose(trials, by=[*_BUDGET, "batch_size"]).groupby(_BUDGET):
        good = sizes.loc[statistics.as_good_as_best(sizes, trials), "batch_size"]
        ends = {"as_good_smallest": good.min(), "as_good_largest": good.max()}
        rows.append(dict(zip(_BUDGET, budget, strict=True)) | ends)
    return pd.DataFrame(rows)


_STRIP, _TALL_STRIP = 0.4, 0.64
"""Heights in inches of a strip with two labels on its axis, and with three."""
_APART = 1.2  # points between lines that would otherwise hide each other
_BARS_APART = 2.2  # points between the bars of lines that share their horizontal positions
_LETTERS = {"batch_size": "B", "learning_rate": "η", "clipping_bound": "C"}

EDGE = "Values below the lower edge, 0 too, are drawn on it. "
"""The note of a figure with bounds below the lower edge."""


def with_repeats(points: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
    """Add the macro accuracy of every repeat to points: columns ``seed_1``, ``seed_2``, ..."""
    accuracy = choice.repeats(trials).pivot(
        index=choice.CELL, columns="seed", values="macro_accuracy"
    )
    return points.merge(
        accuracy.add_prefix("seed_"), left_on=choice.CELL, right_index=True, how="left"
    )


def stack_lines(
    panels: Sequence[LinePanel], numbers: Callable[[Line], pd.DataFrame], columns: Sequence[str]
) -> pd.DataFrame:
    """Compute the numbers of each line of each panel, and stack them with columns for panel and line."""
    parts = [
        numbers(line).assign(
            panel=panel_index, title=panel.title, line=line_index, label=line.label
        )
        for panel_index, panel in enumerate(panels)
        for line_index, line in enumerate(panel.lines)
    ]
    return frames.stack(parts, columns)


def plot_lines(
    numbers: pd.DataFrame,
    x: str,
    palettes: Sequence[dict[str, str]],
    *,
    chosen: Sequence[str],
    height: float,
    x_label: str,
    y_label: str,
    share_y: bool,
    base: float = 10,
    apart: bool = False,
) -> tuple[matplotlib.figure.Figure, list[tuple[matplotlib.axes.Axes, pd.DataFrame]]]:
    """Draw a panel for each ``panel`` with a line for each ``label``, and strips of settings below.

    Args:
        numbers: the points.
        x: the column along the x axis.
        palettes: for each panel the colours of its lines by label, in the order of the lines.
        chosen: the settings that have a strip if any value is known: ``batch_size``, ``learning_rate``,
            ``clipping_bound``.
        height: of a panel without strips, inches.
        x_label: label of the x axis, which is logarithmic.
        y_label: label of the first panel's y axis.
        share_y: whether all panels share one y axis; otherwise a note under the figure points this out.
        base: of the logarithm of the x axis.
        apart: whether to draw lines a little apart, as in strips, because many have the same centres.

    Returns:
        The figure, and the axes and numbers of each panel, from left to right.

    Raises:
        ValueError: two lines of a panel have one label, and would be drawn as one.
    """
    for (_, label), points in numbers.groupby(["panel", "label"]):
        if points["line"].nunique() > 1:
            raise ValueError(f"label: found {label} for several lines of a panel")
    chosen = [setting for setting in chosen if numbers[setting].notna().any()]
    together = [numbers] if share_y else [panel for _, panel in numbers.groupby("panel")]
    heights = [height, *_strip_heights(together, chosen)]
    drawing, panels = style.panels(
        numbers, sum(heights), len(heights), sharex="col", sharey="row" if share_y else False,
        height_ratios=heights,
    )  # fmt: skip
    legends = []
    everywhere = numbers.drop_duplicates(["panel", "label"]).sort_values("line")["label"]
    order = list(everywhere.unique())
    # Bands in all panels or in none: a band of five seeds is wider than one of three, with the same scatter.
    bands = bool(numbers["repeats"].min() >= targets.FEWEST_FOR_A_BAND)
    for ((top, *strips), panel), colours in zip(panels, palettes, strict=True):
        # Panels with the same lines have the same markers.
        marked = order if everywhere.duplicated().any() else list(colours)
        markers = dict(zip(marked, style.MARKERS * len(marked), strict=False))
        for place, (label, colour) in enumerate(colours.items()):
            line, look = panel[panel["label"] == label], {"color": colour, "marker": markers[label]}
            up = _APART * (place - (len(colours) - 1) / 2)
            with style.aside(top, up=up if apart else 0):
                _repeats(top, line, x, look, bands)
                _line(top, line, x, "centre", look)
            for strip, setting in zip(strips, chosen, strict=True):
                with style.aside(strip, up=up):
                    _line(strip, line, x, setting, look)
        for strip, setting in zip(strips, chosen, strict=True):
            strip.margins(y=0.25)
            for drawn in strip.lines:
                drawn.set(linewidth=0.8, markersize=2.8)
            _setting_axis(strip, numbers if share_y else panel, setting)
        room = style.room_for_labels(len(panels))
        style.value_axis(top, "x", list(panel[x]), base=base, labels=room)
        [top, *strips][-1].set_xlabel(style.log_label(x_label, len(panels)))
        handles = [
            style.legend_line(label, colour, marker=markers[label])
            for label, colour in colours.items()
        ]
        legends.append((top, panel["title"].iloc[0], handles))
    first, *strips = panels[0][0]
    for strip, setting in zip(strips, chosen, strict=True):
        strip.set_ylabel(_LETTERS[setting], rotation=0, va="center", ha="right")
    first.set_ylabel(y_label)
    style.legends(drawing, legends, order)
    if len(panels) > 1 and not share_y:
        style.note(drawing, style.DIFFERENT_AXES)
    return drawing, [(column[0], panel) for column, panel in panels]


def _strip_heights(panels: Sequence[pd.DataFrame], chosen: Sequence[str]) -> list[float]:
    """Return the height of each strip; three labels on its vertical axis need more room."""
    return [
        _TALL_STRIP if any(panel[setting].nunique() > 2 for panel in panels) else _STRIP
        for setting in chosen
    ]


def _line(
    axes: matplotlib.axes.Axes, line: pd.DataFrame, x: str, y: str, look: dict[str, str]
) -> None:
    # A NaN interrupts the line.
    axes.plot(line[x], line[y].astype(float), markeredgewidth=0, **look)  # type: ignore[arg-type]


def _repeats(
    axes: matplotlib.axes.Axes, line: pd.DataFrame, x: str, look: dict[str, str], bands: bool
) -> None:
    if bands:
        style.band(axes, line, x, "minimum", "maximum", look["color"])
    elif line["repeats"].max() > 1:
        for seed in frames.seed_columns(line):
            axes.scatter(line[x], line[seed], s=7, alpha=0.6, linewidth=0, **look)  # type: ignore[arg-type]


def _setting_axis(axes: matplotlib.axes.Axes, points: pd.DataFrame, setting: str) -> None:
    values = points[points[setting].notna()].drop_duplicates(setting)
    if values.empty:
        axes.set_yticks([])
        return
    match setting:
        case "batch_size":
            sizes = zip(values["batch_size"], values["full_batch"], strict=True)
            texts = [
                style.write_batch_size(int(size), bool(full), power=True) for size, full in sizes
            ]
        case "learning_rate":
            texts = list(style.write_values(values[setting], style.write_rate).values())
        case _:
            texts = list(style.write_values(values[setting]).values())
    style.value_axis(axes, "y", list(values[setting]), texts, labels=3)
    axes.tick_params(axis="y", labelsize=style.look().small)


def plot_bounds(
    axes: matplotlib.axes.Axes, lines: Iterable[tuple[str, pd.DataFrame]], x: str, lower_edge: float
) -> None:
    """Draw lines through ``best_bound``, each with bars from ``smallest`` to ``largest``.

    Args:
        axes: where to draw.
        lines: colour and points of each line.
        x: the column along the horizontal axis.
        lower_edge: of the axis; see `lower_edge`.
    """
    lines = list(lines)
    for place, (colour, points) in enumerate(lines):
        drawn = points[["best_bound", "smallest", "largest"]].clip(lower=lower_edge)
        middle = drawn["best_bound"]
        with style.aside(axes, right=_BARS_APART * (place - (len(lines) - 1) / 2)):
            axes.errorbar(
                points[x], middle, yerr=(middle - drawn["smallest"], drawn["largest"] - middle),
                color=colour, elinewidth=0.8, linewidth=1.1, marker="o", markersize=3,
            )  # fmt: skip
    axes.set_yscale("log")


def lower_edge(points: pd.DataFrame) -> float:
    """Return half of the smallest ``best_bound`` above 0."""
    bounds = points.loc[points["best_bound"] > 0, "best_bound"]
    return float(bounds.min()) / 2 if len(bounds) else 0.1


def end_at(axes: matplotlib.axes.Axes, points: pd.DataFrame, lower_edge: float) -> bool:
    """End the axis at its lower edge if any range goes below it, and return whether one does."""
    below = bool((points[["best_bound", "smallest"]] < lower_edge).any(axis=None))
    if below:
        axes.set_ylim(bottom=lower_edge)
    style.log_axis(axes, "y")
    return below
