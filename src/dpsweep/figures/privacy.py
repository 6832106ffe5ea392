"""Figures of what privacy costs and gives.

These are noise against batch size or number of steps, coloured by the loss of accuracy, and trade-off curves
of the best attacker on one person.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from dpsweep.analysis import frames
from dpsweep.base.formatting import count
from dpsweep.base.lazy import matplotlib, np, pd, sns
from dpsweep.figures import style
from dpsweep.privacy import Sampling, trade_off
from dpsweep.privacy.noise import noise
from dpsweep.study import Paths, Study, choice, targets
from dpsweep.study.grid import Panel, Selection
from dpsweep.study.section import Settings

_NOISE = [
    "axes", "title", "problem", "epsilon", "epochs", "batch_size", "full_batch", "steps",
    "noise_multiplier", "quantity", "noise", "clipping_bound", "learning_rate", "macro_accuracy",
    "cross_fitted", "accuracy_difference", "repeats", "diverged",
]  # fmt: skip

_LABELS = {
    "effective": "σ / B",
    "cumulative": r"$\sigma\sqrt{T}$",
    "cumulative_effective": r"$\sigma\sqrt{T}\;/\;B$",
}


# All worse points have the same colour, so that the colours resolve small differences to the best.
_DARKEST = -0.1


class NoiseAxes(Settings):
    """One axes of a noise figure."""

    title: str
    quantity: Literal["effective", "cumulative", "cumulative_effective"]
    """sigma/B, sigma*sqrt(T), sigma*sqrt(T)/B"""
    x: Literal["batch_size", "steps"]


class NoiseCurve(targets.Figure):
    """Noise against B or T, coloured by accuracy minus the best at that (epsilon, epochs).

    A frame for `draw` has columns ``axes`` (a position in the field of this name), ``epsilon``, ``epochs``,
    ``batch_size``, ``steps``, ``noise`` and ``accuracy_difference``; optional ``full_batch``,
    ``clipping_bound``, ``learning_rate``.
    """

    family = "noise_curve"
    title = "Noise and accuracy"
    part = "cells"
    tunes = True
    shows_means = True
    tuning_note = "The figure names the range of what was chosen, the CSV has it for every point."
    drawn = ("batch_size",)

    cells: Selection
    axes: Annotated[list[NoiseAxes], Field(min_length=1)]
    minimum_steps: dict[str, PositiveInt] = {}
    """the fewest steps that suffice according to a paper, by problem
    (<dataset>_<backbone>_<method>): a vertical line if x is steps and that problem is drawn"""

    @property
    def marked_steps(self) -> int | None:
        """The steps at the vertical line; the number of a paper holds for its own problem only."""
        if not self.minimum_steps or all(axes.x != "steps" for axes in self.axes):
            return None
        return self.minimum_steps.get(self.cells.problem.name)

    def panel_titles(self) -> list[str]:
        """Return the titles of its axes."""
        return [axes.title for axes in self.axes]

    def caption_end(self) -> str:
        """Return the explanation of the vertical line, if there is one."""
        steps = self.marked_steps
        if steps is None:
            return ""
        return f"The vertical line is at {steps} steps, the fewest that suffice according to the paper."

    keys = ("axes", "epsilon", "epochs", "batch_size")
    needs = ("steps", "noise", "accuracy_difference")

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per point of each axes: noise of the run, and accuracy minus the best of its line.

        C and learning rate are tuned for each (epsilon, epochs, B). A line is one (epsilon, epochs).
        """
        trials = frames.load_trials(study, paths, self.cells.cells(), missing)
        points = choice.choose(trials, by=["epsilon", "epochs", "batch_size"])
        points = points.rename(columns={"centre": "macro_accuracy"})
        best = points.groupby(["epsilon", "epochs"])["macro_accuracy"].transform("max")
        points["accuracy_difference"] = points["macro_accuracy"] - best
        runs = points[["noise_multiplier", "steps", "batch_size"]].to_numpy()
        parts = []
        for index, axes in enumerate(self.axes):
            values = [
                noise(axes.quantity, sigma, int(steps), int(size)) for sigma, steps, size in runs
            ]
            parts.append(
                points.assign(axes=index, title=axes.title, quantity=axes.quantity, noise=values)
            )
        return frames.stack(parts, _NOISE)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a line for each (epsilon, epochs), all in one axes if there is one number of epochs.

        Otherwise each epsilon has a column. Noise grows with epochs about as fast as with 1/epsilon, so
        several of both would overlap in one axes.
        """
        lowest = numbers["accuracy_difference"].min()
        norm = matplotlib.colors.Normalize(max(lowest, _DARKEST) if lowest < 0 else -1e-3, 0)
        one = numbers["epochs"].nunique() <= 1
        key, rows = ("epsilon" if one else "epochs"), len(self.axes)
        if one:
            budgets = [("", numbers)]
            drawing = style.panels_figure(rows, height=2.7)
            grid = drawing.subplots(1, rows, squeeze=False).T
        else:
            budgets = [
                (text, numbers[numbers["epsilon"] == each])
                for each, text in style.write_epsilons(sorted(numbers["epsilon"].unique())).items()
            ]
            drawing = style.panels_figure(2, height=1.8 * rows + 1.0)
            grid = drawing.subplots(rows, len(budgets), squeeze=False, sharex="row", sharey="row")
            for axes, (epsilon, _) in zip(grid[0], budgets, strict=True):
                axes.set_title(epsilon)
        for place, (settings, row) in enumerate(zip(self.axes, grid, strict=True)):
            for axes, (_, here) in zip(row, budgets, strict=True):
                labels = 6 if one else max(2, 12 // len(budgets))
                _draw(axes, self, settings, here[here["axes"] == place], norm, key, labels)
            x_label = style.BATCH_SIZE_LABEL if settings.x == "batch_size" else "Steps T"
            style.label_row(row, style.log_label(x_label))
            label = style.log_label(_LABELS[settings.quantity])
            title = style.literal(settings.title)
            row[0].set_ylabel(label if one else f"{title}\n{label}")
            if one:
                row[0].set_title(title)
        bar = drawing.colorbar(
            matplotlib.cm.ScalarMappable(norm, style.look().colour_map), ax=drawing.axes, pad=0.02,
            extend="min" if lowest < _DARKEST else "neither",
            # Many columns need the width.
            location="right" if one else "bottom", aspect=30 if one else 60,
        )  # fmt: skip
        bar.set_label("Accuracy − best of the line")
        bar.ax.grid(False)
        drawing.legend(
            handles=_legend(self, numbers, key), title="ε" if one else "Epochs",
            loc="outside upper center", ncols=8,
        )  # fmt: skip
        bounds = _range("C", style.write_values(numbers["clipping_bound"]))
        rates = _range("η", style.write_values(numbers["learning_rate"], style.write_rate))
        if chosen := ", ".join(filter(None, [bounds, rates])):
            style.note(drawing, f"Settings of the points: {chosen}.")
        return drawing


def _range(symbol: str, written: Mapping[float, str]) -> str:
    if not written:
        return ""
    ends = dict.fromkeys([written[min(written)], written[max(written)]])
    return f"{symbol} {'from' if len(ends) > 1 else '='} {' to '.join(ends)}"


def _markers(numbers: pd.DataFrame, key: str) -> dict[float, str]:
    values = sorted(numbers[key].unique())
    return dict(zip(values, style.MARKERS * len(values), strict=False))


def _legend(figure: NoiseCurve, numbers: pd.DataFrame, key: str) -> list[Any]:
    markers = _markers(numbers, key)
    texts = style.write_values(markers)
    entries = [
        style.legend_line(
            texts[value], "#999999", linewidth=0.7, marker=marker, markerfacecolor=style.GREY,
            markeredgecolor="none",
        )
        for value, marker in markers.items()
    ]  # fmt: skip
    if figure.marked_steps is not None:
        label, look = f"{figure.marked_steps} steps", {"linestyle": "--", "linewidth": 1}
        entries.append(style.legend_line(label, style.look().hard, **look))
    return entries


def _draw(
    axes: matplotlib.axes.Axes,
    figure: NoiseCurve,
    settings: NoiseAxes,
    numbers: pd.DataFrame,
    norm: matplotlib.colors.Normalize,
    key: str,
    labels: int,
) -> None:
    sns.lineplot(
        numbers, x=settings.x, y="noise", units=key, estimator=None, errorbar=None, legend=False,
        color="#999999", linewidth=0.7, zorder=1, ax=axes,
    )  # fmt: skip
    known = numbers[numbers["accuracy_difference"].notna()]  # the others have no marker
    if len(known):
        sns.scatterplot(
            known, x=settings.x, y="noise", hue="accuracy_difference", hue_norm=norm,
            palette=style.look().colour_map, style=key, markers=_markers(numbers, key), s=13,
            edgecolor="#333333", linewidth=0.3, legend=False, zorder=2, ax=axes,
        )  # fmt: skip
    axes.set(xlabel="", ylabel="")
    axes.margins(0.08)
    if settings.x == "batch_size":
        sizes = dict(zip(numbers["batch_size"], numbers["full_batch"].astype(bool), strict=True))
        texts = [style.write_batch_size(size, full, power=True) for size, full in sizes.items()]
        style.value_axis(axes, "x", list(sizes), texts, base=2, labels=labels)
    else:
        style.log_axis(axes, "x")
        if figure.marked_steps is not None:
            axes.axvline(figure.marked_steps, color=style.look().hard, linestyle="--", linewidth=1)
    style.log_axis(axes, "y")


# -- attackers -----------------------------------------------------------------------------

_MECHANISM = ["epsilon", "delta", "epochs", "train_size", "batch_size", "steps", "noise_multiplier"]

_CURVE = [
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

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per point; each panel, epsilon and number of records has a curve.

        Rates are those of `dpsweep.privacy.trade_off` for the noise, sampling rate and steps of the private
        trials. They do not depend on accuracies.
        """

        def of_panel(panel: Panel) -> pd.DataFrame:
            trials = frames.load_trials(study, paths, panel.cells(), missing)
            private = trials[trials["epsilon"] < np.inf].drop_duplicates(_MECHANISM)
            rows = private.sort_values("epsilon").to_dict("records")
            return frames.stack(
                [_curve(row, records) for row in rows for records in self.records], _CURVE[2:]
            )

        return frames.stack_panels(self.panels, of_panel, _CURVE)

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
            **{name: trial[name] for name in _CURVE[2:] if name in trial},
            "records": records,
            "false_positive_rate": rates,
            "true_positive_rate": [curve.true_positive_rate(float(rate)) for rate in rates],
            "advantage": curve.advantage,
        }
    )
