"""Families of the theory of clipping, from overlaps of gradients: MSE(C), C* by epoch, C* by epsilon.

A fourth family draws predicted bounds (`dpsweep.analysis.predictions`) against measured ones. Their numbers
are not private, as every figure and CSV notes.
"""

from __future__ import annotations

from typing import Literal

from dpsweep.analysis import frames, predictions
from dpsweep.base.lazy import matplotlib, np, pd, sns
from dpsweep.figures import style
from dpsweep.figures.accuracy_lines import EDGE, end_at, lower_edge, plot_bounds
from dpsweep.study import Paths, Study, targets
from dpsweep.study.clipping import nearest_to_one
from dpsweep.study.grid import Panel, Selection

DECOMPOSITION_COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "learning_rate",
    "trained_with_bound", "epoch", "clipping_bound", "bias", "noise", "error", "smallest", "largest",
    "draws", "best_bound", "noise_multiplier", "privacy", "full_batch",
]  # fmt: skip

TRACE_COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "learning_rate",
    "trained_with_bound", "epoch", "best_bound", "smallest", "largest", "median_norm",
    "direction_bound", "plateau_lower", "plateau_upper", "draws", "noise_multiplier", "privacy",
]  # fmt: skip

EFFECTS_COLUMNS = [
    "panel", "title", "problem", "epochs", "batch_size", "trained_with_bound", "rule", "epsilon",
    "loose_epsilon", "effect", "best_bound", "smallest", "largest", "draws", "privacy",
]  # fmt: skip

_POINTS = 61

_PARTS: dict[str, Literal["-", ":", "--"]] = {"error": "-", "bias": ":", "noise": "--"}

_SAID = {
    "both": "noise and gradients of this ε",
    "noise alone": "noise of this ε, gradients of the largest",
    "gradients alone": "gradients of this ε, noise of the largest",
}

"""The legend of each effect."""


_CORRELATION = ["rank_correlation", "rank_correlation_lower", "rank_correlation_upper"]


class _Overlaps(targets.Figure):
    """A figure of overlaps of the gradients of trials (`dpsweep.theory`), which are not private."""

    panels: targets.Panels

    def overlaps(self) -> list[Selection]:
        """Return the selections of all panels."""
        return list(self.panels)

    def caption_end(self) -> str:
        """Return the warning that the figure is not private."""
        return "Not private: drawn from raw gradients."


class ErrorDecomposition(_Overlaps):
    """MSE(C) of Theorem 4.1 split into bias and noise, at the start and at the end of training.

    A frame for `draw` has columns ``epoch``, ``clipping_bound``, ``bias``, ``noise``, ``error`` and
    ``best_bound``; optional ``smallest`` and ``largest`` (of draws), ``panel``, ``title``, ``batch_size``,
    ``learning_rate``.
    """

    family = "error_decomposition"
    title = "Error of a private gradient"
    single = ("epsilon", "epochs", "batch_size", "clipping_bound")

    keys = ("epoch", "clipping_bound")
    needs = ("bias", "noise", "error", "best_bound")

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per (panel, epoch, C): the mean over draws of each part of the error over |g|^2.

        An error of 1 is that of a sum of 0. ``smallest`` and ``largest`` are the range of the whole error
        over draws. Epochs are the start (0), the middle and the end of training.
        """

        def of_panel(panel: Panel) -> pd.DataFrame:
            overlaps = [
                each
                for each in predictions.load_overlaps(study, paths, panel.cells(), missing)
                if each.epoch in (0, each.cell.epochs // 2, each.cell.epochs)
                and each.sums.total_square > 0
            ]
            if not overlaps:
                return pd.DataFrame()
            norms = np.concatenate([each.sums.norms for each in overlaps])
            bounds = np.geomspace(np.quantile(norms, 0.01) / 100, 2 * norms.max(), _POINTS)
            every = pd.concat([each.errors(bounds) for each in overlaps])
            by = every.groupby(["epoch", "clipping_bound"])
            means = by[["bias", "noise", "error", "best_bound"]].mean()
            full = study.train_size(panel.problem.dataset)
            return (
                means.assign(smallest=by["error"].min(), largest=by["error"].max(), draws=by.size())
                .reset_index()
                .assign(full_batch=overlaps[0].batch_size == full, **overlaps[0].settings)
            )

        return frames.stack_panels(self.panels, of_panel, DECOMPOSITION_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a panel for each cell, with the error and its parts as lines, and a colour for each epoch."""
        drawing, panels = style.panels(numbers, height=2.4, sharey=True)
        colours = style.colours_by(numbers["epoch"])
        for (axes,), panel in panels:
            # Draw the error last: it covers the part that dominates it.
            for part, line in reversed(_PARTS.items()):
                look = {"linestyle": line, "linewidth": 1.1}
                style.draw_lines(axes, panel, "clipping_bound", part, colours, "epoch", **look)
            for epoch, rows in panel.groupby("epoch"):
                style.band(axes, rows, "clipping_bound", "smallest", "largest", colours[epoch])
                axes.axvline(rows["best_bound"].iloc[0], color=colours[epoch], linewidth=0.7)
            axes.set_yscale("log")
            axes.set_ylim(1e-3, 1e2)
            style.log_axis(axes, "x")
            axes.set_xlabel(style.log_label(style.CLIPPING_LABEL, len(panels)))
            style.title(axes, panel["title"].iloc[0], style.write_chosen(panel.iloc[0]))
        drawing.axes[0].set_ylabel("MSE(C) / |g|² (log scale)")
        parts = [style.legend_line(part, linestyle=line) for part, line in _PARTS.items()]
        epochs = {f"epoch {epoch:g}": colour for epoch, colour in colours.items()}
        handles = [*parts, *style.legend_lines(epochs, linewidth=3)]
        drawing.legend(
            handles=handles, loc="outside upper center", ncols=6 if len(panels) > 1 else 3
        )
        style.note(
            drawing,
            f"1 is the error of adding nothing. A vertical line: C* of that epoch. {predictions.NOTE}",
        )
        return drawing


class OptimalClippingTrace(_Overlaps):
    """C* of Theorem 4.1 and the median gradient norm after every epoch, a line per epsilon.

    A frame for `draw` has columns ``epsilon``, ``epoch``, ``best_bound`` and ``median_norm``; optional
    ``smallest`` and ``largest`` (of draws), ``panel``, ``title``.
    """

    family = "optimal_clipping_trace"
    title = "Best clipping bound by the theory"
    single = ("epochs", "batch_size", "clipping_bound")

    keys = ("epsilon", "epoch")
    needs = ("best_bound", "median_norm")

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per (panel, epsilon, epoch): medians over draws of C*, median norm and scale-free C.

        ``smallest`` and ``largest`` are the range of C* over draws; the plateau is that of the scale-free C.
        """

        def of_panel(panel: Panel) -> pd.DataFrame:
            overlaps = predictions.load_overlaps(study, paths, panel.cells(), missing)
            if not overlaps:
                return pd.DataFrame()
            by = pd.DataFrame([each.optima() for each in overlaps]).groupby(
                ["problem", "privacy", "epsilon", "epoch"]
            )
            bounds = by["best_bound"]
            return (
                by.median()
                .assign(smallest=bounds.min(), largest=bounds.max(), draws=by.size())
                .reset_index()
            )

        return frames.stack_panels(self.panels, of_panel, TRACE_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a panel for each problem: C* solid with its range over draws, and the median norm dashed."""
        drawing, panels = style.panels(numbers, height=2.5, sharey=True)
        colours = style.colours_by(numbers["epsilon"])
        dashed = {"linestyle": "--", "linewidth": 1}
        edge = lower_edge(numbers)
        for (axes,), panel in panels:
            style.draw_lines(axes, panel, "epoch", "median_norm", colours, "epsilon", **dashed)
            of_budgets = [
                (colours[epsilon], points) for epsilon, points in panel.groupby("epsilon")
            ]
            plot_bounds(axes, of_budgets, "epoch", edge)
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True, nbins=5))
            axes.set(title=panel["title"].iloc[0], xlabel="Epoch")
        below = end_at(drawing.axes[0], numbers, edge)
        drawing.axes[0].set_ylabel("C* and median norm (log scale)")
        budgets = dict(zip(style.write_epsilons(colours).values(), colours.values(), strict=True))
        handles = [
            *style.legend_lines({"C*": "black"}, marker="o", markersize=2.5),
            *style.legend_lines({"median norm": "black"}, **dashed),
            *style.legend_lines(budgets, linewidth=3),
        ]
        drawing.legend(
            handles=handles, loc="outside upper center", ncols=5 if len(panels) > 1 else 3
        )
        style.note(
            drawing,
            f"Epoch 0 is before the first step. {EDGE if below else ''}{predictions.NOTE}",
        )
        return drawing


_MEANT = {"C*": "Smallest error:", "scale-free C": "Best direction:"}


class PrivacyEffectsFigure(_Overlaps):
    """Best C over epsilon: by the effect of noise alone, of the gradients alone, and of both.

    A frame for `draw` has columns ``rule`` (C* or scale-free C), ``effect`` (both, noise alone, gradients
    alone), ``epsilon`` and ``best_bound``; optional ``smallest`` and ``largest`` (of draws), ``panel``,
    ``title``.
    """

    family = "privacy_effects"
    title = "Effects of ε on the best clipping bound"
    single = ("epochs", "batch_size", "clipping_bound")
    drawn = ("epsilon",)

    keys = ("rule", "effect", "epsilon")
    needs = ("best_bound",)

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per (panel, rule, epsilon, effect): the best bound after the last epoch.

        ``noise alone`` combines the noise of the row's epsilon with the gradients of the largest epsilon,
        ``gradients alone`` the gradients of the row's epsilon with the noise of the largest one, ``both``
        noise and gradients of the row's epsilon. Bounds are medians over draws, with smallest and largest.
        The draws are the same batches for every epsilon.
        """

        def of_panel(panel: Panel) -> pd.DataFrame:
            last = [
                each
                for each in predictions.load_overlaps(study, paths, panel.cells(), missing)
                if each.epoch == each.cell.epochs and each.sums.total_square > 0
            ]
            if not last:
                return pd.DataFrame()
            loose = max(each.cell.epsilon for each in last)
            references = {
                (each.seed, each.draw): each for each in last if each.cell.epsilon == loose
            }
            rows = [
                row
                for each in last
                if (each.seed, each.draw) in references
                for row in predictions.effects(references[each.seed, each.draw], each)
            ]
            by = pd.DataFrame(rows).groupby(["rule", "epsilon", "effect"], sort=False)["best_bound"]
            constant = {
                name: value for name, value in last[0].settings.items() if name != "epsilon"
            }
            return (
                by.agg(best_bound="median", smallest="min", largest="max", draws="size")
                .reset_index()
                .assign(loose_epsilon=loose, **constant)
            )

        return frames.stack_panels(self.panels, of_panel, EFFECTS_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a column for each problem, a row for each rule, a line for each effect."""
        drawing, panels = style.panels(numbers, 4.2, rows=len(_MEANT), sharex="col", sharey="row")
        colours = dict(zip(_SAID, ["black", style.look().hard, style.look().easy], strict=True))
        below = False
        for row, rule in enumerate(_MEANT):
            of_rule = numbers[numbers["rule"] == rule]
            edge = lower_edge(of_rule)
            for column, panel in panels:
                points = panel[panel["rule"] == rule].sort_values("epsilon")
                of_effects = [(colours[each], points[points["effect"] == each]) for each in colours]
                plot_bounds(column[row], of_effects, "epsilon", edge)
            first = panels[0][0][row]
            below |= end_at(first, of_rule, edge)
            first.set_ylabel(f"{_MEANT[rule]}\n{rule}\n(log scale)")
        for column, panel in panels:
            style.value_axis(column[-1], "x", list(panel["epsilon"].unique()), base=2)
            column[-1].set_xlabel(style.log_label(style.EPSILON_LABEL, len(panels)))
            column[0].set_title(panel["title"].iloc[0])
        handles = style.legend_lines({_SAID[each]: colours[each] for each in colours}, marker="o")
        drawing.legend(
            handles=handles,
            loc="outside upper center",
            title="Best clipping bound after training, with",
        )
        style.note(
            drawing,
            "Where the line of the noise follows the line of both, less ε moves the best C through its "
            "noise; where the line of the gradients does, through what training leaves behind. Bars: from "
            f"the lowest to the highest draw. {EDGE if below else ''}{predictions.NOTE}",
        )
        return drawing


class PredictedClipping(_Overlaps):
    """The best C as predicted by the theory, beside the measured one, over all problems of the panels.

    The gradients come from the trial with the C nearest to 1. A panel with a clipping rule without a
    bound, such as AUTO-S, adds that rule to the problems of the other panels.

    A frame for `draw` has columns ``rule``, ``epsilon``, ``predicted``, ``measured``, ``mean_lost`` and
    ``settings`` (the number in the mean); optional ``mean_lost_upper``, and ``rank_correlation`` with
    its interval.
    """

    family = "predicted_clipping"
    title = "Predicted and measured clipping bounds"
    single = ("epochs",)
    drawn = ("clipping_bound",)

    def overlaps(self) -> list[Selection]:
        """Return the cells of every problem at the C nearest to 1."""
        return [
            panel.model_copy(
                update={"clipping_bound": [nearest_to_one(panel.values("clipping_bound"))]}
            )
            for panel in self.panels
            if targets.named_rule(panel) is None
        ]

    needs = ("rule", "epsilon", "predicted", "measured", "mean_lost", "settings")

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per (rule, problem, epsilon, batch size)."""
        return predictions.predicted_bounds(study, paths, self.panels, missing)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw predicted against measured bounds for each prediction and, below, the loss of each rule.

        The heading counts the predictions that order the settings as measured. Rules stand in ascending order
        of loss.
        """
        drawing = style.panels_figure(3, height=5.0)
        # Separate subfigures: otherwise the long names of rules below narrow the panels above.
        above, below = drawing.subfigures(2, 1, height_ratios=[1.3, 1], squeeze=False)[:, 0]
        rules = predictions.PREDICTIONS
        grid = dict(zip(rules, above.subplots(1, len(rules)), strict=True))
        colours = style.colours_by(numbers["epsilon"])
        positive = numbers.loc[numbers["predicted"] > 0, ["predicted", "measured"]].to_numpy()
        floor = positive.min() / 2 if len(positive) else 0.1
        # Shift points a little, always alike, because many have the same measured bound.
        shift = 1.06 ** (np.arange(len(numbers)) % 5 - 2)
        points = numbers.assign(
            predicted=numbers["predicted"].clip(lower=floor), measured=numbers["measured"] * shift
        )
        for rule in rules:
            axes, rows = grid[rule], points[points["rule"] == rule]
            if len(rows):
                sns.scatterplot(
                    rows, x="predicted", y="measured", hue="epsilon", palette=colours, s=12, alpha=0.8,
                    linewidth=0, legend=False, ax=axes,
                )  # fmt: skip
            low, high = floor, max(numbers["predicted"].max(), numbers["measured"].max()) * 1.5
            axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
            for which in ("x", "y"):
                style.log_axis(axes, which)
            axes.plot([low, high], [low, high], color=style.GREY, linewidth=0.7, zorder=0)
            axes.set(xlabel="Predicted C", ylabel="")
            axes.set_box_aspect(1)
            style.title(axes, rule, *_correlation(rows))
        grid[rules[0]].set_ylabel("Measured best C")
        _draw_losses(below.subplots(), numbers)
        budgets = dict(zip(style.write_epsilons(colours).values(), colours.values(), strict=True))
        handles = style.legend_lines(budgets, marker="o", linestyle="")
        ordered = numbers[numbers["rule"].isin(rules) & (numbers["rank_correlation_lower"] > 0)]
        above.legend(
            handles=handles, loc="outside upper center", ncols=8,
            title=f"{ordered['rule'].nunique()} of {len(rules)} predictions are shown to order "
            "settings by their best C",
        )  # fmt: skip
        style.note(
            drawing,
            "On the line, the predicted C is the measured one; above it, it is too small. All axes of the "
            "upper row are logarithmic. Intervals: 95 %, over problems with all their ε and B. "
            f"{predictions.NOTE}",
        )
        return drawing


def _correlation(rows: pd.DataFrame) -> list[str]:
    """Write the rank correlation of a rule with its interval, as far as known, and the conclusion."""
    value, lower, upper = rows[_CORRELATION].iloc[0] if len(rows) else [np.nan] * 3
    written, shown = "–" if np.isnan(value) else f"{value:.2f}", "too few problems to tell"
    if not np.isnan(lower):
        written += f" [{lower:.2g}, {upper:.2g}]"
        shown = "not shown to order them"
        if lower > 0 or upper < 0:
            shown = "orders them" if lower > 0 else "orders them the wrong way"
    return ["rank correlation", written.replace("-", "−"), shown]


def _draw_losses(axes: matplotlib.axes.Axes, numbers: pd.DataFrame) -> None:
    """Draw a bar for the loss of each rule in percentage points, least first; grey without a theory."""
    rules = numbers.drop_duplicates("rule").sort_values("mean_lost", kind="stable")
    lost = 100 * rules["mean_lost"]
    reach = (100 * rules["mean_lost_upper"] - lost).fillna(0)
    colours = [
        style.look().easy if each in predictions.PREDICTIONS else "#AAAAAA"
        for each in rules["rule"]
    ]
    bars = {"ecolor": style.GREY, "elinewidth": 0.8}
    axes.barh(rules["rule"], lost, height=0.6, color=colours, xerr=reach, error_kw=bars)
    axes.invert_yaxis()
    ends = lost + reach
    for end, points, (_, row) in zip(ends, lost, rules.iterrows(), strict=True):
        axes.annotate(
            f"{points:.2f} ({row['settings']:.0f} settings)", (end, row["rule"]), (3, 0),
            textcoords="offset points", va="center", size=style.look().small,
        )  # fmt: skip
    axes.set_xlim(0, max(1e-4, 1.35 * ends.max()))
    axes.set_xlabel("Points lost against the best C of each setting, mean (coloured: predictions)")
    axes.grid(axis="y", visible=False)
