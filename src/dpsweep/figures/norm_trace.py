"""Mean per-example gradient norm at every optimizer step."""

from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from dpsweep.analysis.frames import load_steps, load_trials, stack
from dpsweep.analysis.statistics import running_mean
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.study.targets import NormTrace

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "clipping_bound",
    "learning_rate", "seed", "step", "mean_gradient_norm", "mean_gradient_norm_smooth",
    "running_mean_over", "full_batch",
]  # fmt: skip
_OF_THE_CELL = [
    "problem", "epsilon", "epochs", "batch_size", "clipping_bound", "learning_rate", "seed",
]  # fmt: skip
_MANY_STEPS = 100  # with more, a running mean over about 2% of them carries the line


def gradient_norms_by_step(
    study: Study, paths: Paths, figure: NormTrace, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per step of every (panel, epsilon): the first seed of the best cell.

    Arguments are those of `dpsweep.figures.draw.Compute`.
    """
    lines = []
    for index, panel in enumerate(figure.panels):
        cells = {cell.name: cell for cell in study.cells(panel)}
        trials = load_trials(paths, cells.values(), missing)
        for row in choose(trials, by=["epsilon"]).to_dict("records"):
            steps = load_steps(paths, [cells[row["cell"]]], missing)
            trace = steps[steps["trial_key"] == row["trial_key"]].sort_values("step")
            if trace.empty:
                continue  # partial: its steps are not there yet
            norms = trace["mean_gradient_norm"].to_numpy(dtype=float)
            window = 1 if norms.size <= _MANY_STEPS else 2 * (norms.size // 100) + 1
            lines.append(
                pd.DataFrame(
                    {
                        "step": trace["step"].to_numpy(),
                        "mean_gradient_norm": norms,
                        "mean_gradient_norm_smooth": running_mean(norms, window),
                        "running_mean_over": window,
                        "full_batch": row["full_batch"],
                    }
                ).assign(
                    panel=index, title=panel.title, **{name: row[name] for name in _OF_THE_CELL}
                )
            )
    return stack(lines, COLUMNS)


def plot(_: NormTrace, numbers: pd.DataFrame) -> Figure:
    """Draw a line for every epsilon: every step thinly, and a running mean where there are many."""
    panels = [panel for _, panel in numbers.groupby("panel")]
    drawing = style.panels_figure(len(panels) + 1, height=2.1)
    all_axes = drawing.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    budgets = sorted(numbers["epsilon"].unique())
    colours = dict(zip(budgets, style.ordered_colours(len(budgets)), strict=True))
    for axes, panel in zip(all_axes, panels, strict=True):
        drawn = {"x": "step", "hue": "epsilon", "palette": colours, "legend": False}
        drawn |= {"estimator": None, "errorbar": None, "ax": axes}
        if panel["running_mean_over"].max() > 1:
            sns.lineplot(panel, y="mean_gradient_norm", alpha=0.25, linewidth=0.4, **drawn)
        sns.lineplot(panel, y="mean_gradient_norm_smooth", **drawn)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set(title=panel["title"].iloc[0], xlabel="Optimizer step", ylabel="")
        axes.legend(
            handles=[
                Line2D(
                    [], [], color=colours[line["epsilon"]],
                    label=f"ε = {style.write_value(line['epsilon'])} ({style.write_chosen(line)})",
                )
                for _, line in panel.drop_duplicates("epsilon").iterrows()
            ],
            loc="center left", bbox_to_anchor=(1.0, 0.5),
        )  # fmt: skip
    all_axes[0].set_ylabel("Mean gradient norm")
    window = int(numbers["running_mean_over"].max())
    if window > 1:
        style.note(drawing, f"Thin: every step. Thick: running mean over up to {window} steps.")
    return drawing
