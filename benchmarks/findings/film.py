"""Keep the trials of studies/film.yaml for docs/findings.md.

    python -m benchmarks.findings.film             # from results/, then the tables
    python -m benchmarks.findings.film --numbers   # from the committed trials

The trials of finished cells go to benchmarks/results/film/<problem>.parquet, which keeps cells that were
trained elsewhere. Numbers, and the numbers behind the pictures, go to the same folder.
"""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.common import REPOSITORY, RESULTS, command_line
from benchmarks.evidence import theory
from benchmarks.findings.numbers import (
    by_chance,
    collect,
    digest,
    gather,
    keep_trials,
    norm_before_training,
)
from benchmarks.tables import write_tables
from dpsweep.base.files import write_json
from dpsweep.study import Paths, Study, load_study

STUDY = REPOSITORY / "studies" / "film.yaml"
KEPT = RESULTS / "film"
FILM_NUMBERS = KEPT / "film.json"
FILM_IMAGES = REPOSITORY / "docs" / "images" / "film"
_OF_THE_THEORY = theory.FIGURES[theory.STUDY]
FILM_FIGURES = (
    "fig1_accuracy_heatmaps",
    "fig2_clipping_vs_difficulty",
    "fig3_gradnorm_distributions",
    "theory_privacy_effects",
    "theory_predictions",
)


def keep(study: Study, paths: Paths) -> None:
    """Keep the trials of all finished cells, and the existing pictures."""
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
        # `dpsweep report --partial` draws the pictures of an unfinished study.
        for drawn in (paths, Paths(paths.results, partial=True)):
            if drawn.figure(name, "png").exists():
                shutil.copyfile(drawn.figure(name, "png"), FILM_IMAGES / f"{name}.png")
                if name not in _OF_THE_THEORY.values():  # kept below
                    shutil.copyfile(drawn.figure(name, "csv"), KEPT / f"{name}.csv")
                break
    if all(paths.figure(name, "csv").exists() for name in _OF_THE_THEORY.values()):
        folder = KEPT / "theory"
        folder.mkdir(exist_ok=True)
        for file, name in _OF_THE_THEORY.items():
            shutil.copyfile(paths.figure(name, "csv"), folder / f"{file}.csv")


def kept_trials(study: Study) -> pd.DataFrame:
    """Read all kept trials, in the order of the study."""
    files = (KEPT / f"{name}.parquet" for name in study.problems)
    return pd.concat([pd.read_parquet(file) for file in files if file.exists()], ignore_index=True)


def collect_film(study: Study, trials: pd.DataFrame) -> dict[str, Any]:
    """Return all numbers of the tables.

    Args:
        study: the study; any part of it may be trained.
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


def main() -> None:
    """Keep trials and pictures, and write numbers and tables."""
    parser = command_line(__doc__, prog="python -m benchmarks.findings.film")
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--numbers", action="store_true", help="from the committed trials")
    options = parser.parse_args()
    study = load_study(options.study)
    if not options.numbers:
        keep(study, Paths(Path(study.results)))
    pictures = {file.stem: digest(file) for file in sorted(FILM_IMAGES.glob("*.png"))}
    write_json(FILM_NUMBERS, collect_film(study, kept_trials(study)) | {"pictures": pictures})
    write_tables()


if __name__ == "__main__":
    main()
