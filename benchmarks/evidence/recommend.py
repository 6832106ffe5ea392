"""How good is what `dpsweep recommend` advises, and what would be better?

    python -m benchmarks.evidence.recommend
    python -m benchmarks.evidence.recommend --keep results/demo-rates   # first keeps what it has trained

Settings of a rule are looked up among those that were trained (the nearest on logarithmic axes), and
compared with a search of the whole grid. Trials are committed: those of the studies on frozen features and
on FiLM, and those of studies/demo-rates.yaml. The result is behind the tables of docs/recommend.md.

Nothing measures itself. A rule reads no accuracies, so the first seed measures it: that seed trains every
learning rate, whereas the others repeat the best one, which is the luckiest. Of a small grid the first seed
chooses, and the others measure where they repeat what is chosen. A search is cross-fitted.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.findings.numbers import TRIALS, gather, norm_before_training
from dpsweep.base.files import atomic_path, read_json, write_json
from dpsweep.figures import style
from dpsweep.recommend.rule import BOUND, RATES, SIZES, learning_rate, smallest_batch_size
from dpsweep.recommend.situation import expected_gradient_norm
from dpsweep.study import load_study
from dpsweep.study.choice import cross_fitted
from dpsweep.study.paths import Paths

RESULT = RESULTS / "recommend.json"
FILM, DEMO = RESULTS / "film", RESULTS / "demo_rates.parquet"
IMAGE = REPOSITORY / "docs" / "images" / "regret"
STUDIES = {
    name: REPOSITORY / "studies" / f"{name}.yaml"
    for name in ("demo-rates", "frozen-features", "film")
}
PROBLEM = ["dataset", "backbone", "method", "optimizer", "epsilon", "epochs"]
UNIT = ["dataset", "backbone", "method"]
SEARCH, FORMULA = "search of the whole grid", "formula"
Setting = tuple[float, float, float]
"""B, C and the learning rate."""


@dataclass(frozen=True)
class _TrainedCell:
    """Accuracies over the learning rates of one B and C."""

    rates: np.ndarray
    first: np.ndarray
    """of the first seed"""
    mean: np.ndarray
    """over all seeds of a rate"""
    best: int
    """the tuned rate"""
    selection: np.ndarray
    """selection accuracies of the tuned rate, over seeds, that which tuned it first"""
    accuracy: np.ndarray
    """test accuracies, likewise"""


class Problem:
    """What was trained with a clipping bound on one problem at one epsilon and number of epochs."""

    def __init__(self, trials: pd.DataFrame, norm: float) -> None:
        self.facts = trials.iloc[0][PROBLEM].to_dict()
        self.norm = norm
        # Not recorded of the heads on frozen features, whose norms are the computed ones.
        measured = norm_before_training(trials)
        self.measured_norm = norm if math.isnan(measured) else measured
        self.whole = int(trials["train_size"].iloc[0])
        by_size = trials.drop_duplicates("batch_size").set_index("batch_size").sort_index()
        self.steps = {int(size): int(steps) for size, steps in by_size["steps"].items()}
        noise = by_size["noise_multiplier"] * np.sqrt(by_size["steps"])
        self.size = smallest_batch_size(lambda size: float(noise[size]), self.steps)
        self._cells: dict[int, dict[float, _TrainedCell]] = {}
        for (size, bound), rows in trials.groupby(["batch_size", "clipping_bound"]):
            self._cells.setdefault(int(size), {})[float(bound)] = _trained_cell(rows)

    @property
    def source(self) -> str:
        """The dataset that its data are part of: names begin with it."""
        return str(self.facts["dataset"]).partition("-")[0]

    def searched(self, size: float | None = None, bound: float | None = None) -> float:
        """Accuracy that a search of the whole grid gets, by seeds that did not choose.

        Args:
            size: B, to be found nearby; by default every B is searched.
            bound: C, likewise.
        """
        sizes = self._cells if size is None else [self.nearest_size(size)]
        cells = [
            self._cells[each][one]
            for each in sizes
            for one in self._cells[each]
            if bound is None or one == _nearest(list(self._cells[each]), bound)
        ]
        seeds = min(len(each.accuracy) for each in cells)
        selection, accuracy = (
            np.array([getattr(each, name)[:seeds] for each in cells])
            for name in ("selection", "accuracy")
        )
        return cross_fitted(selection, accuracy)

    @property
    def best(self) -> float:
        """The best setting of the whole grid by the mean over its seeds, luck included."""
        cells = (cell for row in self._cells.values() for cell in row.values())
        return max(float(cell.mean[cell.best]) for cell in cells)

    def nearest_size(self, size: float) -> int:
        """The trained B that is nearest."""
        return int(_nearest(list(self._cells), min(size, self.whole)))

    def rate(self, size: float, power: float = 0.5) -> float:
        """The formula's learning rate for a B, or with another power of T that agrees with it at T = 100."""
        steps = self.steps[self.nearest_size(size)]
        return learning_rate(self.norm, steps) * (steps / 100) ** (0.5 - power)

    @property
    def setting(self) -> Setting:
        """What the formula advises."""
        return self.size, BOUND * self.norm, self.rate(self.size)

    def chosen(self, settings: Iterable[Setting]) -> tuple[float, bool]:
        """Accuracy of the setting that the first seed finds best, and whether other seeds measure it."""
        found = [(cell.first[rate], cell, rate) for cell, rate in map(self._look, settings)]
        accuracy, cell, rate = max(found, key=lambda each: each[0])
        others = cell.accuracy[1:]
        if len(found) > 1 and rate == cell.best and len(others):
            return float(others.mean()), True
        return float(accuracy), len(found) == 1

    def lucky(self, settings: Iterable[Setting]) -> float:
        """The best of some settings by the mean over their seeds, luck included."""
        return max(float(cell.mean[rate]) for cell, rate in map(self._look, settings))

    def best_setting(self) -> Setting:
        """The best tuned setting of the whole grid."""
        tuned = {
            (size, bound): cell for size, row in self._cells.items() for bound, cell in row.items()
        }
        (size, bound), cell = max(tuned.items(), key=lambda each: each[1].selection.mean())
        return size, bound, float(cell.rates[cell.best])

    def _look(self, setting: Setting) -> tuple[_TrainedCell, int]:
        size, bound, rate = setting
        row = self._cells[self.nearest_size(size)]
        cell = row[_nearest(list(row), bound)]
        return cell, int(np.abs(np.log(cell.rates / rate)).argmin())


def _trained_cell(rows: pd.DataFrame) -> _TrainedCell:
    rows = rows.sort_values("seed")
    rate, accuracy = rows["learning_rate"].to_numpy(), rows["macro_accuracy"].to_numpy()
    tuned = rows[rows["best"]]
    rates, first = np.unique(rate, return_index=True)
    return _TrainedCell(
        rates=rates,
        first=accuracy[first],
        mean=np.array([accuracy[rate == each].mean() for each in rates]),
        best=int(np.flatnonzero(rates == tuned["learning_rate"].iloc[0])[0]),
        selection=tuned["selection_accuracy"].to_numpy(),
        accuracy=tuned["macro_accuracy"].to_numpy(),
    )


def _nearest(values: Sequence[float], wanted: float) -> float:
    return min(values, key=lambda each: abs(math.log(each / wanted)))


def kept_trials() -> pd.DataFrame:
    """The committed trials under a privacy guarantee: of heads, of FiLM, and of the demo's problems."""
    files = [TRIALS, *sorted(FILM.glob("*.parquet")), DEMO]
    trials = pd.concat(map(pd.read_parquet, files), ignore_index=True)
    return trials[trials["epsilon"] < math.inf].drop_duplicates("trial_key")


def swept_problems(trials: pd.DataFrame) -> list[Problem]:
    """The problems that were swept over several flat bounds, batch sizes and learning rates."""
    norms: dict[tuple[str, ...], float] = {}
    for study in map(load_study, STUDIES.values()):
        for sweep, parts in study.sweeps.items():
            unit = (parts.dataset, parts.backbone, parts.method)
            if unit not in norms:
                norms[unit] = expected_gradient_norm(study, sweep)
    flat = trials[trials["clipping"] == "flat"]
    return [
        Problem(group, norms[tuple(group.iloc[0][UNIT])])
        for _, group in flat.groupby(PROBLEM)
        if group["batch_size"].nunique() > 1 and group["clipping_bound"].nunique() > 1
    ]


def by_reference_points(problem: Problem, problems: Sequence[Problem]) -> Setting:
    """What the best settings on other sources of data advise: means of C / G and of the rate times G sqrt(T).

    Each source counts the same, and a point the less the further its epsilon is away.
    """
    others = [each for each in problems if each.source != problem.source]
    weights = np.array(
        [
            1 / (1 + abs(math.log2(each.facts["epsilon"] / problem.facts["epsilon"])))
            for each in others
        ]
    )
    sources = np.array([each.source for each in others])
    for name in set(sources):
        weights[sources == name] /= weights[sources == name].sum()
    best = [each.best_setting() for each in others]
    bounds, rates = np.array(
        [
            (
                bound / each.measured_norm,
                rate * each.measured_norm * math.sqrt(each.steps[int(size)]),
            )
            for each, (size, bound, rate) in zip(others, best, strict=True)
        ]
    ).T
    bound, rate = (
        math.exp(np.average(np.log(values), weights=weights)) for values in (bounds, rates)
    )
    return problem.size, bound * problem.norm, rate * problem.rate(problem.size)


def rules(problems: Sequence[Problem]) -> dict[str, Callable[[Problem], list[Setting]]]:
    """Every rule that is judged, as the settings that it tries on a problem."""

    def scaled(
        bound: float = 1.0, rate: float = 1.0, size: float = 1.0
    ) -> Callable[[Problem], list[Setting]]:
        def settings(problem: Problem) -> list[Setting]:
            wanted = size * problem.size
            return [(wanted, bound * BOUND * problem.norm, rate * problem.rate(wanted))]

        return settings

    def measured(problem: Problem) -> list[Setting]:
        longer = problem.measured_norm / problem.norm
        size, bound, rate = problem.setting
        return [(size, bound * longer, rate / longer)]

    def grid(
        sizes: Sequence[float], bounds: Sequence[float], own_rates: bool = True
    ) -> Callable[[Problem], list[Setting]]:
        def settings(problem: Problem) -> list[Setting]:
            return [
                (
                    size * problem.size,
                    bound * BOUND * problem.norm,
                    factor * problem.rate(problem.size * (size if own_rates else 1)),
                )
                for size in sizes
                for bound in bounds
                for factor in RATES
            ]

        return settings

    def habit(bound: float, size: float, rate: float) -> Callable[[Problem], list[Setting]]:
        return lambda _: [(size, bound, rate)]

    def tempered(problem: Problem) -> list[Setting]:
        size, bound, rate = problem.setting
        return [(size, bound, rate * (problem.facts["epsilon"] / 2) ** 0.2)]

    def flatter(problem: Problem) -> list[Setting]:
        size, bound, _ = problem.setting
        return [(size, bound, problem.rate(size, power=0.4))]

    return {
        FORMULA: scaled(),
        "reference points of other sources": lambda each: [by_reference_points(each, problems)],
        "rate × 0.5": scaled(rate=0.5),
        "rate × 0.7": scaled(rate=0.7),
        "rate × 1.4": scaled(rate=1.4),
        "rate × 2": scaled(rate=2),
        "G as measured": measured,
        "rate × (ε / 2)^0.2": tempered,
        "rate with T^0.4": flatter,
        "C × 1/4": scaled(bound=1 / 4),
        "C × 4": scaled(bound=4),
        "B × 1/4": scaled(size=1 / 4),
        "B × 4": scaled(size=4),
        "full batch": lambda each: [(each.whole, each.setting[1], each.rate(each.whole))],
        "habit: C = 1, B = 256, rate 0.001": habit(1, 256, 0.001),
        "habit: C = 1, B = 256, rate 0.01": habit(1, 256, 0.01),
        "habit: C = 1, B = 1,024, rate 0.01": habit(1, 1024, 0.01),
        "habit: C = 0.1, B = 256, rate 0.01": habit(0.1, 256, 0.01),
        "three runs: rates": grid((1,), (1,)),
        "six runs: {B, 4B} × rates": grid(SIZES[1:], (1,)),
        "small grid: {B/4, B, 4B} × rates": grid(SIZES, (1,)),
        "the same, with the rates of B": grid(SIZES, (1,), own_rates=False),
        "nine runs: C × {1/4, 1, 4} × rates": grid((1,), (1 / 4, 1, 4)),
    }


def judged(problems: Sequence[Problem]) -> pd.DataFrame:
    """Points that every rule loses against the search, and against the luckiest setting."""
    tried = rules(problems)
    rows: list[dict[str, Any]] = []
    for problem in problems:
        facts = problem.facts | {"source": problem.source}
        best, searched = problem.best, problem.searched()
        rows.append(facts | {"rule": SEARCH, "loss": 0.0, "regret": best - searched, "fair": True})
        for name, rule in tried.items():
            settings = rule(problem)
            accuracy, fair = problem.chosen(settings)
            regret = best - problem.lucky(settings)
            loss = searched - accuracy
            rows.append(facts | {"rule": name, "loss": loss, "regret": regret, "fair": fair})
    frame = pd.DataFrame(rows)
    return frame.assign(loss=100 * frame["loss"], regret=100 * frame["regret"])


def split(problem: Problem) -> dict[str, float]:
    """Where the regret comes from, in points; the parts add up but for the luck of the formula's seeds."""
    size, bound, _ = problem.setting
    searched, own_size = problem.searched(), problem.searched(size)
    own_cell = problem.searched(size, bound)
    accuracy, _ = problem.chosen([problem.setting])
    parts = {
        "luck": problem.best - searched,
        "B": searched - own_size,
        "C": own_size - own_cell,
        "rate": own_cell - accuracy,
    }
    return {name: 100 * each for name, each in parts.items()}


def estimate(values: "pd.Series[float]", sources: "pd.Series[str]") -> list[float]:
    """Return the mean that counts each source the same, and the ends of its 95 % interval.

    Args:
        values: of units.
        sources: of the same units, which scatter alike within each.
    """
    groups = values.groupby(sources.to_numpy())
    counts, mean = groups.size(), groups.mean().mean()
    freedom = int((counts - 1).sum())
    variance = float((groups.var(ddof=1) * (counts - 1)).sum()) / freedom
    error = math.sqrt(variance * (1 / counts).sum()) / len(counts)
    half = t.ppf(0.975, freedom) * error
    return [round(float(each), 3) for each in (mean, mean - half, mean + half)]


def summary(frame: pd.DataFrame) -> dict[str, Any]:
    """Means of every rule with intervals, by source, and differences from the formula."""
    units = frame.groupby(["rule", "source", *UNIT], sort=False)[["loss", "regret"]].mean()
    formula = units.loc[FORMULA]
    found = {}
    for name in frame["rule"].unique():
        mine = units.loc[name]
        sources = mine.index.get_level_values("source").to_series()
        by_source = mine.groupby("source").mean()
        fair = frame.loc[frame["rule"] == name, "fair"].mean()
        found[name] = {
            "loss": estimate(mine["loss"], sources),
            "regret": estimate(mine["regret"], sources),
            "beside_formula": estimate(mine["loss"] - formula["loss"], sources),
            "by_source": by_source["loss"].round(3).to_dict(),
            "measured_by_others": round(float(fair), 3),
        }
    return found


def longer(trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Accuracies of searches at the same epsilon and C, by numbers of epochs."""
    flat = trials[trials["clipping"] == "flat"]
    rows: list[dict[str, Any]] = []
    for keys, group in flat.groupby([*UNIT, "epsilon"]):
        bounds = group.groupby("epochs")["clipping_bound"].unique()
        shared = set.intersection(*map(set, bounds))
        if len(bounds) < 2 or not shared:
            continue
        found = {
            int(epochs): round(100 * Problem(part, norm=1.0).searched(), 2)
            for epochs, part in group[group["clipping_bound"].isin(shared)].groupby("epochs")
        }
        rows.append(dict(zip([*UNIT, "epsilon"], keys, strict=True)) | {"accuracy": found})
    return rows


def gained(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Points that epochs gained beside a quarter of them: mean, lowest and highest, and of how many."""
    found = {}
    for epochs in (4, 16, 64):
        gains = [
            each["accuracy"][epochs] - each["accuracy"][epochs // 4]
            for each in rows
            if {epochs, epochs // 4} <= set(each["accuracy"])
        ]
        if gains:
            ends = (np.mean(gains), min(gains), max(gains))
            found[str(epochs)] = [*(round(float(each), 1) for each in ends), len(gains)]
    return found


def exponent(trials: pd.DataFrame, x: str, fixed: Sequence[str]) -> list[float]:
    """The power of something that the tuned rate goes with, all else fixed, and its interval over units."""
    logs = np.log(trials[[x, "learning_rate"]])
    centred = logs - logs.groupby([trials[each] for each in fixed]).transform("mean")
    parts = (
        pd.DataFrame(
            {"xy": centred[x] * centred["learning_rate"], "xx": centred[x] ** 2}
            | {name: trials[name] for name in UNIT}
        )
        .groupby(UNIT)[["xy", "xx"]]
        .sum()
    )
    parts = parts[parts["xx"] > 0]
    slope = parts["xy"].sum() / parts["xx"].sum()
    residuals = parts["xy"] - slope * parts["xx"]
    count = len(parts)
    error = math.sqrt((residuals**2).sum() * count / (count - 1)) / parts["xx"].sum()
    half = t.ppf(0.975, count - 1) * error
    return [*(round(float(each), 3) for each in (slope, slope - half, slope + half)), count]


def exponents(trials: pd.DataFrame) -> dict[str, list[float]]:
    """How the tuned learning rate goes with T and with epsilon."""
    flat = trials[(trials["clipping"] == "flat") & trials["best"]]
    means = flat.groupby(
        [*PROBLEM, "batch_size", "steps", "clipping_bound", "learning_rate"], as_index=False
    )["macro_accuracy"].mean()
    top = means.loc[means.groupby([*PROBLEM, "batch_size"])["macro_accuracy"].idxmax()]
    found = {
        "steps": exponent(top, "steps", PROBLEM),
        "steps, at least 20": exponent(top[top["steps"] >= 20], "steps", PROBLEM),
    }
    fixed = [*UNIT, "epochs", "batch_size"]
    for name, own in top.groupby(top["method"] == "head"):
        found["epsilon, heads" if name else "epsilon, FiLM and others"] = exponent(
            own, "epsilon", fixed
        )
    return found


def worst(frame: pd.DataFrame, problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """The units on which the formula loses most, and how far its learning rate is from the best one."""
    losses = frame[frame["rule"] == FORMULA].groupby(UNIT)["loss"].mean()
    rows = []
    for unit, loss in losses.sort_values(ascending=False).items():
        mine = [each for each in problems if tuple(each.facts[name] for name in UNIT) == unit]
        ratios = []
        for each in mine:
            size, _, rate = each.best_setting()
            ratios.append(math.log(rate / each.rate(size)))
        rows.append(
            dict(zip(UNIT, unit, strict=True))
            | {"loss": round(float(loss), 2), "problems": len(mine)}
            | {"best_rate": round(math.exp(np.mean(ratios)), 2)}
        )
    return rows


def regret_numbers() -> pd.DataFrame:
    """What every rule loses on every source of data, from the committed result."""
    rows = []
    for rule, found in read_json(RESULT)["rules"].items():
        mean, lower, upper = found["loss"]
        rows.append({"rule": rule, "source": "mean", "loss": mean, "lower": lower, "upper": upper})
        rows += [
            {"rule": rule, "source": name, "loss": loss}
            for name, loss in found["by_source"].items()
        ]
    return pd.DataFrame(rows)


def plot(numbers: pd.DataFrame) -> Figure:
    """Draw the loss on every source as a point, and the mean with its interval as a line."""
    names = list(dict.fromkeys(numbers["rule"]))
    drawing = style.panels_figure(1, height=4.2)
    axes = drawing.subplots()
    for name, group in numbers.groupby("source", sort=False):
        places = [names.index(each) for each in group["rule"]]
        if name == "mean":
            ends = [group["loss"] - group["lower"], group["upper"] - group["loss"]]
            axes.errorbar(
                group["loss"], places, xerr=ends, fmt="|", markersize=9, color="black", label=name
            )
        else:
            axes.scatter(group["loss"], places, s=14, label=name)
    axes.axvline(0, color=style.GREY, linestyle="--", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("Points lost against a search of the whole grid")
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return drawing


def draw() -> None:
    """Write the figure of docs/recommend.md, and the numbers that it shows."""
    numbers = regret_numbers()
    with style.style():
        style.save(plot(numbers), IMAGE.with_suffix(".pdf"), IMAGE.with_suffix(".png"))
    numbers.to_csv(IMAGE.with_suffix(".csv"), index=False, lineterminator="\n")


def keep(results: Path) -> None:
    """Keep the trials of the finished cells of studies/demo-rates.yaml."""
    study, paths = load_study(STUDIES["demo-rates"]), Paths(results)
    cells = [cell for cell in study.all_cells() if paths.cell_trials(study, cell).exists()]
    with atomic_path(DEMO) as partial:
        gather(study, paths, cells).to_parquet(partial, compression="zstd", index=False)


def main() -> None:
    """Judge, and write what was found."""
    parser = command_line(__doc__)
    parser.add_argument("--keep", type=Path, help="results folder of studies/demo-rates.yaml")
    options = parser.parse_args()
    if options.keep:
        keep(options.keep)
    trials = kept_trials()
    problems = swept_problems(trials)
    frame = judged(problems)
    parts = pd.DataFrame([problem.facts | split(problem) for problem in problems])
    units = parts.groupby(UNIT)[["luck", "B", "C", "rate"]].mean()
    sources = units.index.get_level_values("dataset").to_series().str.partition("-")[0]
    write_json(
        RESULT,
        {
            "problems": len(problems),
            "units": len(units),
            "rules": summary(frame),
            "split": {name: estimate(units[name], sources) for name in units},
            "exponents": exponents(trials),
            "by_unit": worst(frame, problems),
            "epochs": (epochs := longer(trials)),
            "gained": gained(epochs),
        },
    )
    draw()


if __name__ == "__main__":
    main()
