"""Lines of optimal bounds with the range of their draws, on a logarithmic axis.

A bound may be 0, which such an axis does not have: a band down to it would fill the panel. So ranges are
bars, and whatever is far below the lines is on the lower edge.
"""

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes

from dpsweep.figures import style

EDGE = "The lower edge stands for all that is below it, 0 too. "
"""What a figure says of its bounds below the lower edge."""
_APART = 2.2  # points between the bars of lines that share their horizontal positions


def draw(axes: Axes, lines: Iterable[tuple[str, pd.DataFrame]], x: str, lower_edge: float) -> None:
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
        with style.aside(axes, right=_APART * (place - (len(lines) - 1) / 2)):
            axes.errorbar(
                points[x], middle, yerr=(middle - drawn["smallest"], drawn["largest"] - middle),
                color=colour, elinewidth=0.8, linewidth=1.1, marker="o", markersize=3,
            )  # fmt: skip
    axes.set_yscale("log")


def lower_edge(points: pd.DataFrame) -> float:
    """Half of the smallest ``best_bound`` that is not 0."""
    bounds = points.loc[points["best_bound"] > 0, "best_bound"]
    return float(bounds.min()) / 2 if len(bounds) else 0.1


def end_at(axes: Axes, points: pd.DataFrame, lower_edge: float) -> bool:
    """End the axis at its lower edge if anything is below it; whether that is so."""
    below = bool((points["smallest"] < lower_edge).any())
    if below:
        axes.set_ylim(bottom=lower_edge)
    style.log_axis(axes, "y")
    return below
