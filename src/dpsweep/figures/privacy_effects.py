"""Direct against indirect effect of privacy on the best clipping bound."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpsweep.analysis.frames import stack
from dpsweep.analysis.overlaps import NOTE, PRIVACY, Overlap, load_overlaps
from dpsweep.figures import ranges, style
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
    """Draw a column for each problem, a row for each rule, a line for each effect."""
    panels = [panel for _, panel in numbers.groupby("panel")]
    drawing = style.panels_figure(len(panels), height=3.6)
    grid = drawing.subplots(len(RULES), len(panels), squeeze=False, sharex="col", sharey="row")
    colours = dict(zip(_EFFECTS.values(), ["black", style.HARD, style.EASY], strict=True))
    below = False
    for row, rule in zip(grid, RULES, strict=True):
        of_rule = numbers[numbers["rule"] == rule].sort_values("epsilon")
        edge = ranges.lower_edge(of_rule)
        for axes, panel in zip(row, panels, strict=True):
            points = of_rule[of_rule["panel"] == panel["panel"].iloc[0]]
            lines = [(colours[each], points[points["effect"] == each]) for each in colours]
            ranges.draw(axes, lines, "epsilon", edge)
        below |= ranges.end_at(row[0], of_rule, edge)
        row[0].set_ylabel(f"{rule} (log scale)")
    for column, panel in zip(grid.T, panels, strict=True):
        style.value_axis(column[-1], "x", list(panel["epsilon"].unique()), base=2)
        column[-1].set_xlabel(style.log_label(style.EPSILON_LABEL, len(panels)))
        column[0].set_title(str(panel["title"].iloc[0]))
    handles = [Line2D([], [], color=colours[each], marker="o", label=each) for each in colours]
    drawing.legend(handles=handles, loc="outside upper center", ncols=3)
    style.note(
        drawing,
        "Against the largest ε, after the last epoch. Bars: from the lowest to the highest draw. "
        f"{ranges.EDGE if below else ''}{NOTE}",
    )
    return drawing
