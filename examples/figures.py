"""Figures of your own, which a study names (``figures: figures.py``): a series, and a family."""

from pathlib import Path

import matplotlib.figure
import pandas as pd
import seaborn as sns

from dpsweep.analysis.frames import load_trials
from dpsweep.figures import Figure, Heatmap, Panel, figure
from dpsweep.study import Paths, Study
from dpsweep.study.grid import Grids
from dpsweep.study.targets import Words


@figure("Learning rates", name="map_{dataset}", each={"dataset": "main"})
def bounds_and_batch_sizes(grids: Grids, dataset: str) -> Heatmap:
    """Accuracy over C and B with the tightest budget."""
    grid = grids.one(dataset, several=("clipping_bound", "batch_size"))
    tight = grid.at(epsilon=min(grid.epsilon))
    say = Words.of([tight])
    return Heatmap(
        caption=f"{say.backbone} on {say.dataset}, {say.epochs}, {say.epsilon}; mean of {say.seeds}.",
        panels=[Panel.of(tight)],
    )


class LearningRateCurve(Figure):
    """Accuracy against the learning rate, a line for each ε; B and C are the best for each rate."""

    family = "learning_rate_curve"
    title = "Accuracy by learning rate"
    single = ("epochs",)
    panels: list[Panel]

    def compute(
        self, study: Study, paths: Paths, missing: list[Path] | None = None
    ) -> pd.DataFrame:
        """One row per (panel, epsilon, learning rate): the best accuracy of the first seed."""
        frames = []
        for panel in self.panels:
            trials = load_trials(study, paths, panel.cells(), missing).query("seed == 1")
            best = trials.groupby(["epsilon", "learning_rate"])["macro_accuracy"].max()
            frames.append(best.reset_index().assign(title=panel.title))
        return pd.concat(frames)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a line for every epsilon."""
        grid = sns.relplot(
            numbers, x="learning_rate", y="macro_accuracy", hue="epsilon", col="title", kind="line",
            marker="o", height=2, estimator=None, errorbar=None,
        )  # fmt: skip
        grid.set(xscale="log", xlabel="Learning rate η", ylabel="Macro accuracy")
        drawing: matplotlib.figure.Figure = grid.figure
        return drawing


@figure("Learning rates")
def learning_rates(grids: Grids) -> LearningRateCurve:
    """Accuracy by learning rate."""
    grid = grids.one()
    say = Words.of([grid])
    caption = f"Accuracy of {say.backbone} on {say.dataset} by learning rate, {say.epochs}."
    return LearningRateCurve(caption=caption, panels=[Panel.of(grid)])
