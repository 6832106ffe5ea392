"""Take the numbers of the theory from the results of a study, and write the page that shows them.

    python -m benchmarks.evidence.theory                                                    # frozen features
    python -m benchmarks.evidence.theory --study studies/demo-dense.yaml                    # the dense demo
    python -m benchmarks.evidence.theory --study studies/demo-dense.yaml --results FOLDER   # from this folder

The numbers are those of the study's figures of the theory. They are computed from the folder's cells and
gradients, not taken from its figures, go to benchmarks/results/theory/*.csv, and are not private. The page
is docs/theory.md.
"""

from pathlib import Path

from benchmarks import tables
from benchmarks.common import REPOSITORY, RESULTS, command_line
from dpsweep.base.files import write_text
from dpsweep.study import load_study
from dpsweep.study.paths import Paths

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
"""For every study the figures whose numbers are shown, by the names of their files."""


def collect(study_file: Path, results: Path | None, folder: Path) -> None:
    """Write the numbers of a study's figures.

    Args:
        study_file: relative to the repository.
        results: instead of the folder that the study names.
        folder: where the numbers go.

    Raises:
        MissingResultsError: the results are not complete; the message says what is absent.
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
