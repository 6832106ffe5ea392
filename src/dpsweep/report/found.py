"""Results for the head of the report: verdicts, best settings, and checks that failed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dpsweep.base.units import count
from dpsweep.figures.tables.text import TextTable, signed
from dpsweep.figures.tables.write import read_numbers
from dpsweep.report.checks import Check
from dpsweep.report.trials import is_private
from dpsweep.report.wording import batch_text, bound_text, percent, values
from dpsweep.study import Cell, Study
from dpsweep.study.cells import number
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import TuningImplications

_BEST_COLUMNS = [
    "Dataset", "Backbone", "Method", "ε", "Epochs", "C", "B", "Learning rate", "Accuracy",
    "Lowest to highest", "Cross-fitted", "Seeds",
]  # fmt: skip
TUNED = {"clipping_bound": "C", "batch_size": "B", "learning_rate": "Learning rate"}


@dataclass(frozen=True)
class Verdict:
    """The verdict on one tuning rule; ``status`` is its colour."""

    rule: str
    effect: str
    votes: str
    verdict: str
    status: str


def verdicts(study: Study, paths: Paths) -> dict[str, list[Verdict]]:
    """The verdicts of every table of tuning rules that has been written, by the name of the table."""
    found = {}
    for name, table in study.tables.items():
        file = paths.table(name, "csv")
        if isinstance(table, TuningImplications) and file.exists():
            try:
                rows = [_verdict(row) for _, row in read_numbers(file).iterrows()]
                # Rules that the study decides come first.
                found[name] = sorted(rows, key=lambda verdict: verdict.verdict == "not resolved")
            except (KeyError, ValueError):
                continue  # the table says in its place that it is damaged
    return found


def _verdict(row: "pd.Series[float]") -> Verdict:
    said = str(row["verdict"])
    status = {"supported": "pass", "contradicted": "fail"}.get(said.split(maxsplit=1)[0], "open")
    visible = float(row["smallest_visible_here"])
    effect, lower, upper = (float(row[name]) for name in ("effect", "lower_here", "upper_here"))
    text = "no comparison"
    if not math.isnan(effect):
        interval = "" if math.isnan(lower) else f" [{signed(lower)}, {signed(upper)}]"
        text = f"{signed(effect)}{interval} {row['unit']}"
    if not math.isnan(visible):
        text += f"; an effect of {visible:.2f} would have been seen"
    needs = str(row["needs"])  # a column without any words is read as numbers that are absent
    if needs not in ("", "nan"):
        text += f" ({needs})"
    advice = str(row["implication"])
    return Verdict(
        f"{row['condition']}: {advice[0].lower()}{advice[1:]}",
        text,
        f"{row['in_favour']} for, {row['against']} against",
        said,
        status,
    )


def best_settings(study: Study, trials: pd.DataFrame) -> TextTable | None:
    """The best cell of every problem and ε, all else tuned, as `dpsweep.study.choice` chooses.

    ``Accuracy`` is the mean macro accuracy over the seeds that chose, ``Cross-fitted`` that of seeds
    that did not choose.
    """
    chosen = choose(trials, by=["problem", "epsilon"]).dropna(subset=["centre"])
    rows = []
    for name, problem in study.problems.items():
        for _, best in chosen[chosen["problem"] == name].iterrows():
            cell = Cell.parse(name, str(best["cell"]))
            rows.append(
                [
                    study.datasets[problem.dataset].title,
                    study.backbones[problem.backbone].title,
                    study.method_title(name),
                    values([cell.epsilon]),
                    str(cell.epochs),
                    bound_text(cell.clipping_bound),
                    batch_text(cell.batch_size, int(best["batch_size"])),
                    number(float(best["learning_rate"])),
                    percent(float(best["centre"])),
                    f"{percent(float(best['minimum']))} to {percent(float(best['maximum']))}",
                    percent(float(best["cross_fitted"])),
                    str(best["repeats"]),
                ]
            )
    return TextTable(_BEST_COLUMNS, rows, "lll" + "r" * 9) if rows else None


def finding(study: Study, trials: pd.DataFrame) -> str:
    """Say in a sentence what the best problem reaches at the largest and at the smallest finite ε."""
    private = trials[is_private(trials)]
    chosen = choose(private, by=["problem", "epsilon"]).dropna(subset=["centre"])
    if chosen.empty:
        return "No private cell has been trained."
    loose = chosen[chosen["epsilon"] == chosen["epsilon"].max()].nlargest(1, "centre").squeeze()
    problem = study.problems[str(loose["problem"])]
    cell = Cell.parse(str(loose["problem"]), str(loose["cell"]))
    about = ", ".join(
        [
            study.datasets[problem.dataset].title,
            study.backbones[problem.backbone].title,
            study.method_title(str(loose["problem"])),
        ]
    )
    said = (
        f"The best macro accuracy at ε = {number(cell.epsilon)} is {_reached(loose)}: {about}, with "
        f"C = {bound_text(cell.clipping_bound)}, "
        f"B = {batch_text(cell.batch_size, int(loose['batch_size']))}, learning rate "
        f"{number(float(loose['learning_rate']))} and {count(cell.epochs, 'epoch')}."
    )
    same = chosen[chosen["problem"] == loose["problem"]]
    tight = same.nsmallest(1, "epsilon").squeeze()
    if tight["epsilon"] < loose["epsilon"]:
        said += (
            f" At ε = {number(float(tight['epsilon']))} the same problem reaches {_reached(tight)}."
        )
    return said


def _reached(best: "pd.Series[Any]") -> str:
    seeds = int(best["repeats"])
    mean = percent(float(best["centre"]))
    if seeds == 1:
        return f"{mean} (one seed)"
    lowest, highest = percent(float(best["minimum"])), percent(float(best["maximum"]))
    return f"{mean} (mean over {count(seeds, 'seed')}, {lowest} to {highest})"


def choice_costs(study: Study, trials: pd.DataFrame) -> TextTable | None:
    """How much the worst value of C, B and the learning rate costs, at every problem and ε.

    It is the accuracy at the best value minus that at the worst one, the other hyperparameters tuned for
    each. Learning rates are compared by the first seed, which tried all that were tried.
    """
    lost = {}
    first = trials[trials["seed"] == 1]
    for axis in TUNED:
        # AUTO-S and training without clipping have no C.
        rows = (first if axis == "learning_rate" else trials).dropna(subset=[axis])
        by = ["problem", "epsilon", axis]
        if axis == "learning_rate":
            found = rows.groupby(by)["macro_accuracy"].max()
        else:
            found = choose(rows, by=by).set_index(by)["centre"]
        spread = found.groupby(level=["problem", "epsilon"])
        lost[axis] = 100 * (spread.max() - spread.min())[spread.count() > 1]
    costs = pd.DataFrame(lost).dropna(how="all").astype(float)
    table = [
        [
            study.datasets[problem.dataset].title,
            study.backbones[problem.backbone].title,
            study.method_title(name),
            values([float(epsilon)]),
            *("–" if math.isnan(points) else f"{points:.1f}" for points in row),
        ]
        for name, problem in study.problems.items()
        if name in costs.index
        for epsilon, row in zip(costs.loc[name].index, costs.loc[name].to_numpy(), strict=True)
    ]
    columns = ["Dataset", "Backbone", "Method", "ε", *TUNED.values()]
    return TextTable(columns, table, "lll" + "r" * 4) if table else None


def references(study: Study, trials: pd.DataFrame) -> TextTable | None:
    """The best non-private cell of every problem: what the backbone reaches without privacy.

    The cell is the one that every figure would choose (`dpsweep.study.choice`).
    """
    rows = []
    free = trials[(trials["epsilon"] == math.inf) & trials["best"].astype(bool)]
    for name, problem in study.problems.items():
        ours = free[free["problem"] == name]
        chosen = choose(ours, by=["problem"]).dropna(subset=["selection_accuracy"])
        if chosen.empty:
            continue
        cell = str(chosen["cell"].item())
        best = ours[ours["cell"] == cell]
        rows.append(
            [
                study.datasets[problem.dataset].title,
                study.backbones[problem.backbone].title,
                study.methods[problem.method].title,
                percent(best["accuracy"].mean()),
                f"{percent(best['accuracy'].min())} to {percent(best['accuracy'].max())}",
                percent(best["macro_accuracy"].mean()),
                percent(1 / study.datasets[problem.dataset].classes),
                str(len(best)),
                f"{name}/{cell}",
            ]
        )
    columns = [
        "Dataset", "Backbone", "Method", "Accuracy", "Over seeds", "Macro accuracy", "Chance",
        "Seeds", "Cell",
    ]  # fmt: skip
    return TextTable(columns, rows, "lllrrrrrl") if rows else None


def to_know(checks: Sequence[Check]) -> list[Check]:
    """The checks that did not pass: those that failed, those that an edit mends, the rest."""
    return sorted(
        (check for check in checks if check.status != "pass"),
        key=lambda check: (check.status != "fail", not check.remedy),
    )
