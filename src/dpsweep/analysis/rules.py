"""The paper's tuning rules (its table 1), one function each: what is compared, and what counts for it.

A rule takes all grids of a study and yields comparisons. A comparison is a series of grids that differ
in one condition; its effect is a number that is **positive where things go as the rule says**.
Two comparisons of one rule never share a trial, so their noise is independent. There are two kinds:

- Where the optimum lies: C or B of the cell that the rule of choice takes (`dpsweep.choice`), in
  decades of C (factors of 10) or doublings of B.
- What advice is worth: test accuracy of what the advice chooses minus that of what it advises against,
  cross-fitted, because the better of two noisy numbers looks better than it is.

Which grids decide an optimum is settled by `dpsweep.analysis.grids`: the grids of a comparison are cut to
the C (or B) that all of them have.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpsweep.analysis.grids import (
    CONDITIONS,
    Condition,
    Grid,
    Position,
    alike,
    with_common_batch_sizes,
    with_common_bounds,
)
from dpsweep.study.cells import number


@dataclass(frozen=True)
class Comparison:
    """One piece of evidence for or against a rule.

    Attributes:
        grids: what is compared, in the order of ``found``.
        found: what was found in each grid, in words: the chosen C or B, or a gain.
        effect: positive as the rule says; in the rule's unit.
    """

    grids: Sequence[Grid]
    found: Sequence[str]
    effect: float

    @property
    def row(self) -> dict[str, object]:
        """As a row of a table: every condition (its values, where they differ), found, effect."""
        conditions = {
            name: ", ".join(dict.fromkeys(_written(getattr(grid, name)) for grid in self.grids))
            for name in CONDITIONS
        }
        seeds = min(grid.accuracy.shape[2] for grid in self.grids)
        return conditions | {"found": ", ".join(self.found), "seeds": seeds, "effect": self.effect}


@dataclass(frozen=True)
class Rule:
    """One line of the paper's table.

    Attributes:
        key: its name in files.
        condition: what changes.
        implication: what the paper advises then.
        effect: what is measured, so that a positive number is what the rule says.
        unit: of the effect.
        compare: yields all comparisons that the grids of a study allow.
    """

    key: str
    condition: str
    implication: str
    effect: str
    unit: str
    compare: Callable[[Sequence[Grid]], Iterator[Comparison]]


def lower_epsilon_larger_bound(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """Lower epsilon: increase C.

    A comparison is a problem with a number of epochs at two or more epsilons. Its effect: how many
    decades the best C grows by per halving of epsilon (least-squares slope), B tuned with it.
    """
    for series in map(with_common_bounds, alike(grids, "epsilon")):
        if series:
            bounds = [grid.best_bound for grid in series]
            effect = -_slope(np.log2([grid.epsilon for grid in series]), np.log10(bounds))
            yield Comparison(series, [f"C = {number(bound)}" for bound in bounds], effect)


def lower_epsilon_smaller_batch(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """Lower epsilon: decrease B.

    Compared as for `lower_epsilon_larger_bound`. The effect: how many times the best B is halved per
    halving of epsilon, C tuned with it.
    """
    yield from _growth_of_batch_size(grids, "epsilon")


def stronger_backbone_smaller_bound(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """Stronger backbone: use smaller C.

    A comparison is the weakest and the strongest of the backbones that a (dataset, method, optimizer,
    epsilon, epochs) was trained with, by the accuracy that they reach. Its effect: how many decades
    the weaker one's best C lies above that of the stronger one, B tuned with it.
    """
    yield from _distance_of_bounds(grids, "backbone")


def easier_dataset_smaller_bound(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """Easier dataset: use smaller C.

    As `stronger_backbone_smaller_bound`, for the hardest and the easiest of the datasets that a
    (backbone, method, optimizer, epsilon, epochs) was trained on. The easier dataset is the one on
    which the higher macro accuracy is reached.
    """
    yield from _distance_of_bounds(grids, "dataset")


def weaker_backbone_larger_bound(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """Weaker backbone: try larger C.

    Compared as for `stronger_backbone_smaller_bound`. The effect: what the weaker backbone gains by
    the best C above the stronger one's best, over that C itself; B tuned for both. Where the
    stronger one's best C is the largest, there is nothing to try, and no comparison.
    """
    yield from _gain_of_larger_bounds(grids, "backbone")


def harder_dataset_larger_bound(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """Harder dataset: try larger C.

    As `weaker_backbone_larger_bound`, for datasets as `easier_dataset_smaller_bound` orders them.
    """
    yield from _gain_of_larger_bounds(grids, "dataset")


def fewer_epochs_no_large_batch(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """Fewer epochs: avoid large B.

    A comparison is a problem with an epsilon at two or more numbers of epochs. The cost of the largest
    B is the accuracy that the best smaller B has more, C tuned for both. The effect: how much this
    cost grows per halving of the epochs (least-squares slope).
    """

    def largest(grid: Grid) -> Position:
        return grid.best_among([len(grid.batch_sizes) - 1], range(len(grid.bounds)))

    def smaller(grid: Grid) -> Position:
        return grid.best_among(range(len(grid.batch_sizes) - 1), range(len(grid.bounds)))

    for series in map(with_common_batch_sizes, alike(grids, "epochs")):
        if series:
            costs = [grid.gain(smaller, instead=largest) for grid in series]
            effect = -_slope(np.log2([grid.epochs for grid in series]), costs)
            yield Comparison(series, [f"cost {cost:+.4f}" for cost in costs], effect)


def more_epochs_larger_batch(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """More epochs: larger B becomes viable.

    Compared as for `fewer_epochs_no_large_batch`. The effect: how many times the best B doubles per
    doubling of the epochs, C tuned with it.
    """
    yield from _growth_of_batch_size(grids, "epochs")


def tune_jointly(grids: Sequence[Grid]) -> Iterator[Comparison]:
    """Always: tune C and B jointly.

    A comparison is one grid of two or more B and C. Its effect: what the best of all its cells gains
    over tuning C at the middle B, and then B at that C. The learning rate is tuned for every cell.
    """

    def jointly(grid: Grid) -> Position:
        return grid.best

    def one_after_the_other(grid: Grid) -> Position:
        rows, columns = range(len(grid.batch_sizes)), range(len(grid.bounds))
        column = grid.best_among([len(grid.batch_sizes) // 2], columns)[1]
        return grid.best_among(rows, [column])

    for grid in grids:
        if len(grid.bounds) > 1 and len(grid.batch_sizes) > 1:
            effect = grid.gain(jointly, instead=one_after_the_other)
            found = f"B = {grid.best_batch_size}, C = {number(grid.best_bound)}"
            yield Comparison([grid], [found], effect)


RULES = [
    Rule(
        "lower_epsilon_larger_bound", "Lower ε", "Increase C",
        "growth of the best C per halving of ε", "decades", lower_epsilon_larger_bound,
    ),
    Rule(
        "lower_epsilon_smaller_batch", "Lower ε", "Decrease B",
        "shrinkage of the best B per halving of ε", "doublings", lower_epsilon_smaller_batch,
    ),
    Rule(
        "stronger_backbone_smaller_bound", "Stronger backbone", "Use smaller C",
        "best C of the weaker over that of the stronger", "decades",
        stronger_backbone_smaller_bound,
    ),
    Rule(
        "easier_dataset_smaller_bound", "Easier dataset", "Use smaller C",
        "best C of the harder over that of the easier", "decades", easier_dataset_smaller_bound,
    ),
    Rule(
        "weaker_backbone_larger_bound", "Weaker backbone", "Try larger C",
        "gain of a C above the best one of the stronger", "accuracy", weaker_backbone_larger_bound,
    ),
    Rule(
        "harder_dataset_larger_bound", "Harder dataset", "Try larger C",
        "gain of a C above the best one of the easier", "accuracy", harder_dataset_larger_bound,
    ),
    Rule(
        "fewer_epochs_no_large_batch", "Fewer epochs", "Avoid large B",
        "growth of the cost of the largest B per halving of epochs", "accuracy",
        fewer_epochs_no_large_batch,
    ),
    Rule(
        "more_epochs_larger_batch", "More epochs", "Larger B viable",
        "growth of the best B per doubling of epochs", "doublings", more_epochs_larger_batch,
    ),
    Rule(
        "tune_jointly", "Always", "Tune C and B jointly",
        "gain over tuning C first, then B", "accuracy", tune_jointly,
    ),
]  # fmt: skip


def _growth_of_batch_size(grids: Sequence[Grid], condition: Condition) -> Iterator[Comparison]:
    for series in map(with_common_batch_sizes, alike(grids, condition)):
        if series:
            sizes = [grid.best_batch_size for grid in series]
            effect = _slope(np.log2([getattr(grid, condition) for grid in series]), np.log2(sizes))
            yield Comparison(series, [f"B = {size}" for size in sizes], effect)


def _distance_of_bounds(grids: Sequence[Grid], condition: Condition) -> Iterator[Comparison]:
    for hard, easy in _hard_and_easy(grids, condition):
        bounds = [hard.best_bound, easy.best_bound]
        effect = float(np.log10(bounds[0] / bounds[1]))
        yield Comparison([hard, easy], [f"C = {number(bound)}" for bound in bounds], effect)


def _gain_of_larger_bounds(grids: Sequence[Grid], condition: Condition) -> Iterator[Comparison]:
    for hard, easy in _hard_and_easy(grids, condition):
        column = hard.bounds.index(easy.best_bound)
        larger = range(column + 1, len(hard.bounds))
        if not larger:
            continue

        def above(grid: Grid, larger: Sequence[int] = larger) -> Position:
            return grid.best_among(range(len(grid.batch_sizes)), larger)

        def at(grid: Grid, column: int = column) -> Position:
            return grid.best_among(range(len(grid.batch_sizes)), [column])

        found = [f"C = {number(hard.best_bound)}", f"C = {number(easy.best_bound)}"]
        yield Comparison([hard, easy], found, hard.gain(above, instead=at))


def _hard_and_easy(grids: Sequence[Grid], condition: Condition) -> Iterator[tuple[Grid, Grid]]:
    """The grids with the lowest and highest accuracy of every group that differs in a condition."""
    for group in map(with_common_bounds, alike(grids, condition)):
        if group:
            ranked = sorted(group, key=lambda grid: grid.reached)
            yield ranked[0], ranked[-1]


def _slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Least-squares slope of y over x; NaN where a y is."""
    centred = np.asarray(x) - np.mean(x)
    return float(centred @ np.asarray(y) / (centred @ centred))


def _written(value: object) -> str:
    return value if isinstance(value, str) else number(float(str(value)))
