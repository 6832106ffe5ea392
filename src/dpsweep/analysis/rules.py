"""The paper's tuning rules (its table 1) against what was trained: comparisons, effects, verdicts.

Every comparison is a matched pair or series of problems that differ in one condition. Its effect is
signed so that a positive number is what the rule says. Two kinds of effect are measured:

- where the optimum lies: C* and B*, the cell of the (C, B) grid with the highest mean accuracy over
  repeats, in decades of C (factors of 10) or doublings of B;
- what a choice is worth: accuracy of a choice that the rule recommends minus that of one it
  advises against. Both choices are made on the first seed and measured on the other repeats, because
  the better of two noisy numbers looks better than it is.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from dpsweep.choice import repeats

Array = npt.NDArray[np.float64]
Seeds = npt.NDArray[np.int64]
Verdict = Literal["supported", "contradicted", "not resolved"]

# With fewer, even unanimous signs are no evidence at the 5% level (two-sided: 2 / 2^5 > 0.05).
FEWEST_COMPARISONS = 6
_DRAWS = 2000
_DRAWS_OF_REPEATS = 100


@dataclass(frozen=True)
class Rule:
    """One line of the paper's table."""

    key: str
    condition: str
    implication: str
    effect: str
    unit: str


RULES = [
    Rule(
        "privacy_clipping", "Lower ε", "Increase C",
        "growth of the best C per halving of ε", "decades",
    ),
    Rule(
        "privacy_batch_size", "Lower ε", "Decrease B",
        "shrinkage of the best B per halving of ε", "doublings",
    ),
    Rule(
        "strong_backbone", "Stronger backbone", "Use smaller C",
        "best C of the weaker backbone over that of the stronger", "decades",
    ),
    Rule(
        "weak_backbone", "Weaker backbone", "Try larger C",
        "gain of a C above the best one of the stronger backbone", "accuracy",
    ),
    Rule(
        "few_epochs", "Fewer epochs", "Avoid large B",
        "gain of the best smaller B over the largest, at the fewest epochs", "accuracy",
    ),
    Rule(
        "many_epochs", "More epochs", "Larger B viable",
        "growth of the best B per doubling of epochs", "doublings",
    ),
    Rule(
        "jointly", "Always", "Tune C and B jointly",
        "gain over tuning C first, then B", "accuracy",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """Accuracy over (B, C) of one (problem, epsilon, epochs), at each cell's best learning rate."""

    problem: str
    task: tuple[str, ...]
    """What a change of backbone leaves alone: dataset, method, optimizer."""
    backbone: str
    epsilon: float
    epochs: int
    batch_sizes: tuple[int, ...]
    bounds: tuple[float, ...]
    accuracy: Array
    """(B, C, repeats), NaN where a cell or repeat is absent; the first repeat is the first seed."""

    def best(self, seeds: Seeds | None = None) -> tuple[int, int]:
        """Position (B, C) of the highest mean accuracy over the given repeats (default: all)."""
        return _best(self.means(seeds))

    def means(self, seeds: Seeds | None = None) -> Array:
        """Mean accuracy (B, C) over the given repeats (default: all)."""
        values = self.accuracy if seeds is None else self.accuracy[:, :, seeds]
        means: Array = values.mean(axis=2)
        return means

    def common(self, other: "Grid") -> "Grid":
        """This grid without the C and B that the other does not have."""
        rows = [i for i, size in enumerate(self.batch_sizes) if size in other.batch_sizes]
        columns = [i for i, bound in enumerate(self.bounds) if bound in other.bounds]
        return Grid(
            self.problem, self.task, self.backbone, self.epsilon, self.epochs,
            tuple(self.batch_sizes[i] for i in rows),
            tuple(self.bounds[i] for i in columns),
            self.accuracy[np.ix_(rows, columns)],
        )  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """One piece of evidence for or against a rule.

    ``effect`` takes positions of repeats (drawn with replacement) and gives the effect on them.
    """

    rule: str
    problems: tuple[str, ...]
    description: str
    repeats: int
    effect: Callable[[Seeds], float]


def grids(trials: pd.DataFrame) -> list[Grid]:
    """All private (C, B) grids of flat clipping in the trials, by problem, epsilon and epochs."""
    if trials.empty:
        return []
    rows = repeats(trials)
    rows = rows[(rows["clipping"] == "flat") & np.isfinite(rows["epsilon"])]
    found = []
    keys = ["problem", "epsilon", "epochs"]
    for (problem, epsilon, epochs), group in rows.groupby(keys):
        table = group.pivot_table(
            index="batch_size", columns=["clipping_bound", "seed"], values="macro_accuracy",
            dropna=False,
        ).sort_index(axis=1)  # fmt: skip
        bounds = tuple(sorted(group["clipping_bound"].unique()))
        accuracy = table.to_numpy().reshape(len(table), len(bounds), -1)
        if np.isnan(accuracy.mean(axis=2)).all():
            continue
        first = group.iloc[0]
        found.append(
            Grid(
                problem=str(problem),
                task=(first["dataset"], first["method"], first["optimizer"]),
                backbone=first["backbone"],
                epsilon=float(str(epsilon)),
                epochs=int(str(epochs)),
                batch_sizes=tuple(int(size) for size in table.index),
                bounds=bounds,
                accuracy=accuracy,
            )
        )
    return found


def comparisons(found: list[Grid]) -> list[Comparison]:
    """Every comparison that the grids allow, for all rules."""
    return [
        *_privacy(found),
        *_backbones(found),
        *_epochs(found),
        *_joint(found),
    ]


def evidence(found: list[Comparison]) -> pd.DataFrame:
    """One row per rule: mean effect, 95% bootstrap interval, comparisons, problems, verdict.

    The bootstrap resamples comparisons, and repeats within each. Comparisons of one problem share
    data, so the interval is, if anything, too narrow: the number of problems stands beside it.
    """
    random = np.random.default_rng(0)
    rows = []
    for rule in RULES:
        mine = [each for each in found if each.rule == rule.key]
        points = [each.effect(np.arange(each.repeats)) for each in mine]
        kept = [
            (each, point) for each, point in zip(mine, points, strict=True) if not np.isnan(point)
        ]
        lower, upper = _interval([each for each, _ in kept], random)
        rows.append(
            {
                "rule": rule.key,
                "condition": rule.condition,
                "implication": rule.implication,
                "effect_measured": rule.effect,
                "unit": rule.unit,
                "effect": float(np.mean([point for _, point in kept])) if kept else np.nan,
                "lower": lower,
                "upper": upper,
                "comparisons": len(kept),
                "in_favour": sum(point > 0 for _, point in kept),
                "against": sum(point < 0 for _, point in kept),
                "problems": len({problem for each, _ in kept for problem in each.problems}),
                "verdict": verdict(lower, upper, len(kept)),
            }
        )
    return pd.DataFrame(rows)


def verdict(lower: float, upper: float, count: int) -> Verdict:
    """Whether an interval of effects, positive as the rule says, settles the rule."""
    if count < FEWEST_COMPARISONS:
        return "not resolved"
    if lower > 0:
        return "supported"
    return "contradicted" if upper < 0 else "not resolved"


def _interval(kept: list[Comparison], random: np.random.Generator) -> tuple[float, float]:
    if not kept:
        return float("nan"), float("nan")
    effects = np.array(
        [
            [
                each.effect(random.integers(0, each.repeats, each.repeats))
                for _ in range(_DRAWS_OF_REPEATS)
            ]
            for each in kept
        ]
    )
    which = random.integers(0, len(kept), (_DRAWS, len(kept)))
    draw = random.integers(0, _DRAWS_OF_REPEATS, (_DRAWS, len(kept)))
    lower, upper = np.nanquantile(effects[which, draw].mean(axis=1), [0.025, 0.975])
    return float(lower), float(upper)


def _best(table: Array) -> tuple[int, int]:
    """Position of the largest value, the first one (smallest B, then C) on ties."""
    row, column = np.unravel_index(
        np.argmax(np.where(np.isnan(table), -np.inf, table)), table.shape
    )
    return int(row), int(column)


def _slope(x: Array, y: Array) -> float:
    """Least-squares slope of y over x."""
    centred = x - x.mean()
    return float((centred * y).sum() / (centred**2).sum())


def _series(
    found: list[Grid], along: Literal["epsilon", "epochs"], across: Literal["epsilon", "epochs"]
) -> Iterator[list[Grid]]:
    """Grids of one problem that differ in ``along`` only, ascending, two or more.

    They are cut to the C and B that all of them have.
    """
    ordered = sorted(
        found, key=lambda grid: (grid.problem, getattr(grid, across), getattr(grid, along))
    )
    for _, group in itertools.groupby(ordered, lambda grid: (grid.problem, getattr(grid, across))):
        whole = list(group)
        series = [reduce(Grid.common, whole, grid) for grid in whole]
        if len(series) > 1 and series[0].accuracy.size:
            yield series


def _optimum_slope(
    series: list[Grid], along: str, what: Literal["bounds", "batch_sizes"]
) -> Callable[[Seeds], float]:
    """Slope of the optimum's logarithm over log2 of ``along``: decades of C or doublings of B."""
    x = np.log2([float(getattr(grid, along)) for grid in series])

    def effect(seeds: Seeds) -> float:
        best = [grid.best(seeds) for grid in series]
        if what == "bounds":
            y = np.log10([grid.bounds[c] for grid, (_, c) in zip(series, best, strict=True)])
        else:
            y = np.log2([grid.batch_sizes[b] for grid, (b, _) in zip(series, best, strict=True)])
        return _slope(x, y)

    return effect


def _negated(effect: Callable[[Seeds], float]) -> Callable[[Seeds], float]:
    return lambda seeds: -effect(seeds)


def _privacy(found: list[Grid]) -> Iterator[Comparison]:
    for series in _series(found, "epsilon", "epochs"):
        grid = series[0]
        where = f"{grid.epochs} epochs, ε = {', '.join(f'{each.epsilon:g}' for each in series)}"
        count = _repeats(series)
        for rule, what, size in (
            ("privacy_clipping", "bounds", len(grid.bounds)),
            ("privacy_batch_size", "batch_sizes", len(grid.batch_sizes)),
        ):
            if size > 1:
                slope = _optimum_slope(series, "epsilon", what)  # type: ignore[arg-type]
                effect = _negated(slope) if rule == "privacy_clipping" else slope
                yield Comparison(rule, (grid.problem,), where, count, effect)


def _backbones(found: list[Grid]) -> Iterator[Comparison]:
    for one, two in itertools.combinations(found, 2):
        matched = (one.task, one.epsilon, one.epochs) == (two.task, two.epsilon, two.epochs)
        if not matched or one.backbone == two.backbone:
            continue
        pair = [one.common(two), two.common(one)]
        if len(pair[0].bounds) < 2 or any(np.isnan(grid.means()).all() for grid in pair):
            continue
        # The stronger backbone is the one that reaches the higher accuracy on this problem.
        weak, strong = sorted(pair, key=lambda grid: np.nanmax(grid.means()))
        where = (
            f"{strong.backbone} against {weak.backbone}, ε = {one.epsilon:g}, {one.epochs} epochs"
        )
        problems = (strong.problem, weak.problem)
        yield Comparison(
            "strong_backbone", problems, where, _repeats(pair), _bound_shift(weak, strong)
        )
        larger = [i for i, bound in enumerate(weak.bounds) if bound > weak.bounds[strong.best()[1]]]
        if larger:
            yield Comparison(
                "weak_backbone", problems, where, _repeats([weak]),
                _gain(
                    weak,
                    choose=partial(_best_of, columns=larger),
                    instead=partial(_best_of, columns=[strong.best()[1]]),
                ),
            )  # fmt: skip


def _bound_shift(weak: Grid, strong: Grid) -> Callable[[Seeds], float]:
    def effect(seeds: Seeds) -> float:
        weak_bound = weak.bounds[weak.best(seeds)[1]]
        strong_bound = strong.bounds[strong.best(seeds)[1]]
        return float(np.log10(weak_bound / strong_bound))

    return effect


def _epochs(found: list[Grid]) -> Iterator[Comparison]:
    for series in _series(found, "epochs", "epsilon"):
        fewest = series[0]
        sizes = len(fewest.batch_sizes)
        if sizes < 2:
            continue
        where = f"ε = {fewest.epsilon:g}, {fewest.epochs}"
        yield Comparison(
            "few_epochs", (fewest.problem,), f"{where} epochs", _repeats([fewest]),
            _gain(
                fewest,
                choose=partial(_best_of, rows=list(range(sizes - 1))),
                instead=partial(_best_of, rows=[sizes - 1]),
            ),
        )  # fmt: skip
        yield Comparison(
            "many_epochs", (fewest.problem,), f"{where} to {series[-1].epochs} epochs",
            _repeats(series), _optimum_slope(series, "epochs", "batch_sizes"),
        )  # fmt: skip


def _joint(found: list[Grid]) -> Iterator[Comparison]:
    for grid in found:
        if len(grid.bounds) > 1 and len(grid.batch_sizes) > 1:
            yield Comparison(
                "jointly", (grid.problem,), f"ε = {grid.epsilon:g}, {grid.epochs} epochs",
                _repeats([grid]), _gain(grid, choose=_best, instead=_one_after_the_other),
            )  # fmt: skip


def _one_after_the_other(table: Array) -> tuple[int, int]:
    """Tune C at the middle B, then B at that C."""
    middle = table.shape[0] // 2
    column = _best_of(table, rows=[middle])[1]
    return _best_of(table, columns=[column])


def _best_of(
    table: Array, rows: list[int] | None = None, columns: list[int] | None = None
) -> tuple[int, int]:
    """Position of the largest value among the given rows (B) and columns (C)."""
    allowed = np.zeros(table.shape, dtype=bool)
    allowed[np.ix_(rows or range(table.shape[0]), columns or range(table.shape[1]))] = True
    return _best(np.where(allowed, table, np.nan))


def _gain(
    grid: Grid,
    choose: Callable[[Array], tuple[int, int]],
    instead: Callable[[Array], tuple[int, int]],
) -> Callable[[Seeds], float]:
    """Accuracy of one choice over another, chosen on the first seed, measured on the others."""
    first = grid.accuracy[:, :, 0]
    difference = grid.accuracy[choose(first)] - grid.accuracy[instead(first)]

    def effect(seeds: Seeds) -> float:
        # One repeat chooses; nothing is left to measure with.
        others = difference[1:]
        return float(others[seeds % others.size].mean()) if others.size else float("nan")

    return effect


def _repeats(involved: list[Grid]) -> int:
    return min(int(grid.accuracy.shape[2]) for grid in involved)
