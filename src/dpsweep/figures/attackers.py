"""Trade-off curves of the best attacker on one person, with a line for each epsilon."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from dpsweep.analysis.frames import load_trials, stack, stack_panels
from dpsweep.base.units import count
from dpsweep.figures import style
from dpsweep.privacy import Sampling
from dpsweep.privacy.trade_off import mechanism_trade_off
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import AttackerCurves, Panel

_MECHANISM = ["epsilon", "delta", "epochs", "train_size", "batch_size", "steps", "noise_multiplier"]
COLUMNS = [
    "panel", "title", "dataset", "backbone", "method", *_MECHANISM, "full_batch", "records",
    "false_positive_rate", "true_positive_rate", "advantage",
]  # fmt: skip
_LEAST = 1e-4
_RATES = np.unique(np.append(np.geomspace(_LEAST, 1, 81), [0.05]))
"""False positive rates of the points of a curve, among them 0.1, 1, 5 and 10 %."""
_DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")


def compute_attacker_curves(
    study: Study, paths: Paths, figure: AttackerCurves, missing: list[Path] | None = None
) -> pd.DataFrame:
    """Return one row per point; each panel, epsilon and number of records has a curve.

    Rates are those of `dpsweep.privacy.trade_off` for the noise, sampling rate and steps of the private
    trials. They do not depend on accuracies.

    For arguments see `dpsweep.figures.accuracy_map.compute_heatmap`.
    """

    def of_panel(panel: Panel) -> pd.DataFrame:
        trials = load_trials(study, paths, study.cells(panel), missing)
        private = trials[trials["epsilon"] < np.inf].drop_duplicates(_MECHANISM)
        rows = private.sort_values("epsilon").to_dict("records")
        return stack(
            [_curve(row, records) for row in rows for records in figure.records], COLUMNS[2:]
        )

    return stack_panels(figure.panels, of_panel, COLUMNS)


def _curve(trial: dict[Any, Any], records: int) -> pd.DataFrame:
    sampling = Sampling(trial["train_size"], trial["batch_size"], trial["steps"])
    curve = mechanism_trade_off(trial["epsilon"], trial["noise_multiplier"], sampling, records)
    return pd.DataFrame(
        {
            **{name: trial[name] for name in COLUMNS[2:] if name in trial},
            "records": records,
            "false_positive_rate": _RATES,
            "true_positive_rate": [curve.true_positive_rate(float(rate)) for rate in _RATES],
            "advantage": curve.advantage,
        }
    )


def plot_attacker_curves(figure: AttackerCurves, numbers: pd.DataFrame) -> Figure:
    """Draw a line for every epsilon, and the diagonal of random guesses."""
    drawing, panels = style.panels(numbers, height=2.6, sharey=True)
    colours = style.colours_by(numbers["epsilon"])
    dashes = {
        records: _DASHES[place % len(_DASHES)] for place, records in enumerate(figure.records)
    }
    for (axes,), panel in panels:
        axes.plot([_LEAST, 1], [_LEAST, 1], color=style.GREY, linewidth=0.8)
        for records, look in dashes.items():
            for epsilon, line in panel[panel["records"] == records].groupby("epsilon"):
                x, y = line["false_positive_rate"], line["true_positive_rate"]
                axes.plot(x, y, color=colours[epsilon], linestyle=look, linewidth=1.2)
        axes.set(xlim=(_LEAST, 1), ylim=(_LEAST, 1.3), title=panel["title"].iloc[0])
        style.log_axis(axes, "x")
        style.log_axis(axes, "y")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    style.label_row(
        [axes for (axes,), _ in panels], style.log_label("Wrongly taken for present", len(panels))
    )
    drawing.axes[0].set_ylabel(style.log_label("Recognised"))
    budgets = dict(zip(style.write_values(colours).values(), colours.values(), strict=True))
    entries = style.legend_lines(budgets)
    drawing.legend(handles=entries, title="ε", loc="outside upper center", ncols=8)
    if len(dashes) > 1:
        lines: list[Artist] = [
            Line2D(
                [], [], color="black", linestyle=look, linewidth=1, label=count(records, "record")
            )
            for records, look in dashes.items()
        ]
        drawing.axes[0].legend(handles=lines, loc="lower right")
    return drawing
