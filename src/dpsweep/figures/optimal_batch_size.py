"""The best batch size against the number of epochs."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dpsweep.analysis.frames import load_trials
from dpsweep.figures import lines, style
from dpsweep.study import Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.study.targets import OptimalBatchSize

KEYS = ["epsilon", "epochs"]
COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "mean_batch_size", "minimum", "maximum", "repeats",
    "batch_size", "train_size", "clipping_bound", "learning_rate",
]  # fmt: skip


def best_batch_size_by_epochs(
    study: Study, paths: Paths, figure: OptimalBatchSize, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per (panel, epsilon, epochs): the best B of every seed alone, and that of all together.

    ``mean_batch_size``, ``minimum`` and ``maximum`` are of the B that each seed alone would choose: the
    paper draws their mean. ``batch_size`` is the choice of all seeds together, with its C and learning
    rate. A choice without an accuracy is none.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    frames = []
    for index, panel in enumerate(figure.panels):
        trials = load_trials(paths, study.cells(panel), missing)
        if trials.empty:
            continue  # partial: nothing to choose from yet
        alone = [
            _best_batch_sizes(group).assign(seed=seed) for seed, group in trials.groupby("seed")
        ]
        by_seed = pd.concat(alone).pivot(index=KEYS, columns="seed", values="batch_size")
        over_seeds = by_seed.agg(["mean", "min", "max", "count"], axis=1)
        over_seeds.columns = ["mean_batch_size", "minimum", "maximum", "repeats"]
        choices = _best_batch_sizes(trials).join(over_seeds, on=KEYS)
        problem = panel.problem
        size = study.train_size(problem.dataset)
        frames.append(
            choices.join(by_seed.add_prefix("seed_"), on=KEYS).assign(
                panel=index, title=panel.title, problem=problem.name, train_size=size
            )
        )
    return lines.stack(frames, COLUMNS)


def _best_batch_sizes(trials: pd.DataFrame) -> pd.DataFrame:
    choices = choose(trials, by=KEYS)
    columns = [*KEYS, "batch_size", "clipping_bound", "learning_rate"]
    return choices.loc[choices["selection_accuracy"].notna(), columns]


def plot(_: OptimalBatchSize, numbers: pd.DataFrame) -> Figure:
    """Draw the mean over seeds as a line for every epsilon, and seeds around it; N is a dotted line."""
    budgets = sorted(numbers["epsilon"].unique())
    colours = dict(zip(budgets, style.ordered_colours(len(budgets)), strict=True))
    labels = {epsilon: f"ε = {style.write_value(epsilon)}" for epsilon in budgets}
    points = numbers.assign(
        centre=numbers["mean_batch_size"],
        line=numbers["epsilon"],
        label=numbers["epsilon"].map(labels),
    )
    panels = [panel for _, panel in points.groupby("panel")]
    drawing, all_axes = lines.plot(
        points, "epochs", [[colours[each] for each in panel["epsilon"].unique()] for panel in panels],
        chosen=["clipping_bound", "learning_rate"], height=2.0, share_y=True, apart=True,
    )  # fmt: skip
    for axes, panel in zip(all_axes, panels, strict=True):
        full = int(panel["train_size"].iloc[0])
        axes.axhline(full, color=style.GREY, linestyle=":", linewidth=1)
        axes.annotate(
            "Full", (1, full), (2, 0), xycoords=axes.get_yaxis_transform(),
            textcoords="offset points", ha="left", va="center", size=6.5, color=style.GREY,
        )  # fmt: skip
        axes.set_yscale("log", base=2)
        axes.margins(y=0.08)
        style.value_axis(axes, "x", list(panel["epochs"]), base=2)
    for axes in drawing.axes[-len(panels) :]:
        axes.set_xlabel(style.log_label("Epochs", len(panels)))
    all_axes[0].set_ylabel(style.log_label("Mean best batch size", panels=3))
    style.note(drawing, "Lines are drawn a little apart where they would hide each other.")
    return drawing
