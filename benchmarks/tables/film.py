"""What C and B cost with FiLM, beside a head, and what the theory says of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import RESULTS
from benchmarks.tables.accuracies import (
    Row,
    mean_over_problems,
    points,
    points_lost,
    problem_name,
    relative,
)
from benchmarks.tables.markdown import grid
from dpsweep.study.captions import listed

KEPT = RESULTS / "film"
THEORY = KEPT / "theory"


def claim(numbers: Row) -> str:
    """The sentence of the README: what a C below the norms costs, and what one above them does."""
    done, cells = _cells_trained(numbers)
    bounds, lost = _lost(numbers, "bound")
    low, high = _norms_before_training(numbers)
    below = np.array(bounds) < low
    so_far = "" if done == cells else f" ({done} of {cells} cells so far)"
    small = listed(f"{bound:g}" for bound in np.array(bounds)[below])
    return (
        f"With FiLM and the network in the loop{so_far}, gradient norms start at {low:.0f} to {high:.0f}. "
        f"C = {small} lie {lost[:, below].mean():.1f} points below the best C in the mean of {len(lost)} "
        f"settings, and {lost[:, below].max():.1f} at most; C = {bounds[-1]:g}, above the norms, lies "
        f"{lost[:, -1].min():.1f} to {lost[:, -1].max():.1f} points below it."
    )


def advice(numbers: Row) -> list[str]:
    """What to do about C, B and AUTO-S, over all settings in which every value is trained."""
    bounds, by_bound = _lost(numbers, "bound")
    sizes, by_size = _lost(numbers, "batch_size")
    low, high = _norms_before_training(numbers)
    below = int((np.array(bounds) < low).sum())
    means = by_bound.mean(axis=0)
    safest = by_size.max(axis=0).argmin()
    some, lost = (listed(f"{each:.3g}" for each in row[:below]) for row in (bounds, means.round(1)))
    of_bound, of_size = (_whole(numbers, axis) for axis in ("bound", "batch_size"))
    shares = listed(relative(of_bound, position) for position in range(below))
    said = [
        f"**Take a C below the gradient norms**, which are {low:.0f} to {high:.0f} before training. "
        f"C = {some} cost {lost} points in the mean ({shares} of the best "
        f"accuracy). If they were equally good, each would still cost about "
        f"{numbers['chance']:.1f}, because seeds scatter and the best one is lucky.",
        f"**Not above them**: C = {bounds[-1]:g} costs {by_bound[:, -1].min():.1f} to "
        f"{by_bound[:, -1].max():.1f} points ({relative(of_bound, -1)} of the best accuracy in the mean). "
        f"Nothing between {bounds[-2]:g} and {bounds[-1]:g} is trained.",
        f"**Tune B**: a wrong B costs up to {by_size.max():.1f} points. B = {sizes[safest]:,} lost the least "
        f"at worst: {by_size[:, safest].mean():.1f} points in the mean "
        f"({relative(of_size, safest)} of the best accuracy) and {by_size[:, safest].max():.1f} at "
        "most. It is chosen and judged on the same settings, so it may lose more elsewhere.",
        f"**Nothing here says to raise C for a small ε**: {_small_bound_by_epsilon(numbers)}.",
    ]
    if rows := numbers["automatic"]:
        differences = [100 * row["difference"] for row in rows]
        said.append(
            f"**AUTO-S has no C to tune**: it changes {points(min(differences) / 100)} to "
            f"{points(max(differences) / 100)} points against a tuned C in {len(rows)} settings: "
            f"{mean_over_problems(rows, differences)}."
        )
    return [f"- {each}" for each in said]


def costs(numbers: Row) -> list[str]:
    """What each C and each B costs in every setting, and over those that have all values."""
    axes = {"C": "bound", "B": "batch_size"}
    columns = {name: _lost(numbers, axis) for name, axis in axes.items()}
    whole_bounds, whole_sizes = (_whole(numbers, axis) for axis in axes.values())
    rows = []
    for by_bound, by_size in zip(*(numbers[f"by_{axis}"] for axis in axes.values()), strict=True):
        if by_bound in whole_bounds and by_size in whole_sizes:
            lost = [*_below_the_best(by_bound), *_below_the_best(by_size)]
            name = f"{problem_name(by_bound, numbers['titles'])}, ε = {by_bound['epsilon']:g}"
            rows.append(
                [name, f"{100 * max(by_bound['accuracy']):.1f}", *(f"{each:.1f}" for each in lost)]
            )
    summaries: dict[str, Callable[..., Any]] = {"mean": np.mean, "at most": np.max}
    for name, of in summaries.items():
        numbers_of = [value for _, lost in columns.values() for value in of(lost, axis=0)]
        rows.append([f"**{name}**", "", *(f"**{value:.1f}**" for value in numbers_of)])
    heads = [f"{name} = {value:,g}" for name, (values, _) in columns.items() for value in values]
    return [*grid(["points below the best", "best, in %", *heads], rows), "", _study(numbers)]


def _study(numbers: Row) -> str:
    """Its size, and how far seeds and test sets make its numbers uncertain."""
    study, ends, best = numbers["study"], numbers["ends"], numbers["best"]
    done, cells = _cells_trained(numbers)
    apart = np.mean([100 * (row["maximum"] - row["minimum"]) for row in best])
    errors = [
        100
        * np.sqrt(row["centre"] * (1 - row["centre"]) / numbers["test_examples"][row["dataset"]])
        for row in best
    ]
    return (
        f"{done} of {cells} cells of `studies/film.yaml` are trained: {study['trials']:,} trials with "
        f"{study['seeds']} seeds, {study['hours']:g} hours on one core. The seeds of a best cell lie "
        f"{apart:.1f} points apart in the mean; the test images give the accuracy of one model a standard "
        f"error of up to {max(errors):.1f} points. The best learning rate is at an end of its grid in "
        f"{ends['at_an_end']} of {ends['cells']} cells."
    )


def beside_a_head(numbers: Row, head: Row) -> list[str]:
    """Whether C matters more with FiLM, where both are trained for as long with the same network."""
    same = ("dataset", "backbone", "epsilon", "epochs")
    heads = {tuple(row[name] for name in same): row for row in head["by_bound"]}
    pairs = [
        (row, heads[key])
        for row in _whole(numbers, "bound")
        if (key := tuple(row[name] for name in same)) in heads
    ]
    films, others = zip(*pairs, strict=True)
    said = []
    for method, rows in (("FiLM", films), ("the head", others)):
        lost = np.array([_below_the_best(row) for row in rows])[:, [0, -1]]
        bounds = rows[0]["values"]
        said.append(
            f"with {method}, C = {bounds[0]:g} costs {lost[:, 0].mean():.1f} points in the mean, and C = "
            f"{bounds[-1]:g} costs {lost[:, 1].mean():.1f}"
        )
    largest, norms = numbers["by_bound"][0]["values"][-1], _norms_before_training(numbers)
    problems = len({(row["dataset"], row["backbone"]) for row in films})
    return [
        f"In the {len(pairs)} settings that both studies have, {'; '.join(said)}. The largest C is "
        f"{largest / norms[1]:.1f} to {largest / norms[0]:.1f} times the norm before training with FiLM, and "
        f"2.9 times with the head. These are {problems} problems: too few for an interval, so this neither "
        "says nor excludes that C matters more with FiLM."
    ]


def plateau(numbers: Row) -> list[str]:
    """Which quantity of the theory says which values of C are equally good, after the last epoch."""
    traced = pd.read_csv(THEORY / "optimal_clipping.csv")
    last = traced[traced["epoch"] == traced["epochs"]]
    bounds, lost = _lost(numbers, "bound")
    below = [bound for bound in bounds if bound < _norms_before_training(numbers)[0]]
    inside = (last["plateau_lower"].max() <= below[0]) & (last["plateau_upper"].min() >= below[-1])
    outside = last["plateau_upper"].max() < bounds[-1]
    agrees = (
        f"so every C below the norms is in it, and C = {bounds[-1]:g} is not, as in the accuracies"
        if inside and outside
        else "which is not where accuracies are equal"
    )
    said = [
        f"- **R predicts the plateau of C**: it is within 2 % of its maximum from C = "
        f"{last['plateau_lower'].max():.2g} up to {last['plateau_upper'].min():.0f} at least and "
        f"{last['plateau_upper'].max():.0f} at most, {agrees}.",
        f"- **C\\* does not**: it is {last['best_bound'].min():.2g} to {last['best_bound'].max():.2g}; "
        f"C = {below[0]:g} costs {lost[:, 0].mean():.1f} points in the mean, and C = {below[-1]:g} "
        f"{lost[:, len(below) - 1].mean():.1f}.",
    ]
    rules = pd.read_csv(THEORY / "predictions.csv")
    best = rules[rules["rule"] == "Scale-free C"]
    above = best[best["grid_bound"] == bounds[-1]]
    if len(above):
        said.append(
            "- **Do not take the scale-free C itself**: it lies near the upper end of the plateau. The "
            f"nearest C that is trained is {bounds[-1]:g} in {len(above)} of {len(best)} settings, which "
            f"costs up to {100 * above['lost'].max():.1f} points."
        )
    return said


def _small_bound_by_epsilon(numbers: Row) -> str:
    """What the smallest C costs at each epsilon, in points and relative to the best accuracy."""
    of: dict[float, list[Row]] = {}
    rows = _whole(numbers, "bound")
    for row in rows:
        of.setdefault(row["epsilon"], []).append(row)
    smallest = rows[0]["values"][0]
    costs = [
        f"{np.mean([points_lost(row, 0) for row in each]):.1f} points ({relative(each, 0)} of the best "
        f"accuracy) at ε = {epsilon:g}"
        for epsilon, each in of.items()
    ]
    return (
        f"C = {smallest:g} costs {listed(costs)} in the mean, which differ by less than chance makes of "
        f"equally good values ({numbers['chance']:.1f} points)"
    )


def _norms_before_training(numbers: Row) -> tuple[float, float]:
    """The smallest and the largest over the problems."""
    return min(numbers["norms"].values()), max(numbers["norms"].values())


def _cells_trained(numbers: Row) -> tuple[int, int]:
    """How many cells are trained, and how many there are."""
    done, cells = map(sum, zip(*numbers["trained"].values(), strict=True))
    return done, cells


def _lost(numbers: Row, axis: str) -> tuple[list[float], np.ndarray[Any, Any]]:
    """Points that every value of an axis lies below the best one, everything else tuned with it.

    Returns:
        The values, ascending, and the points, (settings in which every value is trained, values).
    """
    rows = _whole(numbers, axis)
    return rows[0]["values"], np.array([_below_the_best(row) for row in rows])


def _whole(numbers: Row, axis: str) -> list[Row]:
    """The settings in which every value of an axis is trained."""
    rows: list[Row] = numbers[f"by_{axis}"]
    values = sorted({value for row in rows for value in row["values"]})
    return [row for row in rows if row["values"] == values]


def _below_the_best(row: Row) -> list[float]:
    return [100 * (max(row["accuracy"]) - each) for each in row["accuracy"]]
