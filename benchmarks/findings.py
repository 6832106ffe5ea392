"""Write docs/findings.md, its figures and its numbers from the study of frozen features.

    python -m benchmarks.findings            # from results/frozen-features, after the study
    python -m benchmarks.findings --film     # from results/film-confirmation, after that study
    python -m benchmarks.findings --page     # the page alone, from the committed numbers

Numbers go to benchmarks/results/findings.json and film.json, pictures to docs/images/findings/.
"""

import argparse
import hashlib
import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import tables
from dpsweep.analysis.frames import load_trials
from dpsweep.choice import choose, repeats
from dpsweep.files import read_json, write_json, write_text
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths

REPOSITORY = Path(__file__).parents[1]
NUMBERS = REPOSITORY / "benchmarks" / "results" / "findings.json"
FILM_NUMBERS = NUMBERS.with_name("film.json")
PAGE = REPOSITORY / "docs" / "findings.md"
IMAGES = REPOSITORY / "docs" / "images" / "findings"
TEMPLATE = REPOSITORY / "benchmarks" / "findings.md"
STUDY = REPOSITORY / "studies" / "frozen-features.yaml"
FILM_STUDY = REPOSITORY / "studies" / "film-confirmation.yaml"
FIGURES = {
    "fig1_accuracy_heatmaps": "Accuracy over C and B, from the easiest problem to the hardest",
    "fig2_clipping_vs_difficulty": "What a clipping bound costs against the best one, by difficulty",
    "fig3_gradnorm_distributions": "Norms of the per-example gradients after each epoch",
    "fig5_autoclip_vs_tuned": "AUTO-S beside flat clipping with a tuned bound",
    "fig7_cumulative_noise": "Cumulative noise, steps and accuracy",
    "text_heatmaps": "Texts: accuracy over C and B",
}
PROBLEM = ["dataset", "backbone", "epsilon", "epochs"]
RULE_COLUMNS = [
    "condition", "implication", "effect_measured", "unit", "effect", "lower_here", "upper_here",
    "comparisons", "in_favour", "against", "verdict",
]  # fmt: skip


# -- numbers -----------------------------------------------------------------------------------


def collect(study: Study, paths: Paths) -> dict[str, Any]:
    """Everything that the page says, as plain numbers."""
    cells = study.all_cells()
    trials = load_trials(paths, cells)
    costs = pd.concat(
        pd.read_parquet(
            paths.problem(name),
            columns=["trial_key", "wall_seconds", "train_size"],
        )
        for name in study.problems
    ).drop_duplicates("trial_key")
    flat, automatic = (trials[trials["clipping"] == kind] for kind in ("flat", "automatic"))
    rules = pd.read_csv(paths.table("tab1_tuning_implications", "csv"))
    return {
        "study": {
            "cells": len(cells),
            "trials": len(costs),
            "hours": round(float(costs["wall_seconds"].sum()) / 3600, 2),
            "seconds_of_a_trial": {
                str(size): round(float(group["wall_seconds"].median()), 2)
                for size, group in costs.groupby("train_size")
            },
            "seeds": int(trials["seed"].max()),
        },
        "ends": _ends(study, trials),
        "best": _best(flat),
        "by_bound": _along(flat, "clipping_bound"),
        "by_batch_size": _along(flat, "batch_size"),
        "automatic": _automatic(flat, automatic),
        "rules": _plain(rules[RULE_COLUMNS]),
        "titles": {
            name: each.title for name, each in [*study.datasets.items(), *study.backbones.items()]
        },
    }


def collect_film(study: Study, paths: Paths) -> dict[str, Any]:
    """The cells of the study with FiLM that are there, as plain numbers."""
    cells = study.all_cells()
    done = [cell for cell in cells if (paths.cell(cell) / "trials.parquet").exists()]
    trials = load_trials(paths, done)
    rows = choose(trials, [*PROBLEM, "clipping_bound", "batch_size"])
    columns = [
        *PROBLEM,
        "batch_size",
        "clipping_bound",
        "learning_rate",
        "centre",
        "minimum",
        "maximum",
    ]
    (tested,) = {study.datasets[study.problems[cell.problem].dataset].test_size for cell in cells}
    return {
        "cells": len(cells),
        "done": len(done),
        "test_examples": tested,
        "rates": _ends(study, trials),
        "rows": _plain(rows[columns]),
    }


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them: no NaN, few digits."""

    def plain(value: Any) -> Any:
        if isinstance(value, float | np.floating):
            return None if np.isnan(value) else float(f"{value:.4g}")
        return int(value) if isinstance(value, np.integer) else value

    return [
        {str(key): plain(value) for key, value in row.items()} for row in frame.to_dict("records")
    ]


def _ends(study: Study, trials: pd.DataFrame) -> dict[str, int]:
    """How many cells have their best learning rate at an end of its grid."""
    best = repeats(trials).groupby(["problem", "cell"])["learning_rate"].first()
    grids = {
        (cell.problem, cell.name): study.sweeps[study.sweep_of(cell)].learning_rates
        for cell in study.all_cells()
    }
    ends = [rate in (grids[key][0], grids[key][-1]) for key, rate in best.items()]
    return {"cells": len(ends), "at_an_end": sum(ends)}


def _best(trials: pd.DataFrame) -> list[dict[str, Any]]:
    """The best cell of every problem, epsilon and number of epochs."""
    columns = [
        *PROBLEM, "batch_size", "train_size", "clipping_bound", "learning_rate", "centre",
        "minimum", "maximum", "cross_fitted",
    ]  # fmt: skip
    return _plain(choose(trials, PROBLEM)[columns])


def _along(trials: pd.DataFrame, axis: str) -> list[dict[str, Any]]:
    """Accuracy along C or B, everything else tuned for every value; seeds that did not choose measure."""
    chosen = choose(trials, [*PROBLEM, axis])
    rows = []
    for key, group in chosen.groupby(PROBLEM):
        rows.append(
            dict(zip(PROBLEM, key, strict=True))
            | {
                "values": group[axis].tolist(),
                "accuracy": [round(value, 4) for value in group["cross_fitted"]],
                "lowest": [round(value, 4) for value in group["minimum"]],
                "highest": [round(value, 4) for value in group["maximum"]],
            }
        )
    return rows


def _automatic(flat: pd.DataFrame, automatic: pd.DataFrame) -> list[dict[str, Any]]:
    """AUTO-S against flat clipping with a tuned bound, B tuned for both."""
    both = choose(flat, PROBLEM).merge(
        choose(automatic, PROBLEM), on=PROBLEM, suffixes=("", "_auto")
    )
    both["difference"] = both["cross_fitted_auto"] - both["cross_fitted"]
    columns = [*PROBLEM, "cross_fitted", "cross_fitted_auto", "difference", "batch_size_auto"]
    return _plain(both[columns])


def film_numbers() -> dict[str, Any] | None:
    """What was measured with FiLM; None before its study has been run."""
    return read_json(FILM_NUMBERS) if FILM_NUMBERS.exists() else None


def digest(file: Path) -> str:
    """SHA-256 of a picture."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


# -- the page ----------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def share(value: float | None) -> str:
    """An accuracy, as a percentage with one digit."""
    return "" if value is None else f"{100 * value:.1f}"


def points(value: float) -> str:
    """A difference of accuracies, in percentage points."""
    return f"{100 * value:+.1f}".replace("-", "−")


def _name(row: dict[str, Any], titles: dict[str, str]) -> str:
    epochs = f", {row['epochs']} epochs"
    return f"{titles[row['dataset']]}, {titles[row['backbone']]}{epochs}, ε = {row['epsilon']:g}"


def _curves(rows: list[dict[str, Any]], name: str, titles: dict[str, str], sizes: Any) -> str:
    """A table for each set of values along an axis."""
    grids = []
    groups: dict[tuple[float, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row["values"]), []).append(row)
    for values, members in groups.items():
        heads = [f"{name} = {sizes(members[0], value)}" for value in values]
        lines = []
        for row in members:
            best = max(row["accuracy"])
            cells = [
                f"**{share(each)}**" if each == best else share(each) for each in row["accuracy"]
            ]
            lines.append([_name(row, titles), *cells])
        grids.append(table(["accuracy in %", *heads], lines))
    return "\n\n".join(grids)


def page(numbers: dict[str, Any], film: dict[str, Any] | None) -> str:
    """The text of docs/findings.md, from the numbers of both studies alone."""
    study, titles, ends = numbers["study"], numbers["titles"], numbers["ends"]
    sizes = {(row["dataset"]): row["train_size"] for row in numbers["best"]}

    def batch(row: dict[str, Any], value: float) -> str:
        return "N" if value == sizes[row["dataset"]] else f"{value:,.0f}"

    best = [
        [
            _name(row, titles),
            share(row["centre"]),
            f"{share(row['minimum'])} to {share(row['maximum'])}",
            batch(row, row["batch_size"]),
            f"{row['clipping_bound']:g}",
            f"{row['learning_rate']:g}",
        ]
        for row in numbers["best"]
    ]
    automatic = [
        [
            _name(row, titles),
            share(row["cross_fitted_auto"]),
            share(row["cross_fitted"]),
            points(row["difference"]),
        ]
        for row in numbers["automatic"]
    ]
    rules = [
        [
            f"{row['condition']}: {row['implication'][0].lower()}{row['implication'][1:]}",
            row["effect_measured"],
            _effect(row),
            f"{row['comparisons']} ({row['in_favour']}, {row['against']})",
            row["verdict"],
        ]
        for row in numbers["rules"]
    ]
    figures = "\n\n".join(
        f"![{text}](images/findings/{name}.png)\n\n*{text}.*" for name, text in FIGURES.items()
    )
    seconds = ", ".join(
        f"{value:g} s for N = {int(size):,}" for size, value in study["seconds_of_a_trial"].items()
    )
    return TEMPLATE.read_text(encoding="utf-8").format(
        cells=f"{study['cells']:,}",
        trials=f"{study['trials']:,}",
        seeds=study["seeds"],
        hours=f"{study['hours']:g}",
        seconds=seconds,
        verdicts=_verdicts(numbers["rules"]),
        most=_most(numbers["rules"]),
        unresolved=len(_unresolved(numbers["rules"])),
        bounded=sum(row["unit"] == "accuracy" for row in _unresolved(numbers["rules"])),
        sizes=max(len(row["values"]) for row in numbers["by_batch_size"]),
        bounds=max(len(row["values"]) for row in numbers["by_bound"]),
        wider=f"{480 * 9 * study['seconds_of_a_trial']['50000'] / 3600:.1f}",
        at_an_end=ends["at_an_end"],
        tuned=ends["cells"],
        rules=table(
            ["rule", "measured", "effect [95 % interval]", "comparisons (for, against)", "verdict"],
            rules,
        ),
        advice=_advice(numbers),
        best=table(["problem", "accuracy in %", "seeds", "B", "C", "learning rate"], best),
        by_bound=_curves(numbers["by_bound"], "C", titles, lambda _, value: f"{value:g}"),
        by_batch_size=_curves(numbers["by_batch_size"], "B", titles, batch),
        automatic=table(["problem", "AUTO-S", "tuned C", "difference, points"], automatic),
        effects="\n".join(_said(tables.theory_effects(), "- ")),
        predictions="\n".join(_said(tables.theory_rules(tables.THEORY / "predictions.csv"), "- ")),
        film="It has not been run yet." if film is None else _film(film),
        figures=figures,
    )


def _said(lines: Sequence[str], start: str) -> list[str]:
    """The sentences under a table of docs/theory.md."""
    return [line for line in lines if line.startswith(start)]


def _most(rules: list[dict[str, Any]]) -> str:
    """The end that is furthest from zero, of the intervals of effects on accuracy; in points."""
    ends = [
        abs(row[end])
        for row in _unresolved(rules)
        for end in ("lower_here", "upper_here")
        if row["unit"] == "accuracy" and row[end] is not None
    ]
    return f"{100 * max(ends):.2f}"


def _unresolved(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rules if row["verdict"] == "not resolved"]


def _verdicts(rules: list[dict[str, Any]]) -> str:
    """Which rules have which verdict, in a sentence for each verdict."""
    sentences = []
    for verdict in dict.fromkeys(row["verdict"] for row in rules):
        named = [
            f"{row['condition'].lower()}: {row['implication'][0].lower()}{row['implication'][1:]}"
            for row in rules
            if row["verdict"] == verdict
        ]
        sentences.append(f"**{verdict[0].upper()}{verdict[1:]}**: {'; '.join(named)}.")
    return "\n\n".join(sentences)


def _film(film: dict[str, Any]) -> str:
    """The grid of every epsilon with the network in the loop, and what its C cost."""
    bounds = sorted({row["clipping_bound"] for row in film["rows"]})
    grids: dict[tuple[float, int], dict[float, float]] = {}
    for row in film["rows"]:
        grids.setdefault((row["epsilon"], row["batch_size"]), {})[row["clipping_bound"]] = row[
            "centre"
        ]
    lines = [
        [f"ε = {epsilon:g}, B = {size:,}", *(share(cells.get(bound)) for bound in bounds)]
        for (epsilon, size), cells in grids.items()
    ]
    apart = [100 * (row["maximum"] - row["minimum"]) for row in film["rows"]]
    error = max(math.sqrt(row["centre"] * (1 - row["centre"])) for row in film["rows"])
    said = [
        f"- What is noise: the two seeds of a cell differ by {statistics.mean(apart):.1f} points in the mean "
        f"and by {max(apart):.1f} at most, and {film['test_examples']:,} test examples give the accuracy of "
        f"one model a standard error of up to {100 * error / math.sqrt(film['test_examples']):.1f} points. "
        "There is no interval for the best of a few cells with two seeds. The best learning rate is at an "
        f"end of its grid in {film['rates']['at_an_end']} of {film['rates']['cells']} cells."
    ]
    for epsilon in sorted({epsilon for epsilon, _ in grids}):
        best = {
            bound: max(
                cells.get(bound, 0) for (other, _), cells in grids.items() if other == epsilon
            )
            for bound in bounds
        }
        by_size = {
            size: max(cells.values()) for (other, size), cells in grids.items() if other == epsilon
        }
        said.append(
            f"- ε = {epsilon:g}: against the best C, B tuned with it, accuracy is lower by "
            f"{_costs('C', best)}. Against the best B, C tuned with it, it is lower by "
            f"{_costs('B', by_size)}."
        )
    head = ["accuracy in %", *(f"C = {bound:g}" for bound in bounds)]
    mean = "The mean over the seeds, at the best of four learning rates:"
    done = f"{film['done']} of its {film['cells']} cells have been trained. {mean}"
    return "\n\n".join([done, table(head, lines), "\n".join(said)])


def _costs(axis: str, accuracies: Mapping[Any, float]) -> str:
    """How many points each value of an axis is below the best one."""
    best = max(accuracies.values())
    return ", ".join(
        f"{100 * (best - accuracy):.1f} at {axis} = {value:,g}"
        for value, accuracy in accuracies.items()
    )


def _effect(row: dict[str, Any]) -> str:
    if row["effect"] is None:
        return "no comparison"
    unit = row["unit"]
    text = f"{row['effect']:+.3g}"
    if row["lower_here"] is not None:
        text += f" [{row['lower_here']:+.3g}, {row['upper_here']:+.3g}]"
    return f"{text} {unit}".replace("-", "−")


def _advice(numbers: dict[str, Any]) -> str:
    """What the numbers come to."""
    said = "\n".join(f"- {line}" for line in _about_bounds(numbers))
    return f"{said}\n\n{_about_batches(numbers)}"


def _losses(rows: list[dict[str, Any]], position: int) -> list[float]:
    return [
        max(row["accuracy"]) - row["accuracy"][position] for row in rows if len(row["values"]) > 4
    ]


def _about_bounds(numbers: dict[str, Any]) -> list[str]:
    rows = numbers["by_bound"]
    smallest, largest = _losses(rows, 0), _losses(rows, -1)
    differences = [row["difference"] for row in numbers["automatic"]]
    mean = points(float(np.mean(differences)))
    return [
        "**Clip everything.** The smallest C, below nearly every norm, costs at most "
        f"{100 * max(smallest):.1f} points against the best C ({100 * np.mean(smallest):.1f} in the mean of "
        f"{len(smallest)} settings). Below the norms there is little to tune.",
        "**Do not let C exceed the norms.** The largest C, above all of them, costs "
        f"{100 * min(largest):.1f} to {100 * max(largest):.1f} points: the noise grows with C, and the "
        "signal does not.",
        f"**AUTO-S instead of a tuned C** changes {points(min(differences))} to {points(max(differences))} "
        f"points ({mean} in the mean of {len(differences)}), and has no C to tune.",
    ]


def _about_batches(numbers: dict[str, Any]) -> str:
    """What the full batch costs, as a table."""
    epsilons = sorted({row["epsilon"] for row in numbers["by_batch_size"]})
    groups: dict[str, dict[float, str]] = {}
    for row in numbers["by_batch_size"]:
        lost = 100 * (max(row["accuracy"]) - row["accuracy"][-1])
        titles = numbers["titles"]
        title = f"{titles[row['dataset']]}, {titles[row['backbone']]}, {row['epochs']} epochs"
        groups.setdefault(title, {})[row["epsilon"]] = f"{lost:.1f}"
    head = [
        "points that the full batch costs against the best B",
        *(f"ε = {x:g}" for x in epsilons),
    ]
    rows = [[title, *(cells.get(x, "") for x in epsilons)] for title, cells in groups.items()]
    return table(head, rows)


def write_page() -> None:
    """Write the page from the committed numbers."""
    write_text(PAGE, page(read_json(NUMBERS), film_numbers()))


def main() -> None:
    """Write the page, and unless it is all that is asked for, numbers and pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument(
        "--film", action="store_true", help="numbers of the study with FiLM instead"
    )
    parser.add_argument("--page", action="store_true", help="from the committed numbers")
    options = parser.parse_args()
    if options.film:
        study = load_study(FILM_STUDY)
        write_json(FILM_NUMBERS, collect_film(study, Paths(Path(study.results))))
    elif not options.page:
        study = load_study(options.study)
        paths = Paths(Path(study.results))
        IMAGES.mkdir(parents=True, exist_ok=True)
        for name in FIGURES:
            shutil.copyfile(paths.figure(name, "png"), IMAGES / f"{name}.png")
        pictures = {name: digest(IMAGES / f"{name}.png") for name in FIGURES}
        write_json(NUMBERS, collect(study, paths) | {"pictures": pictures})
    write_page()


if __name__ == "__main__":
    main()
