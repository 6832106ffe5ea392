"""Tables of the costs of C, B and AUTO-S with a head on frozen features and with FiLM, and of the rules."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from benchmarks.common import RESULTS
from benchmarks.tables.markdown import columns, grid, interval, minus
from dpsweep.study.targets import listed

THEORY = RESULTS / "film" / "theory"
Row = dict[str, Any]


# -- shared ------------------------------------------------------------------------------------


def lost(row: Row) -> np.ndarray[Any, Any]:
    """Return the loss of every value along an axis against the best value, in points, all else tuned."""
    accuracy = np.array(row["accuracy"])
    return 100 * (accuracy.max() - accuracy)


def _relative(rows: Iterable[Row], position: int) -> str:
    """Describe the mean loss of a value of an axis, in percent of the best accuracy of each setting."""
    shares = [lost(row)[position] / max(row["accuracy"]) for row in rows]
    return f"{np.mean(shares):.0f} % of the best accuracy"


def _problem(row: Row, titles: dict[str, str]) -> str:
    """Return dataset, network and epochs of a row."""
    return f"{titles[row['dataset']]}, {titles[row['backbone']]}, {row['epochs']} epochs"


def _by_problem(rows: Iterable[Row], titles: dict[str, str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_problem(row, titles), []).append(row)
    return found


def _mean_over_problems(rows: Sequence[Row], values: Iterable[float]) -> str:
    """Describe the mean of values with its 95 % t interval over problems (dataset and network).

    Settings of a problem share data, network and test set, so problems are the independent units.
    """
    places = [(row["dataset"], row["backbone"]) for row in rows]
    means = pd.Series(list(values)).groupby(pd.MultiIndex.from_tuples(places)).mean()
    if len(means) < 3:
        few = f"in the mean of {len(means)} problems, too few for an interval"
        return f"{minus(f'{means.mean():+.1f}')} {few}"
    reach = student.ppf(0.975, len(means) - 1) * means.sem()
    found = interval(means.mean(), means.mean() - reach, means.mean() + reach, "+.1f")
    return f"{found} over {len(means)} problems"


def rules(studies: dict[str, Row]) -> list[str]:
    """Return a line for each rule and study: effect, interval, visible effect, verdict.

    Args:
        studies: the numbers of each study, by name.
    """

    def gain(row: Row) -> str:
        if row["effect"] is None:
            return "no comparison"
        ends = (row["lower_here"] or np.nan, row["upper_here"] or np.nan)
        return f"{interval(row['effect'], *ends, '+.2f')} {row['unit']}"

    def number(row: Row, key: str) -> str:
        return "" if row[key] is None else f"{row[key]:.2f}"

    shown = {
        "rule": lambda row: (
            f"{row['condition']}: {row['implication'][0].lower()}{row['implication'][1:]}"
        ),
        "study": "{study}",
        "gain [interval]": gain,
        "must exceed": lambda row: number(row, "threshold"),
        "visible": lambda row: number(row, "smallest_visible_here"),
        "comparisons": "{comparisons}",
        "units": "{units}",
        "units for": "{in_favour}",
        "against": "{against}",
        "verdict": "{verdict}",
    }
    of_studies = [
        [row | {"study": name} for row in each["rules"]] for name, each in studies.items()
    ]
    return columns(shown, [row for both in zip(*of_studies, strict=True) for row in both])


# -- a head on frozen features -------------------------------------------------------------------


def head_advice(numbers: Row) -> list[str]:
    """Return the advice for C from all settings."""
    rows, automatic = numbers["by_bound"], numbers["automatic"]
    smallest, largest = (np.array([lost(row)[place] for row in rows]) for place in (0, -1))
    beside, by_luck = numbers["beside_smallest"], sorted(numbers["chance"].values())
    hard = sum(max(row["accuracy"]) < 0.05 for row in rows)
    alike = minus(f"{beside['mean']:+.2f}")
    changed = _mean_over_problems(automatic, [100 * row["difference"] for row in automatic])
    return [
        f"- **Clip everything.** The smallest C of each grid, below nearly every norm, costs at most "
        f"{smallest.max():.1f} points against the luckiest C, {smallest.mean():.1f} in the mean of all "
        f"{len(rows)} settings ({_relative(rows, 0)}). Equally good values would "
        f"cost {by_luck[0]:.1f} to {by_luck[-1]:.1f} by chance alone.",
        f"- **Do not let C exceed the norms.** The largest C, above all of them, costs "
        f"{largest.min():.1f} to {largest.max():.1f} points, {largest.mean():.1f} in the mean "
        f"({_relative(rows, -1)}). It costs little only where nothing is learnt: the "
        f"best accuracy is below 5 % in {hard} settings.",
        f"- **AUTO-S has no C to tune**: points change by {changed}. AUTO-S and the smallest C both clip "
        f"everything: at the same B they differ by {alike} points in the mean of "
        f"{beside['cells']} cells (standard deviation {beside['deviation']:.2f}).",
    ]


def head_bounds(numbers: Row) -> list[str]:
    """Return the accuracies of every problem, and the costs of the smallest and largest C."""
    rows = []
    for name, members in _by_problem(numbers["by_bound"], numbers["titles"]).items():
        best = [100 * max(row["accuracy"]) for row in members]
        cells = [name, f"{min(best):.1f} to {max(best):.1f}"]
        for place in (0, -1):
            costs = [lost(row)[place] for row in members]
            bound = members[0]["values"][place]
            cells.append(f"{np.mean(costs):.1f}, at most {max(costs):.1f} (C = {bound:g})")
        rows.append(cells)
    study, ends = numbers["study"], numbers["ends"]
    head = ["problem", "best accuracy in %", "smallest C, points lost", "largest C, points lost"]
    return [
        *grid(head, rows),
        "",
        f"{study['cells']:,} cells, {study['trials']:,} trials, {study['seeds']} seeds; {study['hours']:g} "
        "hours of training on one core. The best learning rate is at an end of its grid in "
        f"{ends['at_an_end']} of {ends['cells']:,} cells.",
    ]


def head_batch_sizes(numbers: Row) -> list[str]:
    """Return the best B and the cost of the full batch, for every problem and epsilon."""
    sizes = {row["dataset"]: row["train_size"] for row in numbers["best"]}
    epsilons = sorted({row["epsilon"] for row in numbers["by_batch_size"]})
    rows = []
    for name, members in _by_problem(numbers["by_batch_size"], numbers["titles"]).items():
        cells = {}
        for row in members:
            best = row["values"][int(np.argmax(row["accuracy"]))]
            written = "N" if best == sizes[row["dataset"]] else f"{best:,.0f}"
            cells[row["epsilon"]] = f"{written} ({lost(row)[-1]:.1f})"
        rows.append([name, *(cells.get(epsilon, "") for epsilon in epsilons)])
    return grid(["best B (points that B = N costs)", *(f"ε = {x:g}" for x in epsilons)], rows)


# -- FiLM ----------------------------------------------------------------------------------------


class Film:
    """The settings of the FiLM study with all values of C and of B, and the costs of these values."""

    def __init__(self, numbers: Row) -> None:
        self.numbers = numbers
        self.low, self.high = min(numbers["norms"].values()), max(numbers["norms"].values())
        """Gradient norms before training, over the problems."""
        self.of_bound, self.of_size = (self._whole(x) for x in ("bound", "batch_size"))
        self.bounds, self.sizes = (rows[0]["values"] for rows in (self.of_bound, self.of_size))
        self.by_bound, self.by_size = (
            np.array([lost(row) for row in rows]) for rows in (self.of_bound, self.of_size)
        )
        """Points below the best value, (settings, values)."""
        self.below = sum(bound < self.low for bound in self.bounds)
        """Number of bounds below the norms."""
        self.trained, self.cells = map(sum, zip(*numbers["trained"].values(), strict=True))

    def _whole(self, axis: str) -> list[Row]:
        rows: list[Row] = self.numbers[f"by_{axis}"]
        values = sorted({value for row in rows for value in row["values"]})
        return [row for row in rows if row["values"] == values]


def film_claims(numbers: Row) -> list[str]:
    """Return the findings of the README: one sentence each about C, B and AUTO-S."""
    film = Film(numbers)
    below, above = film.by_bound[:, : film.below], film.by_bound[:, -1]
    small = listed(f"{bound:g}" for bound in film.bounds[: film.below])
    changes = [100 * row["difference"] for row in numbers["automatic"]]
    low, high = (minus(f"{end(changes):+.1f}") for end in (min, max))
    return [
        f"**Keep C below the gradient norms**: C = {small} lose {below.mean():.1f} points in the mean of "
        f"{len(below)} settings, and C = {film.bounds[-1]:g}, above the norms, loses {above.min():.1f} to "
        f"{above.max():.1f}.",
        f"**Tune B and the learning rate**: a wrong B alone loses up to {film.by_size.max():.1f} points.",
        f"**AUTO-S needs no C**: it changes {low} to {high} points against a tuned C in {len(changes)} "
        "settings.",
    ]


def film_advice(numbers: Row) -> list[str]:
    """Return the advice for C, B and AUTO-S from all settings with all values."""
    film, chance = Film(numbers), numbers["chance"]
    means, above = film.by_bound.mean(axis=0), film.by_bound[:, -1]
    small = listed(f"{bound:.3g}" for bound in film.bounds[: film.below])
    costs = listed(f"{each:.3g}" for each in means[: film.below].round(1))
    shares = [_relative(film.of_bound, place) for place in range(film.below)]
    shares = [each.removesuffix(" of the best accuracy") for each in shares]
    safest = int(film.by_size.max(axis=0).argmin())
    lost_by_size = film.by_size[:, safest]
    by_epsilon: dict[float, list[Row]] = {}
    for row in film.of_bound:
        by_epsilon.setdefault(row["epsilon"], []).append(row)
    smallest = listed(
        f"{np.mean([lost(row)[0] for row in rows]):.1f} points ({_relative(rows, 0)}) at ε = {epsilon:g}"
        for epsilon, rows in by_epsilon.items()
    )
    said = [
        f"**Take a C below the gradient norms**, which are {film.low:.0f} to {film.high:.0f} before "
        f"training. C = {small} cost {costs} points in the mean ({listed(shares)} of the best "
        f"accuracy). Chance alone would cost equally good values about {chance:.1f}.",
        f"**Not above them**: C = {film.bounds[-1]:g} costs {above.min():.1f} to {above.max():.1f} points "
        f"({_relative(film.of_bound, -1)} in the mean). "
        f"Nothing between {film.bounds[-2]:g} and {film.bounds[-1]:g} is trained.",
        f"**Tune B**: a wrong B costs up to {film.by_size.max():.1f} points. B = {film.sizes[safest]:,} lost "
        f"the least at worst: {lost_by_size.mean():.1f} points in the mean "
        f"({_relative(film.of_size, safest)}) and {lost_by_size.max():.1f} at "
        "most. It is chosen and judged on the same settings, so it may lose more elsewhere.",
        f"**Nothing here says to raise C for a small ε**: C = {film.bounds[0]:g} costs {smallest} in the "
        f"mean, which differ by less than chance makes of equally good values ({chance:.1f} points).",
    ]
    if rows := numbers["automatic"]:
        changes = [100 * row["difference"] for row in rows]
        low, high = (minus(f"{end(changes):+.1f}") for end in (min, max))
        said.append(
            f"**AUTO-S has no C to tune**: it changes {low} to {high} points against a tuned C in "
            f"{len(rows)} settings: {_mean_over_problems(rows, changes)}."
        )
    return [f"- {each}" for each in said]


def film_costs(numbers: Row) -> list[str]:
    """Return the mean costs of each C and B for every network, data and epsilon; means and maxima."""
    film, rows = Film(numbers), []
    costs: dict[str, list[tuple[float, ...]]] = {}
    for by_bound, by_size in zip(numbers["by_bound"], numbers["by_batch_size"], strict=True):
        if by_bound in film.of_bound and by_size in film.of_size:
            problem, _, _ = _problem(by_bound, numbers["titles"]).rpartition(", ")
            name = f"{problem}, ε = {by_bound['epsilon']:g}"
            best = 100 * max(by_bound["accuracy"])
            costs.setdefault(name, []).append((best, *lost(by_bound), *lost(by_size)))
    for name, found in costs.items():
        rows.append([name, *(f"{each:.1f}" for each in np.mean(found, axis=0))])
    both = np.hstack([film.by_bound.mean(axis=0), film.by_size.mean(axis=0)])
    most = np.hstack([film.by_bound.max(axis=0), film.by_size.max(axis=0)])
    for name, values in {"mean": both, "at most": most}.items():
        rows.append([f"**{name}**", "", *(f"**{value:.1f}**" for value in values)])
    heads = [f"C = {value:g}" for value in film.bounds] + [
        f"B = {value:,g}" for value in film.sizes
    ]
    study, ends, best = numbers["study"], numbers["ends"], pd.DataFrame(numbers["best"])
    apart = 100 * (best["maximum"] - best["minimum"]).mean()
    tested = best["dataset"].map(numbers["test_examples"])
    error = 100 * np.sqrt(best["centre"] * (1 - best["centre"]) / tested).max()
    return [
        *grid(["points below the best", "best, in %", *heads], rows),
        "",
        f"{film.trained} of {film.cells} cells of `studies/film.yaml` are trained: {study['trials']:,} "
        f"trials with {study['seeds']} seeds, {study['hours']:g} hours on one core. The seeds of a best "
        f"cell lie {apart:.1f} points apart in the mean; the test images give the accuracy of one model a "
        f"standard error of up to {error:.1f} points. The best learning rate is at an end of its grid in "
        f"{ends['at_an_end']} of {ends['cells']} cells.",
    ]


def compare_methods(numbers: Row, head: Row) -> list[str]:
    """Compare the costs of C with FiLM and with a head, for the same networks, epsilons and epochs."""
    film, same = Film(numbers), ("dataset", "backbone", "epsilon", "epochs")
    heads = {tuple(row[name] for name in same): row for row in head["by_bound"]}
    found = [(row, heads.get(tuple(row[name] for name in same))) for row in film.of_bound]
    pairs = [(row, other) for row, other in found if other is not None]
    said = []
    for method, rows in zip(("FiLM", "the head"), zip(*pairs, strict=True), strict=True):
        (low, *_, high), costs = (
            rows[0]["values"],
            np.mean([lost(row)[[0, -1]] for row in rows], axis=0),
        )
        said.append(
            f"with {method}, C = {low:g} costs {costs[0]:.1f} points in the mean, and C = {high:g} costs "
            f"{costs[1]:.1f}"
        )
    largest, problems = film.bounds[-1], {(row["dataset"], row["backbone"]) for row, _ in pairs}
    return [
        f"In the {len(pairs)} settings that both studies have, {'; '.join(said)}. The largest C is "
        f"{largest / film.high:.1f} to {largest / film.low:.1f} times the norm before training with FiLM, "
        f"and 2.9 times with the head. These are {len(problems)} problems: too few for an interval, so this "
        "neither says nor excludes that C matters more with FiLM."
    ]


def film_plateau(numbers: Row) -> list[str]:
    """Compare the plateau of C with predictions of the theory after the last epoch."""
    film, last = (
        Film(numbers),
        pd.read_csv(THEORY / "optimal_clipping.csv").query("epoch == epochs"),
    )
    below, large, means = film.bounds[: film.below], film.bounds[-1], film.by_bound.mean(axis=0)
    start, ends = last["plateau_lower"].max(), last["plateau_upper"]
    inside = start <= below[0] and below[-1] <= ends.min() and ends.max() < large
    agrees = f"so every C below the norms is in it, and C = {large:g} is not, as in the accuracies"
    rules = pd.read_csv(THEORY / "predictions.csv").query("rule == 'Scale-free C'")
    above = rules[rules["grid_bound"] == large]
    return [
        f"- **R predicts the plateau of C**: it is within 2 % of its maximum from C = {start:.2g} up to "
        f"{ends.min():.0f} at least and {ends.max():.0f} at most, "
        f"{agrees if inside else 'which is not where accuracies are equal'}.",
        f"- **C\\* does not**: it is {last['best_bound'].min():.2g} to {last['best_bound'].max():.2g}; "
        f"C = {below[0]:g} costs {means[0]:.1f} points in the mean, and C = {below[-1]:g} "
        f"{means[film.below - 1]:.1f}.",
        "- **Do not take the scale-free C itself**: it lies near the upper end of the plateau. The "
        f"nearest C that is trained is {large:g} in {len(above)} of {len(rules)} settings, which "
        f"costs up to {100 * above['lost'].max():.1f} points.",
    ]
