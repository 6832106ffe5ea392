"""Compute the numbers of the theory from the results of a study, and write them into the pages.

    python -m benchmarks.evidence.theory                                                    # frozen features
    python -m benchmarks.evidence.theory --study studies/demo-dense.yaml                    # the dense demo
    python -m benchmarks.evidence.theory --study studies/demo-dense.yaml --results FOLDER   # from this folder

They are the numbers of the study's figures of the theory, computed from cells and gradients of the folder,
and are not private. They go to benchmarks/results/theory/*.csv. The page is docs/theory.md.
"""

from pathlib import Path

from benchmarks import tables
from benchmarks.common import REPOSITORY, RESULTS, command_line
from dpsweep.base.files import write_text
from dpsweep.study import Paths, load_study

NUMBERS = RESULTS / "theory"
STUDY = Path("studies", "frozen-features.yaml")
FIGURES = {
    STUDY: {
        "optimal_clipping": "theory_optimal_clipping",
        "privacy_effects": "theory_privacy_effects",
        "predictions": "theory_predictions",
    },
    Path("studies", "demo-dense.yaml"): {"demo_predictions": "theory_predictions"},
}
"""For every study, the figures with the numbers to write, by the names of the files."""


def collect(study_file: Path, results: Path | None, folder: Path) -> None:
    """Write the numbers of a study's figures.

    Args:
        study_file: relative to the repository.
        results: instead of the results folder of the study.
        folder: for the numbers.

    Raises:
        MissingResultsError: results are missing; the message lists them.
    """
    study = load_study(REPOSITORY / study_file)
    paths = Paths(results or REPOSITORY / study.results)
    for name, target in FIGURES[study_file].items():
        numbers = study.figures[target].compute(study, paths)
        write_text(folder / f"{name}.csv", numbers.to_csv(index=False, lineterminator="\n"))


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--study", type=Path, choices=FIGURES, default=STUDY)
    parser.add_argument("--results", type=Path, help="instead of the folder that the study names")
    options = parser.parse_args()
    collect(options.study, options.results, NUMBERS)
    tables.write_tables()
