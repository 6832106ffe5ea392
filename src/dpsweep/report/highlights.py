"""Results for the head of the report: verdicts, best settings, and checks that failed."""

import math
from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from dpsweep.base.units import count
from dpsweep.report.sentences import by_habit
from dpsweep.report.trials import is_private
from dpsweep.report.wording import choice, percent, titles, values
from dpsweep.study import Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.tables.text import TextTable, interval, signed
from dpsweep.tables.tuning_implications import TuningImplications
from dpsweep.tables.write import read_numbers

USUAL = "Usual C and B"
_WORDS: dict[str, type[str]] = {"needs": str, "needed_for": str}
TUNED = {"clipping_bound": "C", "batch_size": "B", "learning_rate": "Learning rate"}


def verdicts(study: Study, paths: Paths) -> dict[str, list[dict[str, str]]]:
    """Return the verdicts of every written table of tuning rules, by the name of the table.

    Each verdict has ``rule``, ``verdict``, ``status`` (its colour), ``effect`` and ``votes``.
    """
    found = {}
    for name, table in study.tables.items():
        file = paths.table(name, "csv")
        if isinstance(table, TuningImplications) and file.exists():
            try:
                rows = [_verdict(row) for row in read_numbers(file, _WORDS).to_dict("records")]
            except (KeyError, ValueError):
                continue  # the section of the table reports the damage
            # Decided rules come first.
            found[name] = sorted(rows, key=lambda row: row["verdict"] == "not resolved")
    return found


def _verdict(row: Mapping[Hashable, Any]) -> dict[str, str]:
    said, advice = str(row["verdict"]), str(row["implication"])
    effect, lower, upper, visible = (
        float(row[name]) for name in ("effect", "lower_here", "upper_here", "smallest_visible_here")
    )
    text = "no comparison"
    if not math.isnan(effect):
        text = " ".join(filter(None, [signed(effect), interval(lower, upper), str(row["unit"])]))
    if not math.isnan(visible):
        text += f"; an effect of {visible:.2f} would have been seen"
    if row["needs"]:
        scope = f" on {row['needed_for']}" if row["needed_for"] else ""
        text += f" (a verdict{scope} needs more: {row['needs']})"
    status = {"supported": "pass", "contradicted": "fail"}.get(said.split(maxsplit=1)[0], "open")
    return {
        "rule": f"{row['condition']}: {advice[0].lower()}{advice[1:]}",
        "verdict": said,
        "status": status,
        "effect": text,
        "votes": f"{row['in_favour']} of {row['units']} for, {row['against']} against",
    }


def best_settings(study: Study, trials: pd.DataFrame) -> TextTable:
    """Tabulate the best cell of every problem and ε, as `dpsweep.study.choice` chooses it."""
    chosen = choose(trials, by=["problem", "epsilon"]).dropna(subset=["centre"])
    rows = [
        titles(study, name) | choice(best)
        for name in study.problems
        for best in chosen[chosen["problem"] == name].to_dict("records")
    ]
    return TextTable.of(rows, "lll" + "r" * 9)


def finding(study: Study, trials: pd.DataFrame) -> str:
    """Write a sentence on the best problem's accuracies at the largest and the smallest finite ε."""
    chosen = choose(trials[is_private(trials)], by=["problem", "epsilon"])
    chosen = chosen.dropna(subset=["centre"])
    if chosen.empty:
        return "No private cell has been trained."
    loose = chosen[chosen["epsilon"] == chosen["epsilon"].max()].nlargest(1, "centre").squeeze()
    tight = chosen[chosen["problem"] == loose["problem"]].nsmallest(1, "epsilon").squeeze()
    best = choice(loose)
    said = (
        f"The best macro accuracy at ε = {best['ε']} is {_reached(loose)}: "
        f"{', '.join(titles(study, loose['problem']).values())}, with C = {best['C']}, "
        f"B = {best['B']}, learning rate {best['Learning rate']} and "
        f"{count(int(loose['epochs']), 'epoch')}."
    )
    if tight["epsilon"] < loose["epsilon"]:
        epsilon = values([tight["epsilon"]])
        said += f" At ε = {epsilon} the same problem reaches {_reached(tight)}."
    return said


def _reached(best: "pd.Series[Any]") -> str:
    said, seeds = choice(best), int(best["repeats"])
    if seeds == 1:
        return f"{said['Accuracy']} (one seed)"
    return f"{said['Accuracy']} (mean over {count(seeds, 'seed')}, {said['Lowest to highest']})"


def choice_costs(study: Study, trials: pd.DataFrame) -> TextTable:
    """Tabulate the costs of the worst C, B and learning rate, and of the usual C and B, by problem and ε.

    A cost is the accuracy at the best value minus that at the worst one, with the other hyperparameters tuned
    for each. Learning rates are compared by the first seed, which has trials of every tried rate.
    """
    by = ["problem", "epsilon"]
    costs: dict[Any, dict[str, str]] = {}
    for axis, title in TUNED.items():
        if axis == "learning_rate":
            first = trials[trials["seed"] == 1]
            found = first.groupby([*by, axis])["macro_accuracy"].max()
        else:
            # AUTO-S and training without clipping have no C.
            chosen = choose(trials.dropna(subset=[axis]), by=[*by, axis])
            found = chosen.set_index([*by, axis])["centre"]
        for setting, reached in found.astype(float).dropna().groupby(level=by):
            if len(reached) > 1:
                value = reached.index.get_level_values(axis)[int(reached.argmin())]
                worst = f"{value:,}" if axis == "batch_size" else values([value])
                points = 100 * (reached.max() - reached.min())
                costs.setdefault(setting, {})[title] = f"{points:.1f} ({worst})"
    best, usual = (
        choose(rows, by=by).set_index(by)["centre"] for rows in (trials, by_habit(trials))
    )
    for key, lost in (100 * (best - usual)).dropna().items():
        if key in costs:
            costs[key][USUAL] = f"{max(0.0, lost):.1f}"
    order = list(study.problems)
    rows = [
        titles(study, name)
        | {"ε": values([epsilon])}
        | {title: costs[name, epsilon].get(title, "–") for title in (*TUNED.values(), USUAL)}
        for name, epsilon in sorted(costs, key=lambda each: (order.index(each[0]), each[1]))
    ]
    return TextTable.of(rows, "lll" + "r" * 5)


def references(study: Study, trials: pd.DataFrame) -> TextTable:
    """Tabulate the best non-private cell of every problem, as `dpsweep.study.choice` chooses it."""
    free = trials[(trials["epsilon"] == math.inf) & trials["best"].astype(bool)]
    rows = []
    for name, problem in study.problems.items():
        ours = free[free["problem"] == name]
        chosen = choose(ours, by=["problem"]).dropna(subset=["selection_accuracy"])
        if chosen.empty:
            continue
        cell = chosen["cell"].item()
        best = ours[ours["cell"] == cell]
        accuracy = best["accuracy"]
        rows.append(
            titles(study, name)
            | {
                "Accuracy": percent(accuracy.mean()),
                "Over seeds": f"{percent(accuracy.min())} to {percent(accuracy.max())}",
                "Macro accuracy": percent(best["macro_accuracy"].mean()),
                "Chance": percent(1 / study.datasets[problem.dataset].classes),
                "Seeds": str(len(best)),
                "Cell": f"{name}/{cell}",
            }
        )
    return TextTable.of(rows, "lllrrrrrl")
