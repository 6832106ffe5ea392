"""The best clipping bound as the theory predicts it, beside the measured one, over many problems."""

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpsweep.analysis.overlaps import NOTE
from dpsweep.analysis.predictions import PREDICTIONS
from dpsweep.figures import style
from dpsweep.study.targets import PredictedClipping


def plot(_: PredictedClipping, numbers: pd.DataFrame) -> Figure:
    """Draw predicted against measured bounds for each prediction; below, what each rule loses."""
    drawing = style.panels_figure(3, height=4.6)
    # Apart, so that the long names of rules below do not narrow the panels above.
    above, below = drawing.subfigures(2, 1, height_ratios=[1.3, 1], squeeze=False)[:, 0]
    grid = dict(zip(PREDICTIONS, above.subplots(1, len(PREDICTIONS)), strict=True))
    colours = style.colours_by(numbers["epsilon"])
    positive = numbers.loc[numbers["predicted"] > 0, ["predicted", "measured"]].to_numpy()
    floor = positive.min() / 2 if len(positive) else 0.1
    # Problems with the same measured bound lie on one line: moved apart a little, in a fixed way.
    shift = 1.06 ** (np.arange(len(numbers)) % 5 - 2)
    points = numbers.assign(
        predicted=numbers["predicted"].clip(lower=floor), measured=numbers["measured"] * shift
    )
    for rule in PREDICTIONS:
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
        style.title(axes, rule, "rank correlation", _correlation(rows))
    grid[PREDICTIONS[0]].set_ylabel("Measured best C")
    _draw_losses(below.subplots(), numbers)
    budgets = {style.write_epsilon(epsilon): colour for epsilon, colour in colours.items()}
    handles = style.legend_lines(budgets, marker="o", linestyle="")
    above.legend(handles=handles, loc="outside upper center", ncols=8)
    style.note(
        drawing,
        "All axes of the upper row are logarithmic. Intervals: 95 %, over problems with all their ε and B. "
        f"{NOTE}",
    )
    return drawing


def _correlation(rows: pd.DataFrame) -> str:
    """The rank correlation of a rule with its interval, where there are any."""
    names = ["rank_correlation", "rank_correlation_lower", "rank_correlation_upper"]
    value, lower, upper = rows[names].iloc[0] if len(rows) else [np.nan] * 3
    if np.isnan(value):
        return "–"
    text = f"{value:.2f}" if np.isnan(lower) else f"{value:.2f} [{lower:.2g}, {upper:.2g}]"
    return text.replace("-", "−")


def _draw_losses(axes: Axes, numbers: pd.DataFrame) -> None:
    rules = numbers.drop_duplicates("rule")
    reach = (rules["mean_lost_upper"] - rules["mean_lost"]).fillna(0)
    sns.barplot(
        rules, x="mean_lost", y="rule", color=style.EASY, saturation=1, width=0.6, errorbar=None, ax=axes
    )  # fmt: skip
    axes.errorbar(
        rules["mean_lost"], rules["rule"], xerr=reach, fmt="none", ecolor=style.GREY, elinewidth=0.8
    )
    ends = rules["mean_lost"] + reach
    for end, (_, row) in zip(ends, rules.iterrows(), strict=True):
        axes.annotate(
            f"{row['mean_lost']:.4f} ({row['settings']:.0f} settings)", (end, row["rule"]), (3, 0),
            textcoords="offset points", va="center", size=style.SMALL,
        )  # fmt: skip
    axes.set_xlim(0, max(1e-6, 1.35 * ends.max()))
    axes.set(xlabel="Accuracy lost against the best C of each setting, mean", ylabel="")
    axes.grid(axis="y", visible=False)
