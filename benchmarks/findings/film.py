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
from benchmarks.findings.accuracies import (
    along_batch_sizes,
    along_bounds,
    best_settings,
    share,
    table,
)
from benchmarks.findings.numbers import NUMBERS, collect, digest, gather
from benchmarks.findings.rules import rules_section
from dpsweep.base.files import atomic_path, read_json, write_json, write_text
from dpsweep.study import Study, load_study
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
    "theory_privacy_effects": "Best C by the theory, for the noise and the gradients of each ε",
}

Row = dict[str, Any]


def keep(study: Study, paths: Paths) -> None:
    """Keep the trials of all finished cells, and the pictures that are there."""
    KEPT.mkdir(parents=True, exist_ok=True)
    FILM_IMAGES.mkdir(parents=True, exist_ok=True)
    for name in study.problems:
        cells = [cell for cell in study.problem_cells(name) if paths.cell_trials(cell).exists()]
        if not cells:
            continue
        trials, file = gather(paths, cells), KEPT / f"{name}.parquet"
        if file.exists():
            before = pd.read_parquet(file)
            trials = pd.concat([before[~before["cell"].isin(trials["cell"])], trials])
        with atomic_path(file) as partial:
            trials.to_parquet(partial, compression="zstd", index=False)
    for name in FILM_FIGURES:
        # Of an unfinished study they are drawn with `--config partial=true`.
        for drawn in (paths, Paths(paths.results, partial=True)):
            if drawn.figure(name, "png").exists():
                shutil.copyfile(drawn.figure(name, "png"), FILM_IMAGES / f"{name}.png")
                shutil.copyfile(drawn.figure(name, "csv"), KEPT / f"{name}.csv")
                break


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
        done=done,
        cells=cells,
        trained=table(["problem", "cells trained"], trained),
        trials=f"{study['trials']:,}",
        hours=f"{study['hours']:g}",
        seeds=study["seeds"],
        noise=_noise(numbers),
        at_an_end=ends["at_an_end"],
        tuned=ends["cells"],
        advice=_advice(numbers),
        costs="\n".join(f"- {line}" for line in _costs(numbers)),
        head=_beside_the_head(numbers, head),
        rules=rules_section(
            numbers,
            "since all share their images and count as one ([statistics.md](statistics.md))",
        ),
        best=best_settings(numbers),
        by_bound=along_bounds(numbers),
        by_batch_size=along_batch_sizes(numbers),
        figures="\n\n".join(_figures(numbers["pictures"])),
    )


def _noise(numbers: dict[str, Any]) -> str:
    """How far the seeds of the best cells lie apart, and how exact a test set is."""
    rows = numbers["best"]
    apart = [100 * (row["maximum"] - row["minimum"]) for row in rows]
    errors = [
        100
        * np.sqrt(row["centre"] * (1 - row["centre"]) / numbers["test_examples"][row["dataset"]])
        for row in rows
    ]
    return (
        f"The seeds of a best cell lie {np.mean(apart):.1f} points apart in the mean, {max(apart):.1f} at "
        f"most; the test images give the accuracy of one model a standard error of up to "
        f"{max(errors):.1f} points"
    )


def claim(numbers: dict[str, Any]) -> str:
    """The sentence of the README: what a C that is always good costs, and what a large one does."""
    done, cells = _cells_trained(numbers)
    bounds, lost = _lost_by_bound(numbers)
    safest = lost.max(axis=0).argmin()
    return (
        f"With FiLM and the network in the loop ({done} of {cells} cells so far), C = {bounds[safest]:g} "
        f"lies at most {lost[:, safest].max():.1f} points below the best C in each of {len(lost)} settings, "
        f"and C = {bounds[-1]:g} lies {lost[:, -1].min():.1f} to {lost[:, -1].max():.1f} points below it."
    )


def _advice(numbers: dict[str, Any]) -> str:
    """Sum up what the smallest and the largest C cost, over all that is trained."""
    bounds, lost = _lost_by_bound(numbers)
    smallest, largest = lost[:, 0], lost[:, -1]
    as_the_head = bool(smallest.max() < min(1, largest.min()))
    safest = lost.max(axis=0).argmin()
    found = "A small C costs little, a large one much" if as_the_head else "What C costs differs"
    return (
        f"**{found}**: in the {len(lost)} settings in which every C is trained, C = {bounds[0]:g} "
        f"lies at most {smallest.max():.1f} points below the best C, and C = {bounds[-1]:g} lies "
        f"{largest.min():.1f} to {largest.max():.1f} points below it, with B and the learning rate tuned "
        f"for every C. C = {bounds[safest]:g} is the safest: at most {lost[:, safest].max():.1f} points "
        "below the best one in every setting."
        + " That is what the head on frozen features says too."
        * as_the_head
    )


def _cells_trained(numbers: dict[str, Any]) -> tuple[int, int]:
    """How many cells are trained, and how many there are."""
    done, cells = map(sum, zip(*numbers["trained"].values(), strict=True))
    return done, cells


def _lost_by_bound(numbers: dict[str, Any]) -> tuple[list[float], np.ndarray[Any, Any]]:
    """Points that every C lies below the best one, over the settings in which every C is trained.

    Returns:
        The clipping bounds, ascending, and the points, (settings, clipping bounds).
    """
    rows = numbers["by_bound"]
    bounds = sorted({bound for row in rows for bound in row["values"]})
    return bounds, np.array([_lost(row) for row in rows if row["values"] == bounds])


def _lost(row: Row) -> list[float]:
    """Points that every value of an axis lies below the best one."""
    return [100 * (max(row["accuracy"]) - each) for each in row["accuracy"]]


def _costs(numbers: dict[str, Any]) -> Iterator[str]:
    """What each C and each B costs, B or C tuned with it, at every epsilon."""
    titles = numbers["titles"]
    for by_bound, by_size in zip(numbers["by_bound"], numbers["by_batch_size"], strict=True):
        place = (
            f"{titles[by_bound['dataset']]}, {titles[by_bound['backbone']]}, {by_bound['epochs']} epochs, "
            f"ε = {by_bound['epsilon']:g}"
        )
        said = [
            ", ".join(
                f"{lost:.1f} at {axis} = {value:,g}"
                for lost, value in zip(_lost(row), row["values"], strict=True)
            )
            for axis, row in (("C", by_bound), ("B", by_size))
        ]
        yield (
            f"{place}: points below the best C, B and learning rate tuned: {said[0]}. Points below the "
            f"best B, C and learning rate tuned: {said[1]}."
        )


def _beside_the_head(numbers: dict[str, Any], head: dict[str, Any]) -> str:
    """The best accuracy and the cost of the smallest and the largest C, for FiLM and for a head."""
    heads = {(row["dataset"], row["backbone"], row["epsilon"]): row for row in head["by_bound"]}
    rows = []
    for row in numbers["by_bound"]:
        key = row["dataset"], row["backbone"], row["epsilon"]
        for method, each in (("FiLM", row), ("head", heads.get(key))):
            if each is not None and key in heads:
                lost = _lost(each)
                rows.append(
                    [
                        f"{row['backbone']}, ε = {row['epsilon']:g}, {method}, {each['epochs']} epochs",
                        share(max(each["accuracy"])),
                        f"{lost[0]:.1f} (C = {each['values'][0]:g})",
                        f"{lost[-1]:.1f} (C = {each['values'][-1]:g})",
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
