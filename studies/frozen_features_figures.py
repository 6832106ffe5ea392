"""A figure of frozen-features.yaml that differs from the paper's."""

from dpsweep.figures import MethodComparison, figure, paper
from dpsweep.study.grid import Grids


@figure(paper.MAIN)
def fig5_autoclip_vs_tuned(grids: Grids) -> MethodComparison:
    """AUTO-S beside flat clipping, for each network."""
    return paper.automatic_comparison(
        grids,
        [
            paper.automatic_beside_tuned(grids, "ViT-Tiny, block 6"),
            paper.automatic_beside_tuned(grids, "ViT-Tiny", backbone="strong"),
            paper.automatic_beside_tuned(grids, "MiniLM", **paper.TEXT),
        ],
    )
