"""Figures of frozen-features.yaml: figures of the paper's weak backbone, also for the strong one."""

from dpsweep.figures import figure, paper
from dpsweep.figures.families import (
    MethodComparison,
    NoiseCurve,
    OptimalBatchSize,
    Panel,
    Selection,
)


@figure(paper.MAIN)
def fig5_autoclip_vs_tuned() -> MethodComparison:
    """AUTO-S beside flat clipping, for each network."""
    panels = [
        paper.automatic_beside_tuned(title="ViT-Tiny, block 6"),
        paper.automatic_beside_tuned(title="ViT-Tiny", backbone="strong"),
        paper.automatic_beside_tuned(title="MiniLM", **paper.TEXT),
    ]
    return paper.fig5_autoclip_vs_tuned().model_copy(update={"panels": panels})


@figure(paper.MAIN)
def fig6_effective_noise() -> NoiseCurve:
    """Noise of one step, and of all steps."""
    return paper.noise_by_batch_size(Selection(dataset="main", backbone="strong"))


@figure(paper.MAIN)
def fig7_cumulative_noise() -> NoiseCurve:
    """Cumulative noise."""
    return paper.cumulative_noise(Selection(dataset="large", backbone="strong", epochs="all"))


@figure(paper.NOISE, name="effective_noise_{dataset}", each={"dataset": "large"})
def effective_noise(dataset: str) -> NoiseCurve:
    """Noise of one step."""
    return paper.effective_noise(dataset=dataset, backbone="strong")


@figure(paper.NOISE, name="cumulative_noise_{dataset}", each={"dataset": "large"})
def cumulative_noise_of(dataset: str) -> NoiseCurve:
    """Cumulative noise."""
    return paper.cumulative_noise(Selection(dataset=dataset, backbone="strong", epochs="all"))


@figure("Optimal batch size")
def optimal_batch_size() -> OptimalBatchSize:
    """The best batch size against the number of epochs."""
    panels = [Panel(dataset="large", backbone="strong", epochs="all")]
    return paper.optimal_batch_size().model_copy(update={"panels": panels})
