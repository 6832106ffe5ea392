"""Mean per-example gradient norm at every optimizer step."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dpsweep.analysis.frames import load_steps, load_trials, stack
from dpsweep.analysis.statistics import running_mean
from dpsweep.choice import choose
from dpsweep.figures import style
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import NormTrace

COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "clipping_bound",
    "learning_rate", "seed", "step", "mean_gradient_norm", "mean_gradient_norm_smooth",
]  # fmt: skip
_OF_THE_CELL = [
    "problem", "epsilon", "epochs", "batch_size", "clipping_bound", "learning_rate", "seed",
]  # fmt: skip
_MANY_STEPS = 100  # with more, a running mean over about 2% of them carries the line


def gradient_norms_by_step(
    study: Study, paths: Paths, figure: NormTrace, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per step of every (panel, epsilon): the first seed of the best cell."""
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
                    }
                ).assign(
                    panel=index, title=panel.title, **{name: row[name] for name in _OF_THE_CELL}
                )
            )
    return stack(lines, COLUMNS)


def plot(figure: NormTrace, numbers: pd.DataFrame) -> Figure:
    """Draw every step faintly, and a running mean where there are many."""
    count = len(figure.panels)
    drawing = style.panels_figure(count, height=2.1)
    all_axes = drawing.subplots(1, count, squeeze=False, sharey=True)[0]
    budgets = sorted(numbers["epsilon"].unique())
    colours = dict(zip(budgets, style.ordered_colours(len(budgets)), strict=True))
    for index, (axes, panel) in enumerate(zip(all_axes, figure.panels, strict=True)):
        for epsilon, trace in numbers[numbers["panel"] == index].groupby("epsilon"):
            if len(trace) > _MANY_STEPS:
                axes.plot(
                    trace["step"], trace["mean_gradient_norm"], color=colours[epsilon],
                    alpha=0.25, linewidth=0.4,
                )  # fmt: skip
            axes.plot(
                trace["step"], trace["mean_gradient_norm_smooth"], color=colours[epsilon],
                label=f"ε = {style.write_value(float(str(epsilon)))}",
            )  # fmt: skip
        axes.set_title(panel.title)
        axes.set_xlabel("Optimizer step")
        style.legend(axes, len(budgets))
    all_axes[0].set_ylabel("Mean gradient norm")
    return drawing
