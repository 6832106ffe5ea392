"""Direct against indirect effect of privacy on the best clipping bound."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpsweep.analysis.frames import stack
from dpsweep.analysis.overlaps import NOTE, PRIVACY, Overlap, load_overlaps
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import PrivacyEffects
from dpsweep.theory import ClippedSums, direction_optimal_clipping, mse_optimal_clipping
from dpsweep.theory import PrivacyEffects as Effects

COLUMNS = [
    "panel", "title", "problem", "epochs", "batch_size", "trained_with_bound", "rule", "epsilon",
    "loose_epsilon", "effect", "best_bound", "smallest", "largest", "draws", "privacy",
]  # fmt: skip
_EFFECTS = {
    "tight": "both",
    "direct": "noise alone",
    "indirect": "gradients alone",
}
_APART = 2.5  # points between the lines of effects


def _scale_free(sums: ClippedSums, noise_multiplier: float, dimension: int) -> float:
    return direction_optimal_clipping(sums, noise_multiplier, dimension).clipping_bound


RULES: dict[str, Callable[[ClippedSums, float, int], float]] = {
    "C*": mse_optimal_clipping,
    "scale-free C": _scale_free,
}
"""What a best bound is."""


def optima_by_epsilon(
    study: Study, paths: Paths, figure: PrivacyEffects, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per (panel, rule, epsilon, effect): the best bound after the last epoch.

    Against the largest epsilon: ``direct`` has its gradients and the noise of the row's epsilon,
    ``indirect`` the gradients of the row's epsilon and its noise, ``both`` what the row's epsilon has.
    Medians over draws, which are the same batches for every epsilon, with smallest and largest.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    frames = []
    for index, panel in enumerate(figure.panels):
        last = [
            each
            for each in load_overlaps(paths, study.cells(panel), missing)
            if each.epoch == each.cell.epochs and each.sums.total_square > 0
        ]
        if not last:
            continue
        loose = max(each.cell.epsilon for each in last)
        references = {each.draw: each for each in last if each.cell.epsilon == loose}
        rows = [
            row
            for each in last
            if each.draw in references
            for row in _effects(references[each.draw], each)
        ]
        by = pd.DataFrame(rows).groupby(["rule", "epsilon", "effect"], sort=False)["best_bound"]
        frames.append(
            by.agg(best_bound="median", smallest="min", largest="max", draws="size")
            .reset_index()
            .assign(
                panel=index,
                title=panel.title,
                problem=last[0].cell.problem,
                epochs=last[0].cell.epochs,
                batch_size=last[0].batch_size,
                trained_with_bound=last[0].cell.clipping_bound,
                loose_epsilon=loose,
                privacy=PRIVACY,
            )
        )
    return stack(frames, COLUMNS)


def _effects(loose: Overlap, tight: Overlap) -> list[dict[str, float | str]]:
    noises = loose.scaled(loose.noise_multiplier), tight.scaled(tight.noise_multiplier)
    found = []
    for name, rule in RULES.items():
        effects = Effects.of(rule, loose.sums, tight.sums, noises, tight.dimension)
        found += [
            {"rule": name, "epsilon": tight.cell.epsilon, "effect": label,
             "best_bound": getattr(effects, effect)}
            for effect, label in _EFFECTS.items()
        ]  # fmt: skip
    return found


def plot(_: PrivacyEffects, numbers: pd.DataFrame) -> Figure:
    """Draw a column for each problem, a row for each rule, a line for each effect.

    A range over draws is a bar and no band: bounds of 0, which a logarithmic axis does not have, would
    fill the panel.
    """
    panels = [panel for _, panel in numbers.groupby("panel")]
    rules = list(RULES)
    drawing = style.panels_figure(len(panels), height=3.6)
    grid = drawing.subplots(len(rules), len(panels), squeeze=False, sharex="col", sharey="row")
    labels = list(_EFFECTS.values())
    colours = dict(zip(labels, ["black", style.HARD, style.EASY], strict=True))
    floors = {rule: _floor(numbers[numbers["rule"] == rule]["best_bound"]) for rule in rules}
    for column, panel in zip(grid.T, panels, strict=True):
        for axes, rule in zip(column, rules, strict=True):
            points = panel[panel["rule"] == rule].sort_values("epsilon")
            for label in labels:
                with style.aside(axes, right=_APART * (labels.index(label) - 1)):
                    _draw(axes, points[points["effect"] == label], floors[rule], colours[label])
            axes.set_yscale("log")
        style.value_axis(column[-1], "x", list(panel["epsilon"].unique()), base=2)
        column[-1].set_xlabel(style.log_label(style.EPSILON_LABEL, len(panels)))
        column[0].set_title(str(panel["title"].iloc[0]))
    below = numbers["smallest"] < numbers["rule"].map(floors)
    for axes, rule in zip(grid[:, 0], rules, strict=True):
        if below[numbers["rule"] == rule].any():
            axes.set_ylim(bottom=floors[rule])
        style.log_axis(axes, "y")
        axes.set_ylabel(f"{rule} (log scale)")
    handles = [Line2D([], [], color=colours[each], marker="o", label=each) for each in labels]
    drawing.legend(handles=handles, loc="outside upper center", ncols=3)
    edge = "The lower edge stands for all that is below it, 0 too. " if below.any() else ""
    style.note(
        drawing,
        f"Against the largest ε, after the last epoch. Bars: from the lowest to the highest draw. {edge}{NOTE}",
    )
    return drawing


def _floor(medians: "pd.Series[float]") -> float:
    """Where the axis ends: below every median that is not 0."""
    return float(medians[medians > 0].min()) / 2 if (medians > 0).any() else 0.1


def _draw(axes: Axes, points: pd.DataFrame, floor: float, colour: str) -> None:
    drawn = points[["best_bound", "smallest", "largest"]].clip(lower=floor)
    middle = drawn["best_bound"]
    axes.errorbar(
        points["epsilon"], middle, yerr=(middle - drawn["smallest"], drawn["largest"] - middle),
        color=colour, elinewidth=0.9, linewidth=1.0, marker="o", markersize=3,
    )  # fmt: skip
