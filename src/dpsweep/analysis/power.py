"""Simulated studies: the reliability of verdicts, and the power of a study before it is run.

A simulated study has the grids of a real study, and accuracies with known effects (`World`).
Choices, effects, intervals and verdicts are those of `dpsweep.analysis`, for many studies at once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpsweep.analysis.evidence import FEWEST_UNITS, NOT_RESOLVED, Evidence, compare, gather
from dpsweep.analysis.statistics import AccuracyGrid, Array
from dpsweep.study import Cell, Study
from dpsweep.study.datasets import related_datasets
from dpsweep.study.messages import group_by_message

LOOSEST = 8.0
"""The epsilon at which a simulated problem is easiest."""
STUDIES = 100
"""The number of simulated studies of a forecast."""
Normal = Callable[..., Array]
"""A function that returns a standard normal number for a dataset or problem, for each study."""


class World:
    """Accuracies with effects of the paper's size over C, B and learning rate, by difficulty of the problem.

    The unit of difficulty is a halving of epsilon below 8; a harder backbone or dataset adds to it. Losses
    are percentage points. AUTO-S, which clips everything, loses 1.1, 1.7, 2.6 and 2.7 points against a tuned
    C at epsilon 4, 2, 1 and 0.5 (SUN397, its table on automatic clipping). `benchmarks/evidence/worlds.py`
    has other worlds.
    """

    added_difficulty = 3.0
    """of the hardest backbone, and of the hardest dataset"""
    norms = 0.9
    """position of the norms between the smallest C (0) and the largest C (1) of a backbone and method"""

    def effect(self, problem: tuple[str, ...], normal: Normal) -> Array:
        """Return the size of the effects of a problem, relative to the paper's."""
        return 1 + 0.3 * normal(problem[0]) + 0.3 * normal(*problem)

    def surface(self, grid: AccuracyGrid, difficulty: float, effect: Array, norms: Array) -> Array:
        """Return exact accuracies in percent, shape (studies, B, C, learning rates).

        Args:
            grid: the settings.
            difficulty: of the problem.
            effect: see `effect`.
            norms: decimal logarithm of the gradient norms.
        """
        bounds = np.log10(grid.clipping_bound)[:, np.newaxis]
        sizes = np.log2(grid.batch_size)[:, np.newaxis, np.newaxis]
        rates = grid.tuning[0, 0]
        # The best B falls by 0.8 doublings per halving of epsilon, and grows so per doubling of the epochs.
        moved = np.log2(grid.epochs / 8) - np.log2(LOOSEST / grid.epsilon)
        best_size = 0.3 * sizes.mean() + 0.7 * sizes[-1].item() + 0.8 * effect * moved
        best_rate = rates.mean() + 0.5 * (sizes - sizes.mean())
        loss = (
            0.65 * difficulty * effect * (1 - np.exp(-np.maximum(norms - bounds, 0) / 0.5))
            + 10 * np.maximum(bounds - norms, 0) ** 2
            + 0.3 * (sizes - best_size) ** 2
            + 0.5 * (rates - best_rate) ** 2
        )
        exact: Array = np.maximum(90 - 5 * difficulty - loss, 0)
        return exact

    def scatter_of(self, grid: AccuracyGrid, difficulty: float, normal: Normal) -> Array:
        """Return the standard deviation of seeds in percent."""
        unequal: Array = np.exp(0.3 * normal(grid.dataset, "scatter"))
        return 0.35 * (1 + 0.1 * difficulty) * unequal

    def trained(
        self, exact: Array, scatter: Array, seeds: int, random: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return accuracies of all seeds at the rate that the first one tuned, and of all its rates.

        Args:
            exact: see `surface`.
            scatter: standard deviation of a seed.
            seeds: of a cell.
            random: source of randomness.
        """
        tuning = exact + scatter * random.standard_normal(exact.shape)
        rate = tuning.argmax(axis=-1)[..., np.newaxis]
        noise = random.standard_normal((*exact.shape[:-1], seeds))
        accuracy = np.take_along_axis(exact, rate, axis=-1) + scatter * noise
        # The first seed tuned the learning rate, so its accuracy is the best of several.
        accuracy[..., :1] = np.take_along_axis(tuning, rate, axis=-1)
        return accuracy, tuning


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
    world: World,
    studies: int,
    random: np.random.Generator,
    same_problems: bool = False,
) -> Simulation:
    """Return the grids with simulated accuracies, with a leading axis of studies.

    Args:
        grids: from `design`.
        world: the accuracies.
        studies: number of studies.
        random: source of randomness.
        same_problems: whether all studies have the same problems and differ only in the noise of training;
            otherwise each study draws its own datasets and problems.
    """
    hardness = _added_difficulties(grids, world.added_difficulty)
    swept: dict[tuple[str, str], set[float]] = defaultdict(set)
    for grid in grids:
        swept[grid.backbone, grid.method] |= set(np.log10(grid.clipping_bound).tolist())
    middle = {of: (1 - world.norms) * min(on) + world.norms * max(on) for of, on in swept.items()}
    drawn: dict[tuple[object, ...], Array] = {}

    def normal(*of: object) -> Array:
        if of not in drawn:
            drawn[of] = random.standard_normal((1 if same_problems else studies, 1, 1, 1))
        return drawn[of]

    found = Simulation([], [])
    for grid in grids:
        problem = (grid.dataset, grid.backbone, grid.method, grid.optimizer)
        difficulty = np.log2(LOOSEST / grid.epsilon) + hardness[problem]
        effect = world.effect((*problem, str(grid.epochs)), normal)
        norms = middle[grid.backbone, grid.method] + 0.1 * normal(*problem, grid.epochs, "norms")
        exact = world.surface(grid, difficulty, effect, norms)
        scatter = world.scatter_of(grid, difficulty, normal)
        exact = np.broadcast_to(exact, (studies, *exact.shape[1:]))
        best = np.repeat(exact.max(axis=-1, keepdims=True), 2, axis=-1) / 100
        found.exact.append(replace(grid, selection=best, accuracy=best, tuning=exact / 100))
        accuracy, tuning = (
            each / 100 for each in world.trained(exact, scatter, grid.seeds, random)
        )
        found.measured.append(replace(grid, selection=accuracy, accuracy=accuracy, tuning=tuning))
    return found


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
    related: Iterable[tuple[str, str]] = (),
    studies: int = STUDIES,
    seed: int = 0,
) -> dict[str, Prospect]:
    """Return the forecast of a study with some grids for each rule, by the key of the rule.

    Args:
        grids: from `design`.
        related: pairs of datasets that share examples.
        studies: number of simulated studies.
        seed: of the simulation.
    """
    simulated = simulate(grids, World(), studies, np.random.default_rng(seed))
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
    found = prospects(design(study, cells), related_datasets(study.datasets))
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
            visible = f"{prospect.smallest_visible:.2g} {rule.unit}"
            # Accuracies differ by at most 100 points.
            most = visible if prospect.smallest_visible <= 100 else "no effect is large enough"
            known.append(f"{prospect.power:.0%}, {most}")
        if known:
            yield f"  {name}: {'; '.join(known)}"
        needs, needed_for = prospect.evidence.needs
        if needs:
            there, needed = needs.split(" of ", 1)
            about = f" about {needed_for}" if needed_for else ""
            lacking.append(
                (name, f"no verdict{about}, which needs {needed}; this study has {there}")
            )
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
