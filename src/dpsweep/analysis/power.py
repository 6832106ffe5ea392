"""Simulated studies: the reliability of verdicts, and the power of a study before it is run.

A simulated study has the grids of a real study, and accuracies with known effects (`SimulationSettings`).
Choices, effects, intervals and verdicts are those of `dpsweep.analysis`, for many studies at once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpsweep.analysis.evidence import FEWEST_UNITS, NOT_RESOLVED, Evidence, compare, gather
from dpsweep.analysis.grids import AccuracyGrid, Array
from dpsweep.study import Cell, Study
from dpsweep.study.datasets import related_datasets
from dpsweep.study.messages import group_by_message

LOOSEST = 8.0
"""The epsilon at which a simulated problem is easiest."""
STUDIES = 100
"""The number of simulated studies of a forecast."""


@dataclass(frozen=True)
class SimulationSettings:
    """The accuracies of simulated studies over C, B and learning rate, by difficulty of the problem.

    The unit of difficulty is a halving of epsilon below 8; a harder backbone or dataset adds to it. Losses
    are percentage points. Distances are decades of C, and doublings of B and of the learning rate. The
    defaults are the size of the paper's effects: AUTO-S, which clips everything, loses 1.1, 1.7, 2.6 and 2.7
    points against a tuned C at epsilon 4, 2, 1 and 0.5 (SUN397, its table on automatic clipping).

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


class Simulation(NamedTuple):
    """Simulated studies: their grids with noise, and without noise."""

    measured: list[AccuracyGrid]
    exact: list[AccuracyGrid]


def design(study: Study, cells: Iterable[Cell]) -> list[AccuracyGrid]:
    """Return the grids of the private cells with flat clipping, without accuracies.

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
            AccuracyGrid(
                problem.dataset, problem.backbone, problem.method, problem.optimizer, epsilon, epochs,
                tuple(sizes), tuple(bounds), empty, empty, tuning,
            )
        )  # fmt: skip
    return grids


def ruled_cells(study: Study) -> list[Cell]:
    """Return the cells of a study's tables of tuning rules."""
    return [
        cell
        for table in study.tables.values()
        if table.family == "tuning_implications"
        for selection in table.selections()
        for cell in selection.cells()
    ]


def simulate(
    grids: Sequence[AccuracyGrid],
    settings: SimulationSettings,
    studies: int,
    random: np.random.Generator,
    same_problems: bool = False,
) -> Simulation:
    """Return the grids with simulated accuracies, with a leading axis of studies.

    Args:
        grids: from `design`.
        settings: of the simulation.
        studies: number of studies.
        random: source of randomness.
        same_problems: whether all studies have the same problems and differ only in the noise of training;
            otherwise each study draws its own datasets and problems.
    """
    hardness = _added_difficulties(grids, settings.added_difficulty)
    swept: dict[tuple[str, str], set[float]] = defaultdict(set)
    for grid in grids:
        swept[grid.backbone, grid.method] |= set(np.log10(grid.clipping_bound).tolist())
    middle = {
        of: (1 - settings.norms) * min(on) + settings.norms * max(on) for of, on in swept.items()
    }
    drawn: dict[tuple[object, ...], Array] = {}

    def normal(*of: object) -> Array:
        """Return a standard normal number for a dataset or problem, for each study."""
        if of not in drawn:
            drawn[of] = random.standard_normal((1 if same_problems else studies, 1, 1, 1))
        return drawn[of]

    found = Simulation([], [])
    first = (grids[0].dataset, grids[0].backbone, grids[0].method, grids[0].optimizer)
    for grid in grids:
        problem = (grid.dataset, grid.backbone, grid.method, grid.optimizer, grid.epochs)
        effect = (
            1
            + settings.between_datasets * normal(grid.dataset)
            + settings.between_problems * normal(*problem)
        )
        if settings.families:
            effect = effect + settings.families * np.sign(normal(grid.dataset, "family"))
        if settings.one_problem:
            effect = effect * settings.one_problem * (problem[:-1] == first)
        difficulty = np.log2(LOOSEST / grid.epsilon) + hardness[problem[:-1]]
        norms = middle[grid.backbone, grid.method] + 0.1 * normal(*problem, "norms")
        count = grid.tuning.shape[-1]
        tried = max(1, round(settings.rates * count))
        rates = slice((count - tried) // 2, (count - tried) // 2 + tried)
        grid = replace(grid, tuning=grid.tuning[..., rates])  # noqa: PLW2901
        exact = _surface(grid, settings, difficulty, effect, norms)
        scatter = settings.scatter * (1 + settings.growing_scatter * difficulty)
        unequal = normal(grid.dataset, "scatter")
        scatter = scatter * np.exp(settings.unequal_scatter * unequal)
        shape = (studies, *exact.shape[1:])
        exact = np.broadcast_to(exact, shape)
        found.exact.append(_without_noise(grid, exact))
        found.measured.append(_measured(grid, settings, exact, scatter, random))
    return found


def _without_noise(grid: AccuracyGrid, exact: Array) -> AccuracyGrid:
    """Return a grid with every cell's exact accuracy at its best learning rate."""
    accuracy = np.repeat(exact.max(axis=-1, keepdims=True), 2, axis=-1) / 100
    return replace(grid, selection=accuracy, accuracy=accuracy, tuning=exact / 100)


def _measured(
    grid: AccuracyGrid,
    settings: SimulationSettings,
    exact: Array,
    scatter: Array,
    random: np.random.Generator,
) -> AccuracyGrid:
    """Return a grid with noise; all seeds train with the learning rate that the first seed tuned."""
    shape = exact.shape
    cells = (*shape[:-1], 1)
    scatter = scatter * np.exp(settings.cell_scatter * random.standard_normal(cells))
    shared = exact + settings.test_noise * random.standard_normal(cells)
    tuning = shared + scatter * random.standard_normal(shape)
    rate = tuning.argmax(axis=-1)[..., np.newaxis]
    noise = random.standard_normal((*shape[:-1], grid.seeds))
    accuracy = np.take_along_axis(shared, rate, axis=-1) + scatter * noise
    # The first seed tuned the learning rate, so its accuracy is the best of several.
    accuracy[..., :1] = np.take_along_axis(tuning, rate, axis=-1)
    accuracy[random.random(accuracy.shape) < settings.diverging] = settings.chance
    if settings.outlier:
        flat = accuracy.reshape(shape[0], -1)
        flat[np.arange(shape[0]), random.integers(flat.shape[-1], size=shape[0])] -= (
            settings.outlier
        )
    accuracy = np.maximum(accuracy, settings.chance)
    return replace(grid, selection=accuracy / 100, accuracy=accuracy / 100, tuning=tuning / 100)


@dataclass(frozen=True)
class Prospect:
    """The verdicts of simulated studies on one rule.

    Attributes:
        evidence: the comparisons of all simulated studies.
        truth: mean effect over all studies, in the rule's unit; NaN without a comparison.
        verdicts: share of the studies with each verdict, "not resolved" among them.
        smallest_visible: median over studies of the smallest visible effect; NaN without an interval.
    """

    evidence: Evidence
    truth: float
    verdicts: Mapping[str, float]
    smallest_visible: float

    @property
    def power(self) -> float:
        """The share of the studies that support the rule, at least for their own data."""
        return sum(self.verdicts.get(name, 0.0) for name in ("supported", "supported here"))


def prospects(
    grids: Sequence[AccuracyGrid],
    settings: SimulationSettings,
    related: Iterable[tuple[str, str]] = (),
    studies: int = STUDIES,
    seed: int = 0,
) -> dict[str, Prospect]:
    """Return the forecast of a study with some grids for each rule, by the key of the rule.

    Args:
        grids: from `design`.
        settings: of the simulation.
        related: pairs of datasets that share examples.
        studies: number of simulated studies.
        seed: of the simulation.
    """
    simulated = simulate(grids, settings, studies, np.random.default_rng(seed))
    comparisons, exact = (compare(each, corrected=False) for each in simulated)
    # The bias is known here; a bootstrap of every study would be slow.
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
    """Yield lines with the power of the study for each rule, if effects are as large as the paper's.

    This trains nothing. A study without a table of tuning rules has no lines.
    """
    cells = ruled_cells(study)
    if not cells:
        return
    found = prospects(design(study, cells), SimulationSettings(), related_datasets(study.datasets))
    yield (
        f"Tuning rules, if effects are of the paper's size ({STUDIES} simulated studies): how likely this "
        "study supports each rule, and the smallest effect that it would find with 80 %"
    )
    lacking = []
    for prospect in found.values():
        rule, units = prospect.evidence.rule, len(prospect.evidence.groups)
        name = f"{rule.condition}: {rule.implication}"
        known = [f"{units} {rule.unit_name}"] if units >= FEWEST_UNITS else []
        if not np.isnan(prospect.smallest_visible):
            known.append(f"{prospect.power:.0%}, {prospect.smallest_visible:.2g} {rule.unit}")
        if known:
            yield f"  {name}: {'; '.join(known)}"
        needs, needed_for = prospect.evidence.needs
        if needs:
            lacking.append((name, f"has {needs}" + (f", for {needed_for}" if needed_for else "")))
    for what, names in group_by_message(lacking).items():
        rules = "every rule" if len(names) == len(found) else "; ".join(names)
        yield f"  {rules}: {what}"


def _added_difficulties(grids: Sequence[AccuracyGrid], most: float) -> dict[tuple[str, ...], float]:
    """Return the difficulty that backbone and dataset add to each problem.

    The backbones of a dataset get values from 0 to ``most``, at equal distances in order of appearance, and
    so do the datasets of a backbone.
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


def _surface(
    grid: AccuracyGrid, settings: SimulationSettings, difficulty: float, effect: Array, norms: Array
) -> Array:
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
        - effect * settings.batch_by_epsilon * np.log2(LOOSEST / grid.epsilon)
        + effect * settings.batch_by_epochs * np.log2(grid.epochs / 8)
    )
    best_rate = rates.mean() + settings.rate_by_batch * (sizes - middle)
    loss = (
        (settings.small_bound_cost * difficulty * effect + settings.constant_cost) * below
        + settings.slope * (bounds.max() - bounds)
        + settings.cliff * (bounds > norms)
        + settings.ridge * (bounds - norms + sizes - middle) ** 2
        + settings.large_bound_cost * (1 + settings.narrowing * difficulty) * above
        + settings.batch_cost * (sizes - best_size) ** 2
        + settings.rate_cost * (rates - best_rate) ** 2
    )
    reached = 90 - settings.level * difficulty - settings.shrinkage**difficulty * loss
    # Smoothly below the ceiling: at d points below it, one more point adds 1 - exp(-d / 3).
    if settings.ceiling < 100:
        reached = settings.ceiling - 3 * np.log1p(np.exp((settings.ceiling - reached) / 3))
    exact: Array = np.maximum(reached, settings.chance)
    return exact
