"""Summary of a study and its trials: sizes, inputs, hardware, best settings and costs; and two compared.

In the sentences on costs, a setting is a problem at one epsilon. For each value of C or B all else is tuned,
and measured by seeds that did not choose (`dpsweep.study.choice`). A difference counts as seen if chance
makes any difference so large in at most 5 % of studies (`dpsweep.analysis.statistics`; Bonferroni over the
sentences on C, B and the usual habit, and over the comparisons of each).
"""

import json
import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from dpsweep.analysis.frames import is_private, present_trials
from dpsweep.analysis.statistics import LEVEL, Scatter
from dpsweep.base.files import read_checked_json
from dpsweep.base.formatting import count, duration, markdown
from dpsweep.report.embed import choice, percent, span, titles, values
from dpsweep.study import Paths, Study
from dpsweep.study.cells import number
from dpsweep.study.choice import CELL, accuracy_interval, choose, repeats
from dpsweep.tables.text import TextTable, signed

HABIT: Mapping[str, float] = {"clipping_bound": 1.0, "batch_size": 256}
"""The usual settings in papers and tutorials."""
_BY = ["problem", "epsilon"]
# For each of three kinds of sentences, on one of two sides.
_CHANCE = LEVEL / 3 / 2


def choice_sentences(study: Study, trials: pd.DataFrame) -> list[str]:
    """Return up to five sentences about C, B and the usual habit; none if there are too few seeds.

    Args:
        study: the study.
        trials: a row per trial, as `dpsweep.analysis.frames.present_trials` reads them.
    """
    # AUTO-S and training without clipping have no C.
    private = trials[is_private(trials)].dropna(subset=["clipping_bound"])
    tuned = repeats(private)
    # The first seed chose the learning rates, so its accuracies are optimistic.
    scatter = Scatter.of(tuned[tuned["seed"] > 1], "macro_accuracy")
    if scatter is None:
        return []
    return [
        *_of_values(study, _costs(private, "clipping_bound"), scatter, "C"),
        *_of_values(study, _costs(private, "batch_size"), scatter, "B"),
        *_of_habit(private, scatter),
    ]


def _costs(trials: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Return a row per setting and value of axis: ``value``, ``reached``, ``best``, ``lost``, ``seeds``."""
    chosen = choose(trials, by=[*_BY, axis]).dropna(subset=["cross_fitted"])
    chosen = chosen.rename(columns={axis: "value", "cross_fitted": "reached"})
    first = chosen.sort_values("selection_accuracy", ascending=False).drop_duplicates(_BY)
    joined = chosen.merge(
        first[[*_BY, "reached", "repeats"]], on=_BY, suffixes=("", "_best")
    ).rename(columns={"reached_best": "best"})
    joined["lost"] = joined["best"] - joined["reached"]
    joined["seeds"] = joined[["repeats", "repeats_best"]].min(axis=1) - 1
    return joined[joined.groupby(_BY)["value"].transform("size") > 1]


def _of_values(study: Study, costs: pd.DataFrame, scatter: Scatter, name: str) -> Iterator[str]:
    if costs.empty:
        return
    settings = len(costs.drop_duplicates(_BY))
    visible = costs["seeds"].map(lambda seeds: scatter.visible(seeds, len(costs), _CHANCE))
    seen = costs["lost"] > visible
    if seen.any():
        worst = costs[seen].nlargest(1, "lost").to_dict("records")[0]
        same = costs["value"] == worst["value"]
        yield (
            f"{name} = {values([worst['value']])} costs up to {100 * worst['lost']:.1f} points "
            f"({', '.join(titles(study, worst['problem']).values())}, ε = {values([worst['epsilon']])}: "
            f"{100 * worst['reached']:.1f} instead of {100 * worst['best']:.1f} %), more than the scatter "
            f"of seeds explains in {(seen & same).sum()} of {count(int(same.sum()), 'setting')}."
        )
    by_value = costs.assign(seen=seen).groupby("value")
    everywhere = by_value["lost"].size() == settings
    alike = list(everywhere.index[everywhere & ~by_value["seen"].any()])
    if len(alike) > 1:
        *others, last = (values([each]) for each in alike)
        each_of = f"{name} = {', '.join(others)} and {last}"
        if visible.max() < 1:
            yield (
                f"{each_of} do not differ from the best {name} in any of {count(settings, 'setting')}; a "
                f"difference of {100 * visible.max():.1f} points would have been seen."
            )
        else:
            yield (
                f"{each_of} cannot be compared: with so small test sets or so few seeds, no difference of "
                "accuracies is larger than the scatter of seeds explains."
            )


def by_habit(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with the usual C and B."""
    return trials[(trials[list(HABIT)] == pd.Series(HABIT)).all(axis=1)]


def _of_habit(trials: pd.DataFrame, scatter: Scatter) -> Iterator[str]:
    """Yield a sentence on the cost of the usual C and B with tuned learning rate, if it is seen."""
    best, found = (
        choose(rows, by=_BY).dropna(subset=["cross_fitted"]).set_index(_BY)
        for rows in (trials, by_habit(trials))
    )
    lost: pd.Series[Any] = (best["cross_fitted"] - found["cross_fitted"]).dropna()
    if lost.empty:
        return
    seeds = pd.concat([best["repeats"], found["repeats"]], axis=1).loc[lost.index].min(axis=1) - 1
    seen = lost > seeds.map(lambda each: scatter.visible(each, len(lost), _CHANCE))
    if seen.any():
        yield (
            f"The usual C = {HABIT['clipping_bound']:g} with B = {HABIT['batch_size']:g} costs up to "
            f"{100 * lost[seen].max():.1f} points beside C and B that are tuned, more than the scatter of "
            f"seeds explains in {seen.sum()} of {count(len(lost), 'setting')}."
        )


USUAL = "Usual C and B"
SCATTER = "Scatter of seeds"
TUNED = {"clipping_bound": "C", "batch_size": "B", "learning_rate": "Learning rate"}


def best_of(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the best cell of every problem and ε, as `dpsweep.study.choice` chooses it."""
    return choose(trials, by=_BY).dropna(subset=["centre"])


def best_settings(study: Study, paths: Paths, trials: pd.DataFrame) -> TextTable:
    """Tabulate the best cell of every problem and ε.

    With units of several rows, the last column has the share of units of which more than half of the rows are
    right: the mean over seeds, with its 95 % interval over units.
    """
    chosen = best_of(trials)
    of_units = "unit_accuracy" in trials
    if of_units:
        shares = repeats(trials).groupby(CELL)["unit_accuracy"].mean()
        chosen = chosen.join(shares, on=CELL)
    rows = [
        titles(study, name)
        | choice(best)
        | ({"Right units": _right_units(study, paths, best)} if of_units else {})
        for name in study.problems
        for best in chosen[chosen["problem"] == name].to_dict("records")
    ]
    return TextTable.of(rows, "lll" + "r" * (9 + of_units))


def _right_units(study: Study, paths: Paths, best: Mapping[Hashable, Any]) -> str:
    if math.isnan(share := best["unit_accuracy"]):
        return "–"
    dataset = paths.dataset(study.problems[str(best["problem"])].dataset)
    low, high = accuracy_interval(share, read_checked_json(dataset / "metadata.json")["test_units"])
    return f"{percent(share)} [{100 * low:.1f}, {100 * high:.1f}]"


def finding(study: Study, trials: pd.DataFrame) -> str:
    """Write a sentence on the best problem's accuracies at the largest and the smallest finite ε."""
    chosen = best_of(trials[is_private(trials)])
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
    for each. Learning rates are compared by the first seed, which has trials of every tried rate. The scatter
    of seeds is the standard deviation within cells, at their best learning rate.
    """
    costs: dict[Any, dict[str, str]] = {}
    for axis, title in TUNED.items():
        if axis == "learning_rate":
            first = trials[trials["seed"] == 1]
            found = first.groupby([*_BY, axis])["macro_accuracy"].max()
        else:
            # AUTO-S and training without clipping have no C.
            chosen = choose(trials.dropna(subset=[axis]), by=[*_BY, axis])
            found = chosen.set_index([*_BY, axis])["centre"]
        for setting, reached in found.astype(float).dropna().groupby(level=_BY):
            if len(reached) > 1:
                value = reached.index.get_level_values(axis)[int(reached.argmin())]
                worst = f"{value:,}" if axis == "batch_size" else values([value])
                points = 100 * (reached.max() - reached.min())
                costs.setdefault(setting, {})[title] = f"{points:.1f} ({worst})"
    best, usual = (
        choose(rows, by=_BY).set_index(_BY)["centre"] for rows in (trials, by_habit(trials))
    )
    for key, lost in (100 * (best - usual)).dropna().items():
        if key in costs:
            costs[key][USUAL] = f"{max(0.0, lost):.1f}"
    variances = repeats(trials).groupby([*_BY, "cell"])["macro_accuracy"].var()
    for key, variance in variances.groupby(level=_BY).mean().dropna().items():
        if key in costs:
            costs[key][SCATTER] = f"±{100 * math.sqrt(variance):.1f}"
    order = list(study.problems)
    rows = [
        titles(study, name)
        | {"ε": values([epsilon])}
        | {
            title: costs[name, epsilon].get(title, "–")
            for title in (*TUNED.values(), USUAL, SCATTER)
        }
        for name, epsilon in sorted(costs, key=lambda each: (order.index(each[0]), each[1]))
    ]
    return TextTable.of(rows, "lll" + "r" * 6)


def each_once(trials: pd.DataFrame) -> pd.DataFrame:
    """Drop repetitions of trials that several sweeps share."""
    once = trials.drop_duplicates("trial_key")
    # The report does not distinguish the GPUs of a machine.
    return once.assign(device=once["device"].str.replace(r" \(GPU .*\)$", "", regex=True))


def sentence(study: Study, trials: pd.DataFrame, cells_to_train: int) -> str:
    """Write a sentence on the size and progress of the study; test sets limit what it can tell apart."""
    sweeps = study.sweeps.values()
    counts = {
        part: count(len({getattr(sweep, part) for sweep in sweeps}), part)
        for part in ("dataset", "backbone", "method")
    }
    tested = sorted({study.datasets[name].test_size for name in study.swept_datasets})
    tested = [tested[0], tested[-1]] if len(tested) > 1 else tested
    counts["dataset"] += f" ({' to '.join(f'{size:,}' for size in tested)} test examples)"
    parts = (count(len(sweeps), "sweep"), *counts.values())
    once, planned = each_once(trials), count(cells_to_train, "planned cell")
    if not cells_to_train:
        so_far = "sweeps of private data run only with --unaccounted."
    elif once.empty:
        so_far = f"none of the {planned} has been trained yet."
    else:
        cells = len(trials[["problem", "cell"]].drop_duplicates())
        devices = " and ".join(sorted(map(str, once["device"].unique())))
        so_far = (
            f"{count(len(once), 'trial')} in {cells:,} of {planned}, "
            f"{duration(once['wall_seconds'].sum())} of training on {devices}."
        )
    return "{} over {}, {} and {}: ".format(*parts) + so_far


def inputs(study: Study, trials: pd.DataFrame) -> dict[str, TextTable]:
    """Tabulate the datasets and sweeps, by heading."""
    datasets = [_dataset(study, name) for name in study.swept_datasets]
    sweeps = [_sweep(study, name, trials) for name in study.sweeps]
    return {
        "Datasets": TextTable.of(datasets, "lllrrrl"),
        "Sweeps": TextTable.of(sweeps, "l" * 10 + "rrr"),
    }


def _dataset(study: Study, name: str) -> dict[str, str]:
    dataset = study.datasets[name]
    of_all = f" of {dataset.protected:,}" if study.holdout_size(name) else ""
    if dataset.has_units:
        of_all += f" units with {dataset.train_size:,} rows; {dataset.protects}"
    return {
        "Dataset": dataset.title,
        "Name": name,
        "Kind": dataset.kind,
        "Classes": f"{dataset.classes:,}",
        "Training examples N": f"{study.train_size(name):,}{of_all}",
        "Test examples": f"{dataset.test_size:,}",
        "Notes": dataset.description,
    }


def _sweep(study: Study, name: str, trials: pd.DataFrame) -> dict[str, str]:
    sweep, cells = study.sweeps[name], study.sweep_cells(name)
    trained = trials[
        (trials["problem"] == sweep.problem.name)
        & trials["cell"].isin([cell.name for cell in cells])
    ]
    return {
        "Sweep": name,
        "Dataset": study.datasets[sweep.dataset].title,
        "Backbone": study.backbones[sweep.backbone].title,
        "Method": study.methods[sweep.method].title,
        "Optimizer": study.optimizer_title(sweep.problem.optimizer, sweep.epsilon),
        "ε": values(sweep.epsilon),
        "Epochs": values(sweep.epochs),
        "B": span(sweep.batch_size),
        "C": span(sweep.clipping_bounds),
        "Learning rate": span(sweep.learning_rates),
        "Seeds": str(sweep.seeds),
        "Cells": f"{trained['cell'].nunique():,} of {len(cells):,}",
        "Trials": f"{len(trained):,}",
    }


def hardware(trials: pd.DataFrame) -> TextTable:
    """Tabulate the devices and number formats of the trials."""
    rows = [
        {
            "Device": str(device),
            "Precision": str(precision),
            "Trials": f"{len(rows):,}",
            "Training": duration(rows["wall_seconds"].sum()),
        }
        for (device, precision), rows in each_once(trials).groupby(["device", "precision"])
    ]
    return TextTable.of(rows, "llrr")


def software(trials: pd.DataFrame) -> TextTable:
    """Tabulate the package versions that the trials record."""
    recorded = [json.loads(each) for each in trials["versions"].unique()]
    packages: dict[str, set[str]] = {}
    for package, version in (pair for versions in recorded for pair in versions.items()):
        packages.setdefault(package, set()).add(str(version))
    rows = [
        {"Package": package, "Version in training": ", ".join(sorted(versions))}
        for package, versions in sorted(packages.items())
    ]
    return TextTable.of(rows, "ll")


# -- two studies ---------------------------------------------------------------------------

_COMPARED = {"privacy", "training", "datasets", "backbones", "methods", "sweeps"}
"""Sections of a study that affect its numbers."""


def compare(first: tuple[Study, Paths], second: tuple[Study, Paths]) -> Iterator[str]:
    """Yield the parts of a Markdown page that compares two studies.

    Problems are matched by name.

    Args:
        first: a study and its files; it may be incomplete.
        second: the other study and its files.

    Raises:
        UnreadableResultsError: a trial file is damaged or lacks a column.
    """
    studies = first[0], second[0]
    names = [study.title for study in studies]
    if names[0] == names[1]:
        names = [f"{study.title} ({study.results})" for study in studies]
    yield f"# {markdown(names[0])}, and {markdown(names[1])}\n"
    settings = pd.concat(map(_settings, studies), axis=1, keys=[0, 1]).fillna("–")
    differing = settings[settings[0] != settings[1]].reset_index().to_numpy().tolist()
    table = TextTable(["Setting", *names], differing, "lll")
    yield table.markdown("Settings that differ", True) if differing else "No setting differs.\n"
    ours, theirs = (
        {(best["problem"], best["epsilon"]): best for best in best_of(trials).to_dict("records")}
        for trials in (present_trials(*first), present_trials(*second))
    )
    rows = [
        [
            problem,
            values([epsilon]),
            *_described(best),
            *_described(other),
            signed(100 * (other["centre"] - best["centre"]), 1),
        ]
        for (problem, epsilon), best in ours.items()
        if (other := theirs.get((problem, epsilon)))
    ]
    if not rows:
        yield "Both have trained no problem of the same name at the same ε."
        return
    of_both = [title for name in names for title in (name, f"{name}: B, C, learning rate")]
    table = TextTable(["Problem", "ε", *of_both, "Difference, points"], rows, "lrrrrrr")
    yield table.markdown("Best accuracies", heading=True)
    yield (
        "Accuracies are means over seeds, which also chose the settings; in brackets the lowest and highest. "
        "A difference within these ranges may be chance."
    )


def _settings(study: Study) -> "pd.Series[str]":
    """Return the settings of a study by their keys, such as ``training.select_on``."""

    def text(value: Any) -> str:
        listed = value if isinstance(value, list) else [value]
        return ", ".join(
            number(each) if isinstance(each, int | float) else str(each) for each in listed
        )

    content = study.model_dump(include=_COMPARED, exclude_none=True)
    (flat,) = pd.json_normalize(content).to_dict("records")
    return pd.Series({str(key): text(value) for key, value in flat.items()})


def _described(best: dict[Hashable, Any]) -> list[str]:
    said = choice(best)
    spread = f"[{percent(best['minimum'])}, {percent(best['maximum'])}]"
    return [f"{said['Accuracy']} {spread}", f"{said['B']}, {said['C']}, {said['Learning rate']}"]
