"""Worlds of simulated studies, with effects that are smaller, larger or of another shape than the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpsweep.analysis.power import LOOSEST, Normal, Simulation, World, simulate
from dpsweep.analysis.statistics import AccuracyGrid, Array


@dataclass(frozen=True)
class OddWorld(World):
    """The accuracies of simulated studies over C, B and learning rate, by difficulty of the problem.

    Units are those of `dpsweep.analysis.power.World`, whose effects are the defaults. Distances are decades
    of C, and doublings of B and of the learning rate.

    Attributes:
        small_bound_cost: loss far below the gradient norms, per unit of difficulty.
        constant_cost: the same at every difficulty, so that adapting C gains nothing.
        large_bound_cost: loss per squared decade above the norms.
        narrowing: growth of that cost per unit of difficulty.
        norms: position of the norms between the smallest C (0) and the largest C (1) of a backbone and
            method, in decades.
        batch_cost: loss per squared doubling between B and the best B.
        batch_by_epsilon: doublings by which the best B falls per halving of epsilon.
        batch_by_epochs: doublings by which the best B grows per doubling of the epochs.
        rate_cost: loss per squared doubling between a learning rate and the best one.
        rate_by_batch: doublings by which the best rate grows per doubling of B.
        added_difficulty: of the hardest backbone, and of the hardest dataset.
        shrinkage: factor of all losses per unit of difficulty; below 1 the surface gets flatter.
        level: loss per unit of difficulty, at every setting.
        scatter: standard deviation of a seed at difficulty 0.
        growing_scatter: growth of the scatter per unit of difficulty.
        unequal_scatter: spread of the logarithm of the scatter between datasets.
        between_datasets: spread of the effects between datasets, relative to their size.
        between_problems: the same between comparisons of a dataset.
        families: effects of datasets are 1 plus or minus this, with equal probability.
        one_problem: factor of the effects of the first problem; all other problems have no effect.
        cell_scatter: spread of the logarithm of the scatter between the cells of a grid.
        test_noise: standard deviation of the noise that all seeds of a cell share (from the test set).
        diverging: share of the trials that end at ``chance``.
        outlier: loss of one trial of every grid.
        chance: the lowest accuracy.
        ceiling: upper limit of accuracies; differences shrink smoothly near it.
        ridge: loss per squared (decades of C + doublings of B), so that the best C depends on B.
        cliff: loss of every C above the norms.
        slope: loss per decade of C below the largest one.
        rates: share of the learning rates that are tried: the middle ones.
    """

    small_bound_cost: float = 0.65
    constant_cost: float = 0.0
    large_bound_cost: float = 10.0
    narrowing: float = 0.0
    norms: float = 0.9
    batch_cost: float = 0.3
    batch_by_epsilon: float = 0.8
    batch_by_epochs: float = 0.8
    rate_cost: float = 0.5
    rate_by_batch: float = 0.5
    added_difficulty: float = 3.0
    shrinkage: float = 1.0
    level: float = 5.0
    scatter: float = 0.35
    growing_scatter: float = 0.1
    unequal_scatter: float = 0.3
    between_datasets: float = 0.3
    between_problems: float = 0.3
    families: float = 0.0
    one_problem: float = 0.0
    cell_scatter: float = 0.0
    test_noise: float = 0.0
    diverging: float = 0.0
    outlier: float = 0.0
    chance: float = 0.0
    ceiling: float = 100.0
    ridge: float = 0.0
    cliff: float = 0.0
    slope: float = 0.0
    rates: float = 1.0
    first: tuple[str, ...] = ()

    def simulate(
        self,
        grids: Sequence[AccuracyGrid],
        studies: int,
        random: np.random.Generator,
        same_problems: bool = False,
    ) -> Simulation:
        """Return the grids with simulated accuracies; see `dpsweep.analysis.power.simulate`."""
        one = grids[0]
        world = replace(self, first=(one.dataset, one.backbone, one.method, one.optimizer))
        tried = [replace(grid, tuning=self._middle(grid.tuning)) for grid in grids]
        return simulate(tried, world, studies, random, same_problems)

    def _middle(self, tuning: Array) -> Array:
        """Return the learning rates that are tried."""
        count = tuning.shape[-1]
        tried = max(1, round(self.rates * count))
        return tuning[..., (count - tried) // 2 : (count - tried) // 2 + tried]

    def effect(self, problem: tuple[str, ...], normal: Normal) -> Array:
        """Return the size of the effects of a problem, relative to the paper's."""
        effect = 1 + self.between_datasets * normal(problem[0])
        effect = effect + self.between_problems * normal(*problem)
        if self.families:
            effect = effect + self.families * np.sign(normal(problem[0], "family"))
        if self.one_problem:
            effect = effect * self.one_problem * (problem[:-1] == self.first)
        return effect

    def surface(self, grid: AccuracyGrid, difficulty: float, effect: Array, norms: Array) -> Array:
        """Return exact accuracies in percent, shape (studies, B, C, learning rates)."""
        bounds = np.log10(grid.clipping_bound)[:, np.newaxis]
        sizes = np.log2(grid.batch_size)[:, np.newaxis, np.newaxis]
        rates = grid.tuning[0, 0]
        below = 1 - np.exp(-np.maximum(norms - bounds, 0) / 0.5)
        above = np.maximum(bounds - norms, 0) ** 2
        middle, top = sizes.mean(), sizes[-1].item()
        best_size = (
            0.3 * middle
            + 0.7 * top
            - effect * self.batch_by_epsilon * np.log2(LOOSEST / grid.epsilon)
            + effect * self.batch_by_epochs * np.log2(grid.epochs / 8)
        )
        best_rate = rates.mean() + self.rate_by_batch * (sizes - middle)
        loss = (
            (self.small_bound_cost * difficulty * effect + self.constant_cost) * below
            + self.slope * (bounds.max() - bounds)
            + self.cliff * (bounds > norms)
            + self.ridge * (bounds - norms + sizes - middle) ** 2
            + self.large_bound_cost * (1 + self.narrowing * difficulty) * above
            + self.batch_cost * (sizes - best_size) ** 2
            + self.rate_cost * (rates - best_rate) ** 2
        )
        reached = 90 - self.level * difficulty - self.shrinkage**difficulty * loss
        # Smoothly below the ceiling: at d points below it, one more point adds 1 - exp(-d / 3).
        if self.ceiling < 100:
            reached = self.ceiling - 3 * np.log1p(np.exp((self.ceiling - reached) / 3))
        exact: Array = np.maximum(reached, self.chance)
        return exact

    def scatter_of(self, grid: AccuracyGrid, difficulty: float, normal: Normal) -> Array:
        """Return the standard deviation of seeds in percent."""
        unequal: Array = np.exp(self.unequal_scatter * normal(grid.dataset, "scatter"))
        return self.scatter * (1 + self.growing_scatter * difficulty) * unequal

    def trained(
        self, exact: Array, scatter: Array, seeds: int, random: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return accuracies of all seeds, and of all learning rates of the first one."""
        cells = (*exact.shape[:-1], 1)
        scatter = scatter * np.exp(self.cell_scatter * random.standard_normal(cells))
        shared = exact + self.test_noise * random.standard_normal(cells)
        accuracy, tuning = super().trained(shared, scatter, seeds, random)
        accuracy[random.random(accuracy.shape) < self.diverging] = self.chance
        if self.outlier:
            flat = accuracy.reshape(len(exact), -1)
            lost = random.integers(flat.shape[-1], size=len(exact))
            flat[np.arange(len(exact)), lost] -= self.outlier
        return np.maximum(accuracy, self.chance), tuning
