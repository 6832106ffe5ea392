"""The best batch size against the number of epochs."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dpsweep.analysis.frames import load_trials, stack
from dpsweep.choice import choose
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import OptimalBatchSize

KEYS = ["epsilon", "epochs"]
COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "minimum", "maximum", "repeats",
    "train_size",
]  # fmt: skip


def best_batch_size_by_epochs(
    study: Study, paths: Paths, figure: OptimalBatchSize, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per (panel, epsilon, epochs): the chosen B, C tuned with it, and a range over seeds.

    The range is from the smallest to the largest B that a single seed would choose: how well the
    choice is determined. A choice without an accuracy is none.
    """
    frames = []
    for index, panel in enumerate(figure.panels):
        trials = load_trials(paths, study.cells(panel), missing)
        choices = _best_batch_sizes(trials)
        alone = [_best_batch_sizes(group) for _, group in trials.groupby("seed")]
        by_seed = pd.concat(alone or [choices]).groupby(KEYS)["batch_size"]
        range_over_seeds = by_seed.agg(minimum="min", maximum="max", repeats="size")
        problem = study.sweeps[panel.sweep].problem
        size = study.train_size(problem.dataset)
        frames.append(
            choices.join(range_over_seeds, on=KEYS).assign(
                panel=index, title=panel.title, problem=problem.name, train_size=size
            )
        )
    return stack(frames, COLUMNS)


def _best_batch_sizes(trials: pd.DataFrame) -> pd.DataFrame:
    choices = choose(trials, by=KEYS)
    return choices.loc[choices["selection_accuracy"].notna(), [*KEYS, "batch_size"]]


def plot(figure: OptimalBatchSize, numbers: pd.DataFrame) -> Figure:
    """Draw a line and a band for every epsilon; the full batch is a line of its own."""
    count = len(figure.panels)
    drawing = style.panels_figure(count, height=2.3)
    all_axes = drawing.subplots(1, count, squeeze=False, sharey=True)[0]
    budgets = sorted(numbers["epsilon"].unique())
    colours = dict(zip(budgets, style.ordered_colours(len(budgets)), strict=True))
    for index, (axes, panel) in enumerate(zip(all_axes, figure.panels, strict=True)):
        here = numbers[numbers["panel"] == index]
        axes.set_title(panel.title)
        axes.set_xlabel("Epochs")
        if here.empty:
            continue
        for position, (epsilon, line) in enumerate(here.groupby("epsilon")):
            colour = colours[epsilon]
            axes.fill_between(
                line["epochs"], line["minimum"], line["maximum"], color=colour, alpha=0.15,
                linewidth=0,
            )  # fmt: skip
            axes.plot(
                line["epochs"], line["batch_size"], color=colour,
                marker=style.MARKERS[position % len(style.MARKERS)],
                label=f"ε = {style.write_value(float(str(epsilon)))}",
            )  # fmt: skip
        full = int(here["train_size"].iloc[0])
        axes.axhline(full, color="#555555", linestyle=":", linewidth=1)
        axes.annotate(
            "Full", (1, full), (-2, 2), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", ha="right", size=6.5, color="#555555",
        )  # fmt: skip
        axes.set_yscale("log", base=2)
        style.value_axis(axes, "x", list(here["epochs"]), base=2)
    all_axes[0].set_ylabel("Best batch size")
    style.legend(all_axes[-1], len(budgets) if count == 1 else 4)
    return drawing
