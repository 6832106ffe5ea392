"""Figures of film.yaml that differ from the paper's."""

from dpsweep.figures import MethodComparison, figure, paper
from dpsweep.study.grid import Grids


@figure(paper.MAIN)
def fig5_autoclip_vs_tuned(grids: Grids) -> MethodComparison:
    """AUTO-S beside flat clipping, for fine classes and coarse ones."""
    return paper.automatic_comparison(
        grids,
        [
            paper.automatic_beside_tuned(grids, "100 classes"),
            paper.automatic_beside_tuned(grids, "20 classes", dataset="large"),
        ],
    )
