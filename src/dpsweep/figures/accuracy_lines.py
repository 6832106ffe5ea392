"""Three families of line figures: accuracy over C, accuracy of methods over epsilon, best B over epochs.

Each point tunes the settings that are not on the horizontal axis. Strips under a panel show the tuned values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpsweep.analysis import frames, statistics
from dpsweep.base.lazy import np, pd
from dpsweep.figures import lines, style
from dpsweep.study import choice, targets
from dpsweep.study.grid import Line, Panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpsweep.study import Study
    from dpsweep.study.paths import Paths
from dpsweep.study.targets import Missing

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

    def compute(self, study: Study, paths: Paths, missing: Missing = None) -> pd.DataFrame:
        """Return one row per point: its centre, band and repeats, as accuracy or as difference to the best.

        A difference of ``cross_fitted`` is to the cross-fitted accuracy of the line's own choice of C.
        """

        def of_line(line: Line) -> pd.DataFrame:
            trials = frames.load_trials(study, paths, line.cells(), missing)
            points = choice.choose(trials, by=["clipping_bound"], centre=self.centre)
            points["as_good"] = statistics.as_good_as_best(points, trials)
            points = lines.with_repeats(points, trials)
            points["best"] = statistics.first_best(points["selection_accuracy"])
            if self.quantity == "difference":
                band = ["centre", "minimum", "maximum", *frames.seed_columns(points)]
                points[band] -= points["centre"].max()
                points["cross_fitted"] -= choice.choose(trials, by=["problem"])[
                    "cross_fitted"
                ].max()
            return points.assign(difficulty=line.difficulty)

        return lines.stack_lines(self.panels, of_line, CLIPPING_CURVE_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> Figure:
        """Draw a line for each problem, rings around points as good as its best, strips of B and rates."""
        difference = self.quantity == "difference"
        palettes = [_by_difficulty(panel) for _, panel in numbers.groupby("panel", sort=False)]
        lowest = float(numbers["centre"].min())
        floor = 1.2 * _FLOOR if difference and lowest < 2 * _FLOOR else lowest
        # Points below the floor are drawn on it, with their numbers.
        drawing, panels = lines.plot(
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

    def compute(self, study: Study, paths: Paths, missing: Missing = None) -> pd.DataFrame:
        """Return one row per point: mean, band and repeats, minus the best line's mean at that epsilon.

        The mean is over the seeds that chose the settings. This favours methods with more settings to tune,
        so compare methods by ``cross_fitted_difference``: ``cross_fitted`` minus that of the best line.
        """

        def of_line(line: Line) -> pd.DataFrame:
            trials = frames.load_trials(study, paths, line.cells(), missing)
            points = lines.with_repeats(choice.choose(trials, by=["epsilon"]), trials)
            return points.assign(
                macro_accuracy=points["centre"], cross_fitted_difference=points["cross_fitted"]
            )

        points = lines.stack_lines(self.panels, of_line, METHOD_COLUMNS)
        best = points.groupby(["panel", "epsilon"])[["macro_accuracy", "cross_fitted"]].transform(
            "max"
        )
        for column in ("centre", "minimum", "maximum", *frames.seed_columns(points)):
            points[column] -= best["macro_accuracy"]
        points["cross_fitted_difference"] -= best["cross_fitted"]
        return points

    def plot(self, numbers: pd.DataFrame) -> Figure:
        """Draw a panel for each problem, a line for each method, and strips of the chosen settings."""
        palettes = []
        for _panel, rows in numbers.groupby("panel"):
            labels = list(rows["label"].unique())
            palettes.append(dict(zip(labels, style.category_colours(len(labels)), strict=True)))
        drawing, _panels = lines.plot(
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

    def compute(self, study: Study, paths: Paths, missing: Missing = None) -> pd.DataFrame:
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

    def plot(self, numbers: pd.DataFrame) -> Figure:
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
        drawing, panels = lines.plot(
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
