"""Write docs/film.md: the paper's questions with the network in the loop.

    python -m benchmarks.findings.film           # keep what studies/film.yaml has trained, then the page
    python -m benchmarks.findings.film --page    # the page alone, from what is kept

Every problem is a piece of its own. The trials of its finished cells go to
benchmarks/results/film/<problem>.parquet, where cells that were trained elsewhere stay; numbers, and the
numbers behind the pictures, lie beside them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.evidence import theory
from benchmarks.findings.accuracies import (
    along_batch_sizes,
    along_bounds,
    automatic_clipping,
    best_settings,
    mean_over_problems,
    points,
    points_lost,
    relative,
    setting_name,
    share,
    table,
)
from benchmarks.findings.numbers import (
    NUMBERS,
    by_chance,
    collect,
    digest,
    gather,
    keep_trials,
    norm_before_training,
)
from benchmarks.findings.rules import rules_section
from benchmarks.tables import theory_effects, theory_rules
from dpsweep.base.files import read_json, write_json, write_text
from dpsweep.study import Study, load_study
from dpsweep.study.captions import listed
from dpsweep.study.paths import Paths

STUDY = REPOSITORY / "studies" / "film.yaml"
KEPT = RESULTS / "film"
FILM_NUMBERS = KEPT / "film.json"
FILM_PAGE = REPOSITORY / "docs" / "film.md"
FILM_IMAGES = REPOSITORY / "docs" / "images" / "film"
TEMPLATE = REPOSITORY / "benchmarks" / "film.md"
FILM_FIGURES = {
    "fig1_accuracy_heatmaps": "Accuracy over C and B",
    "fig2_clipping_vs_difficulty": "What a clipping bound costs against the best one",
    "fig3_gradnorm_distributions": "Norms of the per-example gradients after each epoch, at C = 1",
    "fig4_perclass_retained_accuracy": "Classes, from the most to the least accurately predicted",
    "fig5_autoclip_vs_tuned": "AUTO-S beside flat clipping with a tuned bound",
    "theory_privacy_effects": "Best C by the theory, for the noise and the gradients of each ε",
    "theory_predictions": "Predicted and measured best C, and what each rule for C loses",
}
_OF_THE_THEORY = theory.FIGURES[theory.STUDY]
THEORY = KEPT / "theory"

Row = dict[str, Any]


def keep(study: Study, paths: Paths) -> None:
    """Keep the trials of all finished cells, and the pictures that are there."""
    KEPT.mkdir(parents=True, exist_ok=True)
    FILM_IMAGES.mkdir(parents=True, exist_ok=True)
    for name in study.problems:
        cells = [
            cell for cell in study.problem_cells(name) if paths.cell_trials(study, cell).exists()
        ]
        if not cells:
            continue
        keep_trials(gather(study, paths, cells), KEPT / f"{name}.parquet")
    for name in FILM_FIGURES:
        # Of an unfinished study they are drawn with `dpsweep report --partial`.
        for drawn in (paths, Paths(paths.results, partial=True)):
            if drawn.figure(name, "png").exists():
                shutil.copyfile(drawn.figure(name, "png"), FILM_IMAGES / f"{name}.png")
                if name not in _OF_THE_THEORY.values():  # kept below
                    shutil.copyfile(drawn.figure(name, "csv"), KEPT / f"{name}.csv")
                break
    if all(paths.figure(name, "csv").exists() for name in _OF_THE_THEORY.values()):
        THEORY.mkdir(exist_ok=True)
        for file, name in _OF_THE_THEORY.items():
            shutil.copyfile(paths.figure(name, "csv"), THEORY / f"{file}.csv")


def kept_trials(study: Study) -> pd.DataFrame:
    """Read the trials of all cells that are kept, in the order of the study."""
    files = (KEPT / f"{name}.parquet" for name in study.problems)
    return pd.concat([pd.read_parquet(file) for file in files if file.exists()], ignore_index=True)


def collect_film(study: Study, trials: pd.DataFrame) -> dict[str, Any]:
    """Return everything that the page says, as plain numbers.

    Args:
        study: the study, of which any part may be trained.
        trials: from `kept_trials`.
    """
    trained = trials.groupby("problem")["cell"].nunique()
    return collect(study, trials) | {
        "trained": {
            name: [int(trained.get(name, 0)), len(study.problem_cells(name))]
            for name in study.problems
        },
        "test_examples": {name: each.test_size for name, each in study.datasets.items()},
        "norms": {
            str(name): round(norm_before_training(rows), 1)
            for name, rows in trials.groupby("problem")
            if rows["mean_gradient_norm"].notna().any()
        },
        "chance": round(by_chance(trials, 3), 2),
    }


def film_page(numbers: dict[str, Any], head: dict[str, Any]) -> str:
    """Return the text of docs/film.md.

    Args:
        numbers: from `collect_film`.
        head: the numbers of the head on frozen features, from findings.json.
    """
    study, ends = numbers["study"], numbers["ends"]
    done, cells = _cells_trained(numbers)
    trained = [
        [f"`{name}`", f"{some} of {whole}"] for name, (some, whole) in numbers["trained"].items()
    ]
    return TEMPLATE.read_text(encoding="utf-8").format(
        so_far=f"All {cells} cells of `studies/film.yaml` are trained"
        if done == cells
        else f"**{done} of {cells} cells of `studies/film.yaml` have been trained so far**, and this page "
        "covers only these",
        trained=table(["problem", "cells trained"], trained),
        trials=f"{study['trials']:,}",
        hours=f"{study['hours']:g}",
        seeds=study["seeds"],
        problems=len(numbers["trained"]),
        noise=_noise(numbers),
        at_an_end=ends["at_an_end"],
        tuned=ends["cells"],
        advice=_advice(numbers),
        costs=_costs(numbers),
        head=_beside_the_head(numbers, head),
        as_much=_as_much_as_with_a_head(numbers, head),
        rules=rules_section(
            numbers,
            "since all share their images and count as one ([statistics.md](statistics.md))",
        ),
        best=best_settings(numbers),
        by_bound=along_bounds(numbers),
        by_batch_size=along_batch_sizes(numbers),
        automatic=_automatic(numbers),
        theory=_theory(numbers),
        gradients="\n".join(f"- {each}" for each in [*_norms(), *_classes()]) or "Not drawn yet.",
        figures="\n\n".join(_figures(numbers["pictures"])),
    )


def _noise(numbers: dict[str, Any]) -> str:
    """How far the seeds of the best cells lie apart, and how exact a test set is."""
    rows = numbers["best"]
    errors = [
        100
        * np.sqrt(row["centre"] * (1 - row["centre"]) / numbers["test_examples"][row["dataset"]])
        for row in rows
    ]
    return (
        f"The seeds of a best cell lie {_apart(numbers)} apart in the mean; the test images give the "
        f"accuracy of one model a standard error of up to {max(errors):.1f} points"
    )


def _apart(numbers: dict[str, Any]) -> str:
    """How far the seeds of the best cells lie apart."""
    apart = [100 * (row["maximum"] - row["minimum"]) for row in numbers["best"]]
    return f"{np.mean(apart):.1f} points"


def claim(numbers: dict[str, Any]) -> str:
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


def _norms_before_training(numbers: dict[str, Any]) -> tuple[float, float]:
    """The smallest and the largest over the problems."""
    return min(numbers["norms"].values()), max(numbers["norms"].values())


def _advice(numbers: dict[str, Any]) -> str:
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
    if numbers["automatic"]:
        rows = numbers["automatic"]
        differences = [100 * row["difference"] for row in rows]
        said.append(
            f"**AUTO-S has no C to tune**: it changes {points(min(differences) / 100)} to "
            f"{points(max(differences) / 100)} points against a tuned C in {len(rows)} settings: "
            f"{mean_over_problems(rows, differences)}."
        )
    return "\n".join(f"- {each}" for each in said)


def _small_bound_by_epsilon(numbers: dict[str, Any]) -> str:
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


def _cells_trained(numbers: dict[str, Any]) -> tuple[int, int]:
    """How many cells are trained, and how many there are."""
    done, cells = map(sum, zip(*numbers["trained"].values(), strict=True))
    return done, cells


def _lost(numbers: dict[str, Any], axis: str) -> tuple[list[float], np.ndarray[Any, Any]]:
    """Points that every value of an axis lies below the best one, everything else tuned with it.

    Returns:
        The values, ascending, and the points, (settings in which every value is trained, values).
    """
    rows = _whole(numbers, axis)
    return rows[0]["values"], np.array([_below_the_best(row) for row in rows])


def _whole(numbers: dict[str, Any], axis: str) -> list[Row]:
    """The settings in which every value of an axis is trained."""
    rows: list[Row] = numbers[f"by_{axis}"]
    values = sorted({value for row in rows for value in row["values"]})
    return [row for row in rows if row["values"] == values]


def _below_the_best(row: Row) -> list[float]:
    return [100 * (max(row["accuracy"]) - each) for each in row["accuracy"]]


def _costs(numbers: dict[str, Any]) -> str:
    """Table of what each C and each B costs in every setting, and over those that have all values."""
    axes = {"C": "bound", "B": "batch_size"}
    columns = {name: _lost(numbers, axis) for name, axis in axes.items()}
    whole_bounds, whole_sizes = (_whole(numbers, axis) for axis in axes.values())
    rows = []
    for by_bound, by_size in zip(*(numbers[f"by_{axis}"] for axis in axes.values()), strict=True):
        if by_bound in whole_bounds and by_size in whole_sizes:
            lost = [*_below_the_best(by_bound), *_below_the_best(by_size)]
            name = setting_name(by_bound, numbers["titles"])
            rows.append([name, *(f"{each:.1f}" for each in lost)])
    for name, of in {"mean": np.mean, "at most": np.max}.items():
        numbers_of = [value for _, lost in columns.values() for value in of(lost, axis=0)]
        rows.append([f"**{name}**", *(f"**{value:.1f}**" for value in numbers_of)])
    heads = [f"{name} = {value:,g}" for name, (values, _) in columns.items() for value in values]
    return table(["points below the best", *heads], rows)


def _automatic(numbers: dict[str, Any]) -> str:
    if not numbers["automatic"]:
        return "Not trained yet."
    return automatic_clipping(numbers)


def _norms() -> Iterator[str]:
    """How norms change during training, from the numbers of figure 3."""
    file = KEPT / "fig3_gradnorm_distributions.csv"
    numbers = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["title"])
    for title, rows in numbers.groupby("title", sort=False):
        medians = rows[(rows["quantity"] == "quantile") & (rows["value"] == 0.5)]
        above = rows[rows["quantity"] == "share above C"]
        first, last = (medians.sort_values("epoch")["norm"].iloc[place] for place in (0, -1))
        share_above = above.sort_values("epoch")["value"].iloc[-1]
        yield (
            f"{title}: the median norm is {first:.1f} after the first epoch and {last:.1f} after the last, "
            f"where {100 * share_above:.0f} % of the examples are clipped at C = "
            f"{rows['clipping_bound'].iloc[0]:g}."
        )


def _classes() -> Iterator[str]:
    """What another C does to the easiest and the hardest third of the classes, from figure 4."""
    file = KEPT / "fig4_perclass_retained_accuracy.csv"
    numbers = (
        pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["title", "clipping_bound"])
    )
    for (title, bound), rows in numbers.groupby(["title", "clipping_bound"], sort=False):
        if (rows["accuracy_difference"] == 0).all():  # the bound that others are compared with
            continue
        ranked, third = rows.sort_values("class_rank"), len(rows) // 3
        easy, hard = ranked.head(third), ranked.tail(third)
        changes = [points(each["accuracy_difference"].mean()) for each in (easy, hard)]
        weights = [each["relative_retained_weight"].mean() for each in (easy, hard)]
        yield (
            f"{title}, C = {bound:g}: accuracy changes by {changes[0]} points in the easiest third of the "
            f"classes and by {changes[1]} in the hardest; their relative retained weight is {weights[0]:.2f} "
            f"and {weights[1]:.2f}."
        )


def _predicts_the_plateau(numbers: dict[str, Any], traced: pd.DataFrame) -> Iterator[str]:
    """Which quantity of the theory says which values of C are equally good, after the last epoch."""
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
    yield (
        f"- **What predicts the plateau of C**: the alignment R is within 2 % of its maximum from C = "
        f"{last['plateau_lower'].max():.2g} up to {last['plateau_upper'].min():.0f} at least and "
        f"{last['plateau_upper'].max():.0f} at most, {agrees}."
    )
    yield (
        f"- **What does not**: C\\* is {last['best_bound'].min():.2g} to {last['best_bound'].max():.2g}; "
        f"C = {below[0]:g} costs {lost[:, 0].mean():.1f} points in the mean, and C = {below[-1]:g} "
        f"{lost[:, len(below) - 1].mean():.1f}."
    )
    rules = pd.read_csv(THEORY / "predictions.csv")
    best = rules[rules["rule"] == "Scale-free C"]
    above = best[best["grid_bound"] == bounds[-1]]
    if len(above):
        yield (
            "- **Do not take the scale-free C itself**: it lies near the upper end of the plateau. The "
            f"nearest C that is trained is {bounds[-1]:g} in {len(above)} of {len(best)} settings, which "
            f"costs up to {100 * above['lost'].max():.1f} points."
        )


def _theory(numbers: dict[str, Any]) -> str:
    """What the gradients of these trainings say, if they are measured."""
    if not THEORY.exists():
        return "Not measured yet."
    return "\n".join(
        [
            *_predicts_the_plateau(numbers, pd.read_csv(THEORY / "optimal_clipping.csv")),
            "",
            *theory_effects(THEORY, "batches and trainings"),
            "",
            *theory_rules(THEORY / "predictions.csv"),
        ]
    )


def _as_much_as_with_a_head(numbers: dict[str, Any], head: dict[str, Any]) -> str:
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
    return (
        f"In the {len(pairs)} settings that both have, {'; '.join(said)}. The largest C is "
        f"{largest / norms[1]:.1f} to {largest / norms[0]:.1f} times the norm before training with FiLM, and "
        f"2.9 times with the head. These are {problems} problems: too few for an interval, so this neither "
        "says nor excludes that C matters more with FiLM."
    )


def _beside_the_head(numbers: dict[str, Any], head: dict[str, Any]) -> str:
    """The best accuracy and the cost of the smallest and the largest C, for FiLM and for a head."""
    compared: dict[tuple[Any, ...], list[tuple[str, Row]]] = {}
    for method, by_bound in (("FiLM", numbers["by_bound"]), ("head", head["by_bound"])):
        for row in by_bound:
            key = row["dataset"], row["backbone"], row["epsilon"]
            compared.setdefault(key, []).append((method, row))
    rows = []
    for settings in compared.values():
        if len({method for method, _ in settings}) == 1:
            continue
        for method, row in settings:
            lost = _below_the_best(row)
            place = f"{numbers['titles'][row['backbone']]}, ε = {row['epsilon']:g}"
            rows.append(
                [
                    f"{place}, {method}, {row['epochs']} epochs",
                    share(max(row["accuracy"])),
                    f"{lost[0]:.1f} (C = {row['values'][0]:g})",
                    f"{lost[-1]:.1f} (C = {row['values'][-1]:g})",
                ]
            )
    return table(["", "best C, in %", "smallest C, points lost", "largest C, points lost"], rows)


def _figures(pictures: dict[str, str]) -> Iterator[str]:
    for name, text in FILM_FIGURES.items():
        if name in pictures:
            yield f"![{text}](images/film/{name}.png)\n\n*{text}.*"


def main() -> None:
    """Keep what is trained, and write numbers and page."""
    parser = command_line(__doc__, prog="python -m benchmarks.findings.film")
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--page", action="store_true", help="from what is kept")
    options = parser.parse_args()
    study = load_study(options.study)
    if not options.page:
        keep(study, Paths(Path(study.results)))
    pictures = {file.stem: digest(file) for file in sorted(FILM_IMAGES.glob("*.png"))}
    numbers = collect_film(study, kept_trials(study)) | {"pictures": pictures}
    write_json(FILM_NUMBERS, numbers)
    write_text(FILM_PAGE, film_page(numbers, read_json(NUMBERS)))


if __name__ == "__main__":
    main()
