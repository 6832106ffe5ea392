"""Simulated studies: how often verdicts are right, and what a study can find before it is paid for.

A simulated study has the grids of a real one and accuracies of a `World` whose effects are known. Choices,
effects, intervals and verdicts are those of `dpsweep.analysis`, for many studies at once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpsweep.analysis.evidence import FEWEST_UNITS, NOT_RESOLVED, Evidence, compare, gather
from dpsweep.analysis.grids import Array, Grid
from dpsweep.config.datasets import related_datasets
from dpsweep.config.messages import told_once
from dpsweep.study import Cell, Study
from dpsweep.study.table_targets import TuningImplications

LOOSEST = 8.0
"""The epsilon at which a simulated problem is easiest."""
STUDIES = 100
"""Studies that a forecast simulates."""


@dataclass(frozen=True)
class World:
    """A law of accuracies over C, B and the learning rate, by the difficulty of the problem.

    Difficulty is counted in halvings of epsilon below 8; a harder backbone or dataset adds to it. Losses
    are percentage points, distances decades of C, doublings of B and of the learning rate. The defaults
    are the size of the paper's effects: AUTO-S, which clips everything, loses 1.1, 1.7, 2.6 and 2.7 points
    against a tuned C at epsilon 4, 2, 1 and 0.5 (SUN397, its table on automatic clipping).

    Attributes:
        small_bound_cost: lost far below the gradient norms, per unit of difficulty.
        constant_cost: the same at every difficulty, which is no reason to adapt.
        large_bound_cost: lost per squared decade above the norms.
        narrowing: growth of that cost per unit of difficulty.
        norms: where the norms lie between the smallest C (0) and the largest (1) that a backbone and
            method is trained with, in decades.
        batch_cost: lost per squared doubling between B and the best B.
        batch_by_epsilon: doublings by which the best B falls per halving of epsilon.
        batch_by_epochs: doublings by which the best B grows per doubling of the epochs.
        rate_cost: lost per squared doubling between a learning rate and the best one.
        rate_by_batch: doublings by which the best rate grows per doubling of B.
        added_difficulty: of the hardest backbone, and of the hardest dataset.
        shrinkage: factor of all losses per unit of difficulty; below 1 the surface gets flatter.
        level: accuracy lost per unit of difficulty, at every setting.
        scatter: standard deviation of a seed at difficulty 0.
        growing_scatter: growth of the scatter per unit of difficulty.
        unequal_scatter: spread of the scatter between datasets, of its logarithm.
        between_datasets: spread of the effects between datasets, relative to their size.
        between_problems: the same between comparisons of a dataset.
        families: effects of datasets are 1 + or - this, one or the other as likely as not.
        one_problem: factor of the effects of the first problem; all others have none.
        cell_scatter: spread of the scatter between the cells of a grid, of its logarithm.
        test_noise: standard deviation of what all seeds of a cell share, as they share a test set.
        diverging: share of the trials that end at ``chance``.
        outlier: lost by one trial of every grid.
        chance: no accuracy is below it.
        ceiling: accuracy that nothing reaches; losses are drawn together towards it.
        ridge: lost per squared (decades of C + doublings of B), so that neither alone tells what is best.
        cliff: lost by every C above the norms, at once.
        slope: lost per decade of C below the largest one.
        rates: share of the learning rates that are tried, the middle ones.
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


class Simulation(NamedTuple):
    """Simulated studies: what they measure, and what they would measure without noise."""

    measured: list[Grid]
    exact: list[Grid]


def design(study: Study, cells: Iterable[Cell]) -> list[Grid]:
    """Return the grids of some cells, private and of flat clipping, without accuracies.

    ``selection`` and ``accuracy`` are NaN, ``tuning`` holds base-2 logarithms of the learning rates.
    """
    groups: dict[tuple[str, float, int], list[Cell]] = defaultdict(list)
    for cell in dict.fromkeys(cells):
        if not isinstance(cell.clipping_bound, str) and np.isfinite(cell.epsilon):
            groups[cell.problem, cell.epsilon, cell.epochs].append(cell)
    grids = []
    for (name, epsilon, epochs), members in groups.items():
        problem = study.problems[name]
        sweeps = [study.sweeps[sweep] for sweep in {study.sweep_of(each) for each in members}]
        full = study.train_size(problem.dataset)
        sizes = sorted({full if each.batch_size == "full" else each.batch_size for each in members})
        bounds = sorted({float(each.clipping_bound) for each in members})
        rates = sorted({rate for sweep in sweeps for rate in sweep.learning_rates})
        seeds = min(sweep.seeds for sweep in sweeps)
        empty = np.full((len(sizes), len(bounds), seeds), np.nan)
        tuning = np.broadcast_to(np.log2(rates), (*empty.shape[:2], len(rates)))
        grids.append(
            Grid(
                problem.dataset, problem.backbone, problem.method, problem.optimizer, epsilon, epochs,
                tuple(sizes), tuple(bounds), empty, empty, tuning,
            )
        )  # fmt: skip
    return grids


def ruled_cells(study: Study) -> list[Cell]:
    """Return the cells that the tables of tuning rules of a study read."""
    return [
        cell
        for table in study.tables.values()
        if isinstance(table, TuningImplications)
        for selection in table.selections()
        for cell in study.cells(selection)
    ]


def simulate(
    grids: Sequence[Grid],
    world: World,
    studies: int,
    random: np.random.Generator,
    same_problems: bool = False,
) -> Simulation:
    """Return the grids with accuracies of a world, with a leading axis of studies.

    Args:
        grids: from `design`.
        world: the law of the accuracies.
        studies: number of studies.
        random: source of randomness.
        same_problems: all studies have the same problems, and only the noise of training differs;
            otherwise each draws its own datasets and problems.
    """
    hardness = _added_difficulties(grids, world.added_difficulty)
    swept: dict[tuple[str, str], set[float]] = defaultdict(set)
    for grid in grids:
        swept[grid.backbone, grid.method] |= set(np.log10(grid.clipping_bound).tolist())
    middle = {of: (1 - world.norms) * min(on) + world.norms * max(on) for of, on in swept.items()}
    drawn: dict[tuple[object, ...], Array] = {}

    def normal(*of: object) -> Array:
        """Return a standard normal number of a dataset or problem, for each study."""
        if of not in drawn:
            drawn[of] = random.standard_normal((1 if same_problems else studies, 1, 1, 1))
        return drawn[of]

    found = Simulation([], [])
    first = (grids[0].dataset, grids[0].backbone, grids[0].method, grids[0].optimizer)
    for grid in grids:
        problem = (grid.dataset, grid.backbone, grid.method, grid.optimizer, grid.epochs)
        effect = (
            1
            + world.between_datasets * normal(grid.dataset)
            + world.between_problems * normal(*problem)
        )
        if world.families:
            effect = effect + world.families * np.sign(normal(grid.dataset, "family"))
        if world.one_problem:
            effect = effect * world.one_problem * (problem[:-1] == first)
        difficulty = np.log2(LOOSEST / grid.epsilon) + hardness[problem[:-1]]
        norms = middle[grid.backbone, grid.method] + 0.1 * normal(*problem, "norms")
        count = grid.tuning.shape[-1]
        tried = max(1, round(world.rates * count))
        rates = slice((count - tried) // 2, (count - tried) // 2 + tried)
        grid = replace(grid, tuning=grid.tuning[..., rates])  # noqa: PLW2901
        exact = _surface(grid, world, difficulty, effect, norms)
        scatter = world.scatter * (1 + world.growing_scatter * difficulty)
        unequal = normal(grid.dataset, "scatter")
        scatter = scatter * np.exp(world.unequal_scatter * unequal)
        shape = (studies, *exact.shape[1:])
        exact = np.broadcast_to(exact, shape)
        found.exact.append(_without_noise(grid, exact))
        found.measured.append(_measured(grid, world, exact, scatter, random))
    return found


def _without_noise(grid: Grid, exact: Array) -> Grid:
    """Return a grid that has every cell's accuracy at its best learning rate."""
    accuracy = np.repeat(exact.max(axis=-1, keepdims=True), 2, axis=-1) / 100
    return replace(grid, selection=accuracy, accuracy=accuracy, tuning=exact / 100)


def _measured(
    grid: Grid, world: World, exact: Array, scatter: Array, random: np.random.Generator
) -> Grid:
    """Return a grid with the noise of a world, whose seeds repeat the rate that the first one tuned."""
    shape = exact.shape
    cells = (*shape[:-1], 1)
    scatter = scatter * np.exp(world.cell_scatter * random.standard_normal(cells))
    shared = exact + world.test_noise * random.standard_normal(cells)
    tuning = shared + scatter * random.standard_normal(shape)
    rate = tuning.argmax(axis=-1)[..., np.newaxis]
    noise = random.standard_normal((*shape[:-1], grid.seeds))
    accuracy = np.take_along_axis(shared, rate, axis=-1) + scatter * noise
    # The first seed has tuned the learning rates, so its accuracy is the best of several.
    accuracy[..., :1] = np.take_along_axis(tuning, rate, axis=-1)
    accuracy[random.random(accuracy.shape) < world.diverging] = world.chance
    if world.outlier:
        flat = accuracy.reshape(shape[0], -1)
        flat[np.arange(shape[0]), random.integers(flat.shape[-1], size=shape[0])] -= world.outlier
    accuracy = np.maximum(accuracy, world.chance)
    return replace(grid, selection=accuracy / 100, accuracy=accuracy / 100, tuning=tuning / 100)


@dataclass(frozen=True)
class Prospect:
    """The verdicts of simulated studies on one rule, in a world.

    Attributes:
        evidence: the comparisons of all simulated studies.
        truth: mean effect over all studies, in the rule's unit; NaN without a comparison.
        verdicts: share of the studies with each verdict, "not resolved" among them.
        smallest_visible: median of the smallest effect that a study could see; NaN without an interval.
    """

    evidence: Evidence
    truth: float
    verdicts: Mapping[str, float]
    smallest_visible: float

    @property
    def power(self) -> float:
        """Share of the studies that support the rule, for their own data at least."""
        return sum(self.verdicts.get(name, 0.0) for name in ("supported", "supported here"))


def prospects(
    grids: Sequence[Grid],
    world: World,
    related: Iterable[tuple[str, str]] = (),
    studies: int = STUDIES,
    seed: int = 0,
) -> dict[str, Prospect]:
    """Return what a study with some grids can say of each rule, by the key of the rule.

    Args:
        grids: from `design`.
        world: the law of the accuracies.
        related: pairs of datasets that share examples.
        studies: number of simulated studies.
        seed: of the simulation.
    """
    simulated = simulate(grids, world, studies, np.random.default_rng(seed))
    comparisons, exact = (compare(each, corrected=False) for each in simulated)
    # Here the bias is known, and the bootstrap of every study would take its time.
    for key, found_ones in comparisons.items():
        comparisons[key] = [
            replace(measured, effect=measured.effect - (measured.effect - true.effect).mean())
            for measured, true in zip(found_ones, exact[key], strict=True)
        ]
    evidence, level = gather(comparisons, related)
    found = {}
    for each in evidence:
        truth, visible = float("nan"), float("nan")
        verdicts = {NOT_RESOLVED: 1.0}
        if each.comparisons:
            names, counts = np.unique(each.verdict(level), return_counts=True)
            verdicts = {
                str(name): float(count) / studies for name, count in zip(names, counts, strict=True)
            }
            truth = float(np.mean(each.effect))
        if each.here is not None:
            visible = float(np.median(each.here.smallest_visible(each.threshold, level)))
        found[each.rule.key] = Prospect(each, truth, verdicts, visible)
    return found


def outlook(study: Study) -> Iterator[str]:
    """Yield lines on what the study can say of each rule, if effects are as large as the paper's.

    Nothing is trained for that. A study without a table of tuning rules has no lines.
    """
    cells = ruled_cells(study)
    if not cells:
        return
    found = prospects(design(study, cells), World(), related_datasets(study.datasets))
    yield (
        f"Tuning rules, if effects are of the paper's size ({STUDIES} simulated studies): how likely this "
        "study supports each rule, and the smallest effect that it would find with 80 %"
    )
    lacking = []
    for prospect in found.values():
        rule, units = prospect.evidence.rule, len(prospect.evidence.groups)
        name = f"{rule.condition}: {rule.implication}"
        said = [f"{units} {rule.unit_name}"] if units >= FEWEST_UNITS else []
        if not np.isnan(prospect.smallest_visible):
            said.append(f"{prospect.power:.0%}, {prospect.smallest_visible:.2g} {rule.unit}")
        if said:
            yield f"  {name}: {'; '.join(said)}"
        needs, needed_for = prospect.evidence.needs
        if needs:
            lacking.append((name, f"has {needs}" + (f", for {needed_for}" if needed_for else "")))
    for what, names in told_once(lacking).items():
        rules = "every rule" if len(names) == len(found) else "; ".join(names)
        yield f"  {rules}: {what}"


def _added_difficulties(grids: Sequence[Grid], most: float) -> dict[tuple[str, ...], float]:
    """Return what backbone and dataset add to the difficulty of each problem.

    Backbones that are compared on a dataset are from 0 to ``most`` apart, at equal distances in order of
    appearance, and so are datasets that are compared with a backbone.
    """
    problems = list(
        dict.fromkeys((each.dataset, each.backbone, each.method, each.optimizer) for each in grids)
    )
    added = dict.fromkeys(problems, 0.0)
    for place in (0, 1):
        groups: dict[tuple[str, ...], list[tuple[str, str, str, str]]] = defaultdict(list)
        for problem in problems:
            groups[problem[:place] + problem[place + 1 :]].append(problem)
        for group in groups.values():
            for problem, difficulty in zip(group, np.linspace(0, most, len(group)), strict=True):
                added[problem] += float(difficulty)
    return {problem: min(difficulty, most) for problem, difficulty in added.items()}


def _surface(grid: Grid, world: World, difficulty: float, effect: Array, norms: Array) -> Array:
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
        - effect * world.batch_by_epsilon * np.log2(LOOSEST / grid.epsilon)
        + effect * world.batch_by_epochs * np.log2(grid.epochs / 8)
    )
    best_rate = rates.mean() + world.rate_by_batch * (sizes - middle)
    loss = (
        (world.small_bound_cost * difficulty * effect + world.constant_cost) * below
        + world.slope * (bounds.max() - bounds)
        + world.cliff * (bounds > norms)
        + world.ridge * (bounds - norms + sizes - middle) ** 2
        + world.large_bound_cost * (1 + world.narrowing * difficulty) * above
        + world.batch_cost * (sizes - best_size) ** 2
        + world.rate_cost * (rates - best_rate) ** 2
    )
    reached = 90 - world.level * difficulty - world.shrinkage**difficulty * loss
    # Softly below the ceiling: at a distance of d points below it, a point more adds 1 - exp(-d / 3).
    if world.ceiling < 100:
        reached = world.ceiling - 3 * np.log1p(np.exp((world.ceiling - reached) / 3))
    exact: Array = np.maximum(reached, world.chance)
    return exact
