"""Figures of the paper's weak backbone, also for the strong one."""

from dpsweep.figures import NoiseCurve, OptimalBatchSize, Panel, figure, paper
from dpsweep.study.grid import Grids


@figure(paper.MAIN)
def fig6_effective_noise(grids: Grids) -> NoiseCurve:
    """Noise of one step, and of all steps."""
    return paper.noise_by_batch_size(grids.one("main", "strong", several=("batch_size",)))


@figure(paper.MAIN)
def fig7_cumulative_noise(grids: Grids) -> NoiseCurve:
    """Cumulative noise."""
    return paper.cumulative_noise(grids.one("large", "strong", several=paper.BY_EPOCHS))


@figure(paper.NOISE, name="effective_noise_{dataset}", each={"dataset": "large"})
def effective_noise(grids: Grids, dataset: str) -> NoiseCurve:
    """Noise of one step."""
    return paper.effective_noise(grids, dataset, "strong")


@figure(paper.NOISE, name="cumulative_noise_{dataset}", each={"dataset": "large"})
def cumulative_noise_of(grids: Grids, dataset: str) -> NoiseCurve:
    """Cumulative noise."""
    return paper.cumulative_noise(grids.one(dataset, "strong", several=paper.BY_EPOCHS))


@figure("Optimal batch size")
def optimal_batch_size(grids: Grids) -> OptimalBatchSize:
    """The best batch size against the number of epochs."""
    panel = Panel.of(grids.one("large", "strong", several=paper.BY_EPOCHS))
    return paper.best_batch_sizes(grids, [panel])
