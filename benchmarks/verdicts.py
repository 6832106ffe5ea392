"""Simulate studies whose effects are known: coverage of intervals, and power of verdicts.

    python -m benchmarks.verdicts

A simulated study has datasets, problems on each (a backbone or a method), and a grid of (C, B) for every
epsilon. The best C grows by a known number of decades per halving of epsilon, which differs between
datasets, problems and epsilons. Accuracy falls off around the optimum, more slowly towards small C; seeds
scatter, more so at low epsilon; the first seed is the best of three learning rates. The effect is
measured as `dpsweep.analysis.rules` does, by the mean over seeds, on the cells of the grid.

Two kinds of effect: growth of the best C (a location), and what joint tuning gains over tuning C first
(cross-fitted). The truth *elsewhere* is the mean over very many datasets, *here* that of the datasets and
problems of each study; for locations without any noise, for gains of choices with one seed fewer.

The result goes to benchmarks/results/verdicts.json (about two minutes on one core).
"""

import argparse
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from dpsweep.analysis.evidence import (
    LEVEL,
    Interval,
    interval_elsewhere,
    interval_here,
    mean_effect,
)
from dpsweep.analysis.rules import RULES
from dpsweep.files import write_json

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "verdicts.json"
BOUNDS = {
    3: np.log10([0.1, 1, 10]),
    5: np.log10([0.1, 1, 10, 26, 42]),
    7: np.arange(-5.0, 2.0),
    8: np.log10([0.1, 1, 10, 12, 14, 18, 26, 42]),
}
HALVINGS = np.arange(6.0)  # epsilon 8 to 0.25
NOMINAL = 0.95
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """A kind of study. Standard deviations are of decades per halving, of decades, of accuracy."""

    datasets: int = 5
    problems: int = 3
    seeds: int = 3
    clipping_bounds: int = 5
    batch_sizes: int = 7
    effect: float = 0.2
    between_datasets: float = 0.1
    between_problems: float = 0.1
    between_epsilons: float = 0.15
    seed_deviation: float = 0.004


def simulate(scenario: Scenario, studies: int, random: np.random.Generator) -> tuple[Array, Array]:
    """Accuracies without noise, (studies, datasets, problems, epsilons, B, C), and with it, by seed."""
    bounds = BOUNDS[scenario.clipping_bounds]
    shape = (studies, scenario.datasets, scenario.problems)
    slope = (
        scenario.effect
        + scenario.between_datasets * random.standard_normal((*shape[:2], 1))
        + scenario.between_problems * random.standard_normal(shape)
    )
    width = bounds[-1] - bounds[0]
    start = bounds[0] + random.uniform(0.2 * width, 0.6 * width, (*shape[:2], 1))
    start = start + 0.3 * random.standard_normal(shape)
    every = (*shape, len(HALVINGS))
    best_bound = start[..., None] + slope[..., None] * HALVINGS
    best_bound = best_bound + scenario.between_epsilons * random.standard_normal(every)
    best_size = random.uniform(0.5, 1, (*shape[:2], 1, 1)) * (scenario.batch_sizes - 1)
    best_size = best_size - 0.4 * HALVINGS + 0.4 * random.standard_normal(every)
    top = 0.85 - 0.05 * HALVINGS + 0.05 * random.standard_normal((*shape[:2], 1, 1))
    x = bounds - best_bound[..., None, None]
    y = (np.arange(scenario.batch_sizes)[:, None] - best_size[..., None, None]) / 2
    loss = 0.03 * np.where(x < 0, 0.5 * x**2 / (1 + x**2), x**2) + 0.03 * y**2 * (1 - 0.5 * (y < 0))
    exact = np.maximum(top[..., None, None] - loss, 0.02)
    noise = random.standard_normal((*exact.shape, scenario.seeds))
    rates = random.standard_normal((*exact.shape, 2)) - np.array([0.7, 1.2])
    noise[..., 0] = np.maximum(noise[..., 0], rates.max(axis=-1))
    deviation = scenario.seed_deviation * (1 + 0.3 * HALVINGS)
    return exact, exact[..., None] + deviation[:, None, None, None] * noise


def growth(table: Array, bounds: Array) -> Array:
    """Slope of the best C over halvings of epsilon; (..., epsilons, B, C) to (..., )."""
    cells = table.reshape(*table.shape[:-2], -1).argmax(axis=-1)
    centred = HALVINGS - HALVINGS.mean()
    slopes: Array = bounds[cells % len(bounds)] @ centred / (centred @ centred)
    return slopes


def joint_gain(seen: Array, measured: Array) -> Array:
    """What the best cell of one table gains over tuning C at the middle B, then B, in another."""
    sizes, bounds = seen.shape[-2:]
    column = seen[..., sizes // 2, :].argmax(axis=-1)[..., None, None]
    row = np.take_along_axis(seen, column, axis=-1).argmax(axis=-2)[..., 0]
    flat = measured.reshape(*measured.shape[:-2], -1)
    chosen = np.stack(
        [seen.reshape(flat.shape).argmax(axis=-1), row * bounds + column[..., 0, 0]], axis=-1
    )
    accuracies = np.take_along_axis(flat, chosen, axis=-1)
    gains: Array = accuracies[..., 0] - accuracies[..., 1]
    return gains.mean(axis=-1)  # over epsilons


def mean_without(accuracy: Array, seed: int) -> Array:
    """Mean over all seeds but one."""
    mean: Array = np.delete(accuracy, seed, axis=-1).mean(axis=-1)
    return mean


def locations(exact: Array, accuracy: Array, bounds: Array) -> tuple[Array, Array]:
    """Effects that are measured and true ones, (studies, datasets, problems)."""
    return growth(accuracy.mean(axis=-1), bounds), growth(exact, bounds)


def gains(exact: Array, accuracy: Array) -> tuple[Array, Array]:
    """The same for gains: cross-fitted, and in truth for the same choices."""
    splits = range(1, accuracy.shape[-1])
    seen = [mean_without(accuracy, seed) for seed in splits]
    found = [joint_gain(table, accuracy[..., s]) for table, s in zip(seen, splits, strict=True)]
    true = [joint_gain(table, exact) for table in seen]
    return np.mean(found, axis=0), np.mean(true, axis=0)


def tests(effects: Array) -> dict[str, Interval]:
    """The two intervals that verdicts rest on, with their p-values."""
    studies, datasets, problems = effects.shape
    groups = np.repeat(np.arange(datasets), problems).tolist()
    flat = effects.reshape(studies, -1)
    return {
        "here: t over comparisons": interval_here(flat, groups),
        "elsewhere: t over datasets": interval_elsewhere(flat, groups),
    }


def after_holm(effects: Array) -> dict[str, float]:
    """Share of studies that find a positive effect after Holm's correction, at least.

    Holm asks a p-value below 0.05 over the number of rules that are not decided yet: between a ninth of
    0.05 and 0.05. The least power is that where the other rules decide nothing.
    """
    return {
        name: round(float(((each.p_value * len(RULES) < LEVEL) & (each.lower > 0)).mean()), 3)
        for name, each in tests(effects).items()
    }


def candidates(
    effects: Array, accuracy: Array | None, bounds: Array, random: np.random.Generator
) -> dict[str, tuple[Array, Array]]:
    """Bounds of every interval that was considered, (studies,)."""
    studies, datasets, problems = effects.shape
    groups = np.repeat(np.arange(datasets), problems).tolist()
    flat = effects.reshape(studies, -1)
    centre = mean_effect(flat, groups)
    found = {name: interval[:2] for name, interval in tests(effects).items()}
    within = effects.var(axis=2, ddof=1).mean(axis=1)
    between = problems * effects.mean(axis=2).var(axis=1, ddof=1)
    pooled = (between * (datasets - 1) + within * datasets * (problems - 1)) / (flat.shape[1] - 1)
    reach = 1.96 * np.sqrt(np.where(between < within, pooled, between) / flat.shape[1])
    found["random effects, Wald"] = centre - reach, centre + reach
    drawn = random.integers(0, datasets, (500, studies, datasets))
    means = np.take_along_axis(effects.mean(axis=2)[None], drawn, axis=2).mean(axis=2)
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    found["bootstrap of datasets"] = low, high
    if accuracy is None:
        return found
    seeds = accuracy.shape[-1]
    draws = np.stack(
        [
            growth(accuracy[..., random.integers(0, seeds, seeds)].mean(axis=-1), bounds)
            for _ in range(20)
        ]
    ).reshape(20, studies, -1)
    rows = random.integers(0, flat.shape[1], (300, studies, flat.shape[1]))
    which = random.integers(0, 20, rows.shape)
    means = draws[which, np.arange(studies)[None, :, None], rows].mean(axis=2)
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    found["bootstrap of comparisons and seeds"] = low, high
    left_out = np.stack([growth(mean_without(accuracy, s), bounds) for s in range(seeds)])
    deviations = ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0).reshape(studies, -1)
    variance = (seeds - 1) / seeds * deviations
    total, squares = variance.sum(axis=1), (variance**2).sum(axis=1)
    degrees = np.maximum((seeds - 1) * total**2 / np.maximum(squares, 1e-300), 1)
    reach = student.ppf(0.975, degrees) * np.sqrt(total) / flat.shape[1]
    found["jackknife of seeds"] = centre - reach, centre + reach
    # Half way between what knows the noise alone and what takes every difference for noise.
    low, high = found["here: t over comparisons"]
    reach = np.sqrt(reach * (high - low) / 2)
    found["between jackknife and t"] = centre - reach, centre + reach
    # The jackknife also tells how far noise moves an effect, by how much more it does with a seed less.
    moved_back = seeds * effects - (seeds - 1) * left_out.mean(axis=0)
    for name, interval in tests(moved_back).items():
        found[f"{name}, bias removed"] = interval[:2]
    return found


def _covered(interval: Interval | None, truth: float) -> float | None:
    if interval is None:
        return None
    return round(float(((interval.lower <= truth) & (truth <= interval.upper)).mean()), 3)


def rate_intervals(scenario: Scenario, kind: str, studies: int, seed: int) -> list[dict[str, Any]]:
    """Coverage, mean width and power of every candidate in one scenario."""
    random, bounds = np.random.default_rng(seed), BOUNDS[scenario.clipping_bounds]

    def effects(which: Scenario, count: int) -> tuple[Array, Array, Array]:
        exact, accuracy = simulate(which, count, random)
        located = locations(exact, accuracy, bounds)
        return *(located if kind == "location" else gains(exact, accuracy)), accuracy

    many = replace(scenario, datasets=8)
    elsewhere = float(np.mean([effects(many, 100)[1].mean() for _ in range(4)]))
    found, true, accuracy = effects(scenario, studies)
    here = true.mean(axis=(1, 2))
    corrected = after_holm(found)
    without_noise = tests(true)
    return [
        {
            "kind": kind,
            "interval": name,
            "truth_elsewhere": round(elsewhere, 5),
            "bias": round(float((found - true).mean()), 5),
            "covers_elsewhere": round(float(((low <= elsewhere) & (elsewhere <= high)).mean()), 3),
            "covers_here": round(float(((low <= here) & (here <= high)).mean()), 3),
            "covers_elsewhere_without_noise": _covered(without_noise.get(name), elsewhere),
            "half_width": round(float((high - low).mean() / 2), 5),
            "power": round(float((low > 0).mean()), 3),
            "power_after_holm": corrected.get(name),
        }
        for name, (low, high) in candidates(
            found, accuracy if kind == "location" else None, bounds, random
        ).items()
    ]


BASE = Scenario()
SCENARIOS = {
    "5 datasets, 3 problems, 3 seeds, 7 x 5 cells": BASE,
    "3 datasets": replace(BASE, datasets=3),
    "8 datasets": replace(BASE, datasets=8),
    "2 seeds": replace(BASE, seeds=2),
    "5 seeds": replace(BASE, seeds=5),
    "7 x 3 cells": replace(BASE, clipping_bounds=3),
    "7 x 8 cells": replace(BASE, clipping_bounds=8),
    "4 x 5 cells": replace(BASE, batch_sizes=4),
    "7 x 7 cells, a decade apart": replace(BASE, clipping_bounds=7),
    "seeds scatter 2.5 times as much": replace(BASE, seed_deviation=0.01),
    "the same, 2 seeds": replace(BASE, seed_deviation=0.01, seeds=2),
    "all datasets and problems alike": replace(BASE, between_datasets=0, between_problems=0),
    "no effect": replace(BASE, effect=0),
}


def run(studies: int = 400) -> dict[str, Any]:
    """All scenarios, both kinds of effect."""
    started = time.process_time()
    rows = [
        {"scenario": name} | asdict(scenario) | row
        for index, (name, scenario) in enumerate(SCENARIOS.items())
        for kind in ("location", "gain")
        for row in rate_intervals(scenario, kind, studies, seed=index)
    ]
    return {
        "studies": studies,
        "cpu_seconds": round(time.process_time() - started, 1),
        "rows": rows,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=400, help="simulated studies per scenario")
    write_json(RESULT, run(parser.parse_args().studies))
    print(RESULT)
