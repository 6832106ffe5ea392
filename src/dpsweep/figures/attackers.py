"""Trade-off curves of the best attacker on one person, with a line for each epsilon."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from dpsweep.analysis import frames
from dpsweep.base.lazy import matplotlib, np, pd
from dpsweep.base.units import count
from dpsweep.figures import style
from dpsweep.privacy import Sampling, trade_off
from dpsweep.study import Study, targets
from dpsweep.study.grid import Panel
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Missing

_MECHANISM = ["epsilon", "delta", "epochs", "train_size", "batch_size", "steps", "noise_multiplier"]

COLUMNS = [
    "panel", "title", "dataset", "backbone", "method", *_MECHANISM, "full_batch", "records",
    "false_positive_rate", "true_positive_rate", "advantage",
]  # fmt: skip

_LEAST = 1e-4


_DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")


class AttackerCurves(targets.Figure):
    """The true positive rate of the best membership attack against its false positive rate.

    A line per epsilon. It is computed from noise, sampling rate and steps, not from accuracies.

    A frame for `draw` has columns ``epsilon``, ``false_positive_rate`` and ``true_positive_rate``; optional
    ``records`` (of one person), ``panel``, ``title``.
    """

    family = "attacker_curves"
    title = "What an attacker can tell"
    single = ("epochs", "batch_size")

    records: Annotated[list[PositiveInt], Field(min_length=1)] = [1]
    """numbers of records of one person; a line for each"""
    panels: targets.Panels

    keys = ("epsilon", "false_positive_rate")
    needs = ("true_positive_rate",)

    def compute(self, study: Study, paths: Paths, missing: Missing = None) -> pd.DataFrame:
        """Return one row per point; each panel, epsilon and number of records has a curve.

        Rates are those of `dpsweep.privacy.trade_off` for the noise, sampling rate and steps of the private
        trials. They do not depend on accuracies.
        """

        def of_panel(panel: Panel) -> pd.DataFrame:
            trials = frames.load_trials(study, paths, panel.cells(), missing)
            private = trials[trials["epsilon"] < np.inf].drop_duplicates(_MECHANISM)
            rows = private.sort_values("epsilon").to_dict("records")
            return frames.stack(
                [_curve(row, records) for row in rows for records in self.records], COLUMNS[2:]
            )

        return frames.stack_panels(self.panels, of_panel, COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a line for every epsilon, and the diagonal of random guesses."""
        drawing, panels = style.panels(numbers, height=2.6, sharey=True)
        colours = style.colours_by(numbers["epsilon"])
        of_a_person = sorted(map(int, numbers["records"].unique()))
        dashes = {
            records: _DASHES[place % len(_DASHES)] for place, records in enumerate(of_a_person)
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
                axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        style.label_row(
            [axes for (axes,), _ in panels],
            style.log_label("Wrongly taken for present", len(panels)),
        )
        drawing.axes[0].set_ylabel(style.log_label("Recognised"))
        budgets = dict(zip(style.write_values(colours).values(), colours.values(), strict=True))
        entries = style.legend_lines(budgets)
        drawing.legend(handles=entries, title="ε", loc="outside upper center", ncols=8)
        if len(dashes) > 1:
            drawing.axes[0].legend(
                handles=[
                    style.legend_line(count(records, "record"), linestyle=look, linewidth=1)
                    for records, look in dashes.items()
                ],
                loc="lower right",
            )
        return drawing


def _curve(trial: dict[Any, Any], records: int) -> pd.DataFrame:
    rates = np.unique(
        np.append(np.geomspace(_LEAST, 1, 81), [0.05])
    )  # among them 0.1, 1, 5 and 10 %
    sampling = Sampling(trial["train_size"], trial["batch_size"], trial["steps"])
    curve = trade_off.mechanism_trade_off(
        trial["epsilon"], trial["noise_multiplier"], sampling, records
    )
    return pd.DataFrame(
        {
            **{name: trial[name] for name in COLUMNS[2:] if name in trial},
            "records": records,
            "false_positive_rate": rates,
            "true_positive_rate": [curve.true_positive_rate(float(rate)) for rate in rates],
            "advantage": curve.advantage,
        }
    )
