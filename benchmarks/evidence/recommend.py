"""How good is the recommendation for data that it has no reference points of?

    python -m benchmarks.evidence.recommend results/demo-dense/problems

The trials of the dense demo are read from its folder; those of the studies on frozen features and on FiLM
are committed. One dataset after the other is left out, with all others of the same source. The settings
that are recommended from the remaining reference points are looked up among those that were trained on it
(the nearest ones), and compared with the best of its grid. So are settings that people use today. Writes
the numbers behind the table of docs/recommend.md, and the reference points that `dpsweep recommend` uses.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.findings.film import KEPT
from benchmarks.findings.numbers import TRIALS
from dpsweep.base.files import read_json, write_json
from dpsweep.figures import style
from dpsweep.recommend.references import (
    INCLUDED,
    PROBLEM,
    problem_tables,
    read_references,
    references_of,
    settings_of,
    swept_problems,
    unrelated,
    write_references,
)
from dpsweep.recommend.rule import (
    NoReferenceError,
    Recommendation,
    Reference,
    Situation,
    recommend,
    smallest_batch_size,
    source,
)
from dpsweep.recommend.situation import expected_gradient_norm
from dpsweep.study import load_study
from dpsweep.study.choice import choose

RESULT = RESULTS / "recommend.json"
IMAGE = REPOSITORY / "docs" / "images" / "regret"
STUDIES = [
    REPOSITORY / "studies" / f"{name}.yaml" for name in ("demo-dense", "frozen-features", "film")
]
DELTA = 1e-5
HABITS = {
    **{f"C = 1, B = {size:,}": (1.0, size) for size in (256, 1024, 4096)},
    "C = 1, full batch": (1.0, math.inf),
    "C = 0.1, B = 256": (0.1, 256),
    "AUTO-S, B = 256": (None, 256),
}
"""Habits without a search: clipping bound (None is AUTO-S) and batch size."""
SEARCH = "search of the whole grid, on other seeds"


def nearest(trained: pd.Series, wanted: float) -> float:
    """The trained value that is nearest on a logarithmic axis."""
    values = np.unique(trained)
    return float(values[np.abs(np.log(values / wanted)).argmin()])


def accuracy(
    problem: pd.DataFrame, bound: float | None, size: float, rate: float | None = None
) -> float:
    """Of the nearest setting that was trained, at the best learning rate unless one is given.

    NaN where nothing was trained with such a clipping rule.
    """
    rows = problem[problem["clipping"] == ("automatic" if bound is None else "flat")]
    if rows.empty:
        return math.nan
    rows = rows[
        rows["batch_size"] == nearest(rows["batch_size"], min(size, rows["train_size"].max()))
    ]
    if bound is not None:
        rows = rows[rows["clipping_bound"] == nearest(rows["clipping_bound"], bound)]
    rows = (
        rows[rows["best"]]
        if rate is None
        else rows[rows["learning_rate"] == nearest(rows["learning_rate"], rate)]
    )
    return float(rows["macro_accuracy"].max())


def best_accuracy(problem: pd.DataFrame) -> float:
    """Of the best setting of the whole grid, mean over its seeds."""
    return float(problem.loc[problem["best"], "macro_accuracy"].max())


def kept_trials() -> pd.DataFrame:
    """The committed trials, on frozen features and with FiLM.

    Those on frozen features were first kept without their gradient norms, which the reference points have.
    """
    frozen = pd.read_parquet(TRIALS)
    if "mean_gradient_norm" not in frozen:
        norms = {
            tuple(getattr(each, name) for name in PROBLEM): each.gradient_norm
            for each in read_references()
        }
        keys = zip(*(frozen[name] for name in PROBLEM), strict=True)
        frozen["mean_gradient_norm"] = [norms.get(key, math.nan) for key in keys]
    film = [pd.read_parquet(file) for file in sorted(KEPT.glob("*.parquet"))]
    return pd.concat([frozen, *film], ignore_index=True).drop_duplicates("trial_key")


def searched(trials: pd.DataFrame) -> "pd.Series[float]":
    """Measure a search of the whole grid on every problem, by seeds that did not choose."""
    chosen = choose(trials[trials["epsilon"] < math.inf], by=PROBLEM)
    return chosen.set_index(PROBLEM)["cross_fitted"]


def trained_batch_size(problem: pd.DataFrame) -> int:
    """Apply the rule to the batch sizes that were trained, by the noise that they had."""
    rows = problem.drop_duplicates("batch_size")
    steps = dict(zip(rows["batch_size"].astype(int), rows["steps"].astype(int), strict=True))
    noise = dict(zip(steps, rows["noise_multiplier"] * np.sqrt(rows["steps"]), strict=True))
    return smallest_batch_size(noise, steps)


def recommended(
    problem: pd.DataFrame, norms: Mapping[tuple[str, str, str], float], references: list[Reference]
) -> Recommendation:
    """From the reference points of other datasets."""
    one = problem.iloc[0]
    situation = Situation(
        train_size=int(one["train_size"]),
        epsilon=float(one["epsilon"]),
        delta=DELTA,
        epochs=int(one["epochs"]),
        optimizer=str(one["optimizer"]),
        gradient_norm=norms[one["dataset"], one["backbone"], one["method"]],
    )
    others = unrelated(references, str(one["dataset"]))
    return recommend(situation, others, trained_batch_size(problem))


def expected_norms(files: list[Path]) -> dict[tuple[str, str, str], float]:
    """Gradient norms before training as studies tell them, by dataset, backbone and method."""
    return {
        (parts.dataset, parts.backbone, parts.method): expected_gradient_norm(study, sweep)
        for study in map(load_study, files)
        for sweep, parts in study.sweeps.items()
    }


def regrets(
    problem: pd.DataFrame, norms: Mapping[tuple[str, str, str], float], references: list[Reference]
) -> dict[str, float] | None:
    """Points of macro accuracy below the best of the grid; None without any reference point."""
    try:
        made = recommended(problem, norms, references)
    except NoReferenceError:
        return None
    size, bounds, rates = made.batch_size, made.clipping_bound, made.learning_rate
    found = {
        "recommendation": accuracy(problem, bounds.value, size, rates.value),
        "recommendation, its grid": max(
            accuracy(problem, bound, size, rate) for bound in bounds.grid for rate in rates.grid
        ),
        "recommended B and C, best rate": accuracy(problem, bounds.value, size),
        **{name: accuracy(problem, bound, size) for name, (bound, size) in HABITS.items()},
        **{
            f"{name}, recommended rate": accuracy(problem, bound, size, rates.value)
            for name, (bound, size) in HABITS.items()
        },
    }
    best = best_accuracy(problem)
    return {name: 100 * (best - each) for name, each in found.items()}


def regret_numbers() -> pd.DataFrame:
    """The regret of every setting on every source of data, from the committed result."""
    result = read_json(RESULT)
    rows = [
        {"setting": setting, "source": name, "regret": regret}
        for name, settings in {"mean": result["mean"], **result["by_source"]}.items()
        for setting, regret in settings.items()
    ]
    return pd.DataFrame(rows)


def plot(numbers: pd.DataFrame) -> Figure:
    """Draw the regret on every source as a point, and the mean as a line."""
    settings = list(dict.fromkeys(numbers["setting"]))
    drawing = style.panels_figure(1, height=3.6)
    axes = drawing.subplots()
    for name, group in numbers.groupby("source", sort=False):
        places = [settings.index(each) for each in group["setting"]]
        if name == "mean":
            axes.scatter(group["regret"], places, marker="|", s=120, color="black", label=name)
        else:
            axes.scatter(group["regret"], places, s=14, label=name)
    axes.axvline(1, color=style.GREY, linestyle="--", linewidth=0.8)
    axes.set_yticks(range(len(settings)), settings)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("Regret in points")
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return drawing


def draw() -> None:
    """Write the figure of docs/recommend.md, and the numbers that it shows."""
    numbers = regret_numbers()
    with style.style():
        style.save(plot(numbers), IMAGE.with_suffix(".pdf"), IMAGE.with_suffix(".png"))
    numbers.to_csv(IMAGE.with_suffix(".csv"), index=False, lineterminator="\n")


def main() -> None:
    """Judge, and write what was found."""
    parser = command_line(__doc__)
    parser.add_argument("dense_demo", type=Path, help="folder of its problem tables")
    options = parser.parse_args()
    trials = pd.concat([kept_trials(), problem_tables([options.dense_demo])], ignore_index=True)
    problems = swept_problems(settings_of(trials))
    norms = expected_norms(STUDIES)
    references = references_of(problems)
    search = searched(trials)
    judged: list[dict[str, Any]] = []
    for problem in problems:
        found = regrets(problem, norms, references)
        if found is not None:
            worth = search[tuple(problem.iloc[0][PROBLEM])]
            found = {SEARCH: 100 * (best_accuracy(problem) - worth), **found}
            judged.append({"dataset": str(problem.iloc[0]["dataset"]), "regret": found})
    frame = pd.DataFrame([each["regret"] | {"dataset": each["dataset"]} for each in judged])
    frame["source"] = frame["dataset"].map(source)
    by_source = frame.drop(columns="dataset").groupby("source").mean()
    result = {
        "problems": len(judged),
        "without_reference": len(problems) - len(judged),
        "datasets": {
            str(name): int(count) for name, count in frame["dataset"].value_counts().items()
        },
        # Each source counts the same, however many problems it has.
        "mean": by_source.mean().round(3).to_dict(),
        "by_source": {str(name): row.round(3).to_dict() for name, row in by_source.iterrows()},
    }
    write_json(RESULT, result)
    write_references(INCLUDED, references)
    draw()


if __name__ == "__main__":
    main()
