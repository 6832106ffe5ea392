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
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

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
DEMO = RESULTS / "demo_rates.parquet"
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


class _Cell(NamedTuple):
    """Accuracies of one B and C."""

    rates: np.ndarray
    first: np.ndarray
    """of the first seed, by rates"""
    mean: np.ndarray
    """over all seeds, by rates"""
    best: int
    """the tuned rate"""
    selection: np.ndarray
    """selection accuracies of the tuned rate, by seeds, that which tuned it first"""
    accuracy: np.ndarray
    """test accuracies, likewise"""


def _cell(rows: pd.DataFrame) -> _Cell:
    rows = rows.sort_values("seed")
    by_rate = rows.groupby("learning_rate")["macro_accuracy"]
    tuned, rates = rows[rows["best"]], np.array(list(by_rate.groups))
    best = int(np.flatnonzero(rates == tuned["learning_rate"].iloc[0])[0])
    scores = (tuned[name].to_numpy() for name in ("selection_accuracy", "macro_accuracy"))
    return _Cell(rates, by_rate.first().to_numpy(), by_rate.mean().to_numpy(), best, *scores)


def _nearest(values: Iterable[float], wanted: float) -> float:
    return min(values, key=lambda each: abs(math.log(each / wanted)))


class Problem:
    """What was trained with a clipping bound on one problem at one epsilon and number of epochs."""

    def __init__(self, trials: pd.DataFrame, norm: float) -> None:
        self.facts = trials.iloc[0][PROBLEM].to_dict()
        # The dataset that its data are part of: names begin with it.
        self.source = str(self.facts["dataset"]).partition("-")[0]
        self.norm = norm
        # Not recorded of the heads on frozen features, whose norms are the computed ones.
        measured = norm_before_training(trials)
        self.measured_norm = norm if math.isnan(measured) else measured
        self.whole = int(trials["train_size"].iloc[0])
        by_size = trials.drop_duplicates("batch_size").set_index("batch_size").sort_index()
        self.steps = {int(size): int(steps) for size, steps in by_size["steps"].items()}
        noise = by_size["noise_multiplier"] * np.sqrt(by_size["steps"])
        self.size = smallest_batch_size(lambda size: float(noise[size]), self.steps)
        self._cells: dict[int, dict[float, _Cell]] = {}
        for (size, bound), rows in trials.groupby(["batch_size", "clipping_bound"]):
            self._cells.setdefault(int(size), {})[float(bound)] = _cell(rows)
        every = [cell for row in self._cells.values() for cell in row.values()]
        self.best = max(float(cell.mean[cell.best]) for cell in every)
        """The best setting of the whole grid by the mean over its seeds, luck included."""

    def searched(self, size: float | None = None, bound: float | None = None) -> float:
        """Accuracy that a search of the whole grid gets, by seeds that did not choose.

        Args:
            size: B, to be found nearby; by default every B is searched.
            bound: C, likewise.
        """
        rows = self._cells.values() if size is None else [self._cells[self.nearest_size(size)]]
        cells = [
            row[each]
            for row in rows
            for each in row
            if bound in (None, each) or each == _nearest(row, bound)
        ]
        seeds = min(len(each.accuracy) for each in cells)
        names = ("selection", "accuracy")
        return cross_fitted(
            *(np.array([getattr(c, name)[:seeds] for c in cells]) for name in names)
        )

    def nearest_size(self, size: float) -> int:
        """The trained B that is nearest."""
        return int(_nearest(self._cells, min(size, self.whole)))

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

    def _look(self, setting: Setting) -> tuple[_Cell, int]:
        size, bound, rate = setting
        row = self._cells[self.nearest_size(size)]
        cell = row[_nearest(row, bound)]
        return cell, int(np.abs(np.log(cell.rates / rate)).argmin())


def kept_trials() -> pd.DataFrame:
    """The committed trials under a privacy guarantee: of heads, of FiLM, and of the demo's problems."""
    files = [TRIALS, *sorted((RESULTS / "film").glob("*.parquet")), DEMO]
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
    return [
        Problem(group, norms[tuple(group.iloc[0][UNIT])])
        for _, group in trials[trials["clipping"] == "flat"].groupby(PROBLEM)
        if group["batch_size"].nunique() > 1 and group["clipping_bound"].nunique() > 1
    ]


def by_reference_points(problem: Problem, problems: Sequence[Problem]) -> Setting:
    """What the best settings on other sources of data advise: means of C / G and of the rate times G sqrt(T).

    Each source counts the same, and a point the less the further its epsilon is away.
    """
    others = [each for each in problems if each.source != problem.source]
    sources = np.array([each.source for each in others])
    ratios = np.array([each.facts["epsilon"] / problem.facts["epsilon"] for each in others])
    weights = 1 / (1 + np.abs(np.log2(ratios)))
    for name in set(sources):
        weights[sources == name] /= weights[sources == name].sum()
    logs = []
    for each in others:
        size, bound, rate = each.best_setting()
        scaled = rate * each.measured_norm * math.sqrt(each.steps[int(size)])
        logs.append(np.log([bound / each.measured_norm, scaled]))
    bound, rate = np.exp(np.average(logs, axis=0, weights=weights))
    return problem.size, bound * problem.norm, rate * problem.rate(problem.size)


Rule = Callable[[Problem], list[Setting]]


def around(
    sizes: Sequence[float] = (1,),
    bounds: Sequence[float] = (1,),
    rates: Sequence[float] = (1,),
    own_rates: bool = True,
) -> Rule:
    """Settings at multiples of what the formula advises, each B with its own rate or all with that of B."""

    def settings(problem: Problem) -> list[Setting]:
        size, bound, _ = problem.setting
        return [
            (b * size, c * bound, rate * problem.rate(b * size if own_rates else size))
            for b, c, rate in product(sizes, bounds, rates)
        ]

    return settings


def rules(problems: Sequence[Problem]) -> dict[str, Rule]:
    """Every rule that is judged, as the settings that it tries on a problem."""

    def habit(bound: float, size: float, rate: float) -> Rule:
        return lambda _: [(size, bound, rate)]

    def measured(problem: Problem) -> list[Setting]:
        longer = problem.measured_norm / problem.norm
        return around(bounds=[longer], rates=[1 / longer])(problem)

    return {
        FORMULA: around(),
        "reference points of other sources": lambda each: [by_reference_points(each, problems)],
        **{f"rate × {factor:g}": around(rates=[factor]) for factor in (0.5, 0.7, 1.4, 2)},
        "G as measured": measured,
        "rate × (ε / 2)^0.2": lambda each: around(rates=[(each.facts["epsilon"] / 2) ** 0.2])(each),
        "rate with T^0.4": lambda each: [(*each.setting[:2], each.rate(each.size, power=0.4))],
        "C × 1/4": around(bounds=[1 / 4]),
        "C × 4": around(bounds=[4]),
        "B × 1/4": around(sizes=[1 / 4]),
        "B × 4": around(sizes=[4]),
        "full batch": lambda each: [(each.whole, each.setting[1], each.rate(each.whole))],
        "habit: C = 1, B = 256, rate 0.001": habit(1, 256, 0.001),
        "habit: C = 1, B = 256, rate 0.01": habit(1, 256, 0.01),
        "habit: C = 1, B = 1,024, rate 0.01": habit(1, 1024, 0.01),
        "habit: C = 0.1, B = 256, rate 0.01": habit(0.1, 256, 0.01),
        "three runs: rates": around(rates=RATES),
        "six runs: {B, 4B} × rates": around(SIZES[1:], rates=RATES),
        "small grid: {B/4, B, 4B} × rates": around(SIZES, rates=RATES),
        "the same, with the rates of B": around(SIZES, rates=RATES, own_rates=False),
        "nine runs: C × {1/4, 1, 4} × rates": around(bounds=(1 / 4, 1, 4), rates=RATES),
    }


def judged(problems: Sequence[Problem]) -> pd.DataFrame:
    """Points that every rule loses against the search, and against the luckiest setting."""
    tried = rules(problems)
    rows: list[dict[str, Any]] = []
    for problem in problems:
        facts = problem.facts | {"source": problem.source}
        best, searched = 100 * problem.best, 100 * problem.searched()
        rows.append(facts | {"rule": SEARCH, "loss": 0.0, "regret": best - searched, "fair": True})
        for name, rule in tried.items():
            settings = rule(problem)
            accuracy, fair = problem.chosen(settings)
            found = {
                "loss": searched - 100 * accuracy,
                "regret": best - 100 * problem.lucky(settings),
            }
            rows.append(facts | found | {"rule": name, "fair": fair})
    return pd.DataFrame(rows)


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
    half = t.ppf(0.975, freedom) * math.sqrt(variance * (1 / counts).sum()) / len(counts)
    return [round(float(each), 3) for each in (mean, mean - half, mean + half)]


def summary(frame: pd.DataFrame) -> dict[str, Any]:
    """Means of every rule with intervals, by source, and differences from the formula."""
    units = frame.groupby(["rule", "source", *UNIT], sort=False)[["loss", "regret"]].mean()
    fair = frame.groupby("rule")["fair"].mean()
    found = {}
    for name in frame["rule"].unique():
        mine = units.loc[name]
        sources = mine.index.get_level_values("source").to_series()
        found[name] = {
            "loss": estimate(mine["loss"], sources),
            "regret": estimate(mine["regret"], sources),
            "beside_formula": estimate(mine["loss"] - units.loc[FORMULA]["loss"], sources),
            "by_source": mine.groupby("source")["loss"].mean().round(3).to_dict(),
            "measured_by_others": round(float(fair[name]), 3),
        }
    return found


def longer(trials: pd.DataFrame) -> list[dict[str, Any]]:
    """Accuracies of searches at the same epsilon and C, by numbers of epochs."""
    rows: list[dict[str, Any]] = []
    for keys, group in trials[trials["clipping"] == "flat"].groupby([*UNIT, "epsilon"]):
        bounds = group.groupby("epochs")["clipping_bound"].unique()
        shared = set.intersection(*map(set, bounds))
        if len(bounds) > 1 and shared:
            found = {
                int(epochs): round(100 * Problem(part, norm=1.0).searched(), 2)
                for epochs, part in group[group["clipping_bound"].isin(shared)].groupby("epochs")
            }
            rows.append(dict(zip([*UNIT, "epsilon"], keys, strict=True)) | {"accuracy": found})
    return rows


def gained(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Points that epochs gained beside a quarter of them: mean, lowest and highest, and of how many."""
    table = pd.DataFrame([each["accuracy"] for each in rows])
    found = {}
    for epochs in (4, 16, 64):
        if {epochs, epochs // 4} <= set(table):
            gains = (table[epochs] - table[epochs // 4]).dropna()
            ends = (round(float(each), 1) for each in (gains.mean(), gains.min(), gains.max()))
            found[str(epochs)] = [*ends, len(gains)]
    return found


def exponent(trials: pd.DataFrame, x: str, fixed: Sequence[str]) -> list[float]:
    """The power of something that the tuned rate goes with, all else fixed, and its interval over units."""
    logs = np.log(trials[[x, "learning_rate"]])
    centred = logs - logs.groupby([trials[each] for each in fixed]).transform("mean")
    products = {"xy": centred[x] * centred["learning_rate"], "xx": centred[x] ** 2}
    parts = trials[UNIT].assign(**products).groupby(UNIT).sum().query("xx > 0")
    slope = parts["xy"].sum() / parts["xx"].sum()
    residuals, count = parts["xy"] - slope * parts["xx"], len(parts)
    error = math.sqrt((residuals**2).sum() * count / (count - 1)) / parts["xx"].sum()
    half = t.ppf(0.975, count - 1) * error
    return [*(round(float(each), 3) for each in (slope, slope - half, slope + half)), count]


def exponents(trials: pd.DataFrame) -> dict[str, list[float]]:
    """How the tuned learning rate goes with T and with epsilon."""
    flat = trials[(trials["clipping"] == "flat") & trials["best"]]
    setting = [*PROBLEM, "batch_size", "steps", "clipping_bound", "learning_rate"]
    means = flat.groupby(setting, as_index=False)["macro_accuracy"].mean()
    top = means.loc[means.groupby([*PROBLEM, "batch_size"])["macro_accuracy"].idxmax()]
    fixed, head = [*UNIT, "epochs", "batch_size"], top["method"] == "head"
    return {
        "steps": exponent(top, "steps", PROBLEM),
        "steps, at least 20": exponent(top[top["steps"] >= 20], "steps", PROBLEM),
        "epsilon, FiLM and others": exponent(top[~head], "epsilon", fixed),
        "epsilon, heads": exponent(top[head], "epsilon", fixed),
    }


def worst(frame: pd.DataFrame, problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """The units on which the formula loses most, and how far its learning rate is from the best one."""
    ratios: dict[tuple[str, ...], list[float]] = {}
    for each in problems:
        size, _, rate = each.best_setting()
        unit = tuple(each.facts[name] for name in UNIT)
        ratios.setdefault(unit, []).append(math.log(rate / each.rate(size)))
    losses = frame[frame["rule"] == FORMULA].groupby(UNIT)["loss"].mean()
    return [
        dict(zip(UNIT, unit, strict=True))
        | {"loss": round(float(loss), 2), "problems": len(ratios[unit])}
        | {"best_rate": round(math.exp(np.mean(ratios[unit])), 2)}
        for unit, loss in losses.sort_values(ascending=False).items()
    ]


def regret_numbers() -> pd.DataFrame:
    """What every rule loses on every source of data, from the committed result."""
    rows = []
    for rule, found in read_json(RESULT)["rules"].items():
        mean, lower, upper = found["loss"]
        rows.append({"rule": rule, "source": "mean", "loss": mean, "lower": lower, "upper": upper})
        by_source = found["by_source"].items()
        rows += [{"rule": rule, "source": name, "loss": loss} for name, loss in by_source]
    return pd.DataFrame(rows)


def plot(numbers: pd.DataFrame) -> Figure:
    """Draw the loss on every source as a point, and the mean with its interval as a line."""
    names = list(dict.fromkeys(numbers["rule"]))
    drawing = style.panels_figure(1, height=4.2)
    axes = drawing.subplots()
    for name, group in numbers.groupby("source", sort=False):
        loss, places = group["loss"], [names.index(each) for each in group["rule"]]
        if name == "mean":
            ends = [loss - group["lower"], group["upper"] - loss]
            axes.errorbar(loss, places, xerr=ends, fmt="|", markersize=9, color="black", label=name)
        else:
            axes.scatter(loss, places, s=14, label=name)
    axes.axvline(0, color=style.GREY, linestyle="--", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("Points lost against a search of the whole grid")
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return drawing


def keep(results: Path) -> None:
    """Keep the trials of the finished cells of studies/demo-rates.yaml."""
    study, paths = load_study(STUDIES["demo-rates"]), Paths(results)
    cells = [cell for cell in study.all_cells() if paths.cell_trials(study, cell).exists()]
    with atomic_path(DEMO) as partial:
        gather(study, paths, cells).to_parquet(partial, compression="zstd", index=False)


def main() -> None:
    """Judge, write what was found, and draw the figure of docs/recommend.md."""
    parser = command_line(__doc__)
    parser.add_argument("--keep", type=Path, help="results folder of studies/demo-rates.yaml")
    options = parser.parse_args()
    if options.keep:
        keep(options.keep)
    trials = kept_trials()
    problems = swept_problems(trials)
    frame = judged(problems)
    units = frame.drop_duplicates(UNIT)
    epochs = longer(trials)
    result = {
        "problems": len(problems),
        "units": len(units),
        "rules": summary(frame),
        "exponents": exponents(trials),
        "by_unit": worst(frame, problems),
        **{"epochs": epochs, "gained": gained(epochs)},
    }
    write_json(RESULT, result)
    numbers = regret_numbers()
    with style.style():
        style.save(plot(numbers), IMAGE.with_suffix(".pdf"), IMAGE.with_suffix(".png"))
    numbers.to_csv(IMAGE.with_suffix(".csv"), index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
