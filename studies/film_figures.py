"""Figures of film.yaml that differ from the paper's."""

from dpsweep.figures import figure, paper
from dpsweep.figures.families import MethodComparison


@figure(paper.MAIN)
def fig5_autoclip_vs_tuned() -> MethodComparison:
    """AUTO-S beside flat clipping, for fine classes and coarse ones."""
    panels = [
        paper.automatic_beside_tuned(title="100 classes"),
        paper.automatic_beside_tuned(title="20 classes", dataset="large"),
    ]
    return paper.fig5_autoclip_vs_tuned().model_copy(update={"panels": panels})
