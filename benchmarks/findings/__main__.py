"""Keep the trials of studies/frozen-features.yaml for docs/findings.md.

    python -m benchmarks.findings             # from results/, then the tables
    python -m benchmarks.findings --numbers   # from the committed trials

Trials go to benchmarks/results/frozen_features.parquet, numbers to findings.json beside it,
pictures to docs/images/findings/.
"""

import shutil
from pathlib import Path

import pandas as pd

from benchmarks.common import REPOSITORY, command_line
from benchmarks.findings.numbers import NUMBERS, TRIALS, collect, digest, gather
from benchmarks.tables import write_tables
from dpsweep.base.files import atomic_path, write_json
from dpsweep.study import Paths, load_study

STUDY = REPOSITORY / "studies" / "frozen-features.yaml"
IMAGES = REPOSITORY / "docs" / "images" / "findings"
FIGURES = ("fig1_accuracy_heatmaps", "fig2_clipping_vs_difficulty", "text_heatmaps")


def main() -> None:
    """Keep trials and pictures, and write numbers and tables."""
    parser = command_line(__doc__, prog="python -m benchmarks.findings")
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--numbers", action="store_true", help="from the committed trials")
    options = parser.parse_args()
    if not options.numbers:
        study = load_study(options.study)
        paths = Paths(Path(study.results))
        IMAGES.mkdir(parents=True, exist_ok=True)
        for name in FIGURES:
            shutil.copyfile(paths.figure(name, "png"), IMAGES / f"{name}.png")
        with atomic_path(TRIALS) as partial:
            # Numbers identify trials as keys do, and take less space.
            trials = gather(study, paths, study.all_cells())
            trials["trial_key"] = trials["trial_key"].factorize()[0]
            trials.to_parquet(partial, compression="zstd", index=False)
    pictures = {name: digest(IMAGES / f"{name}.png") for name in FIGURES}
    numbers = collect(load_study(STUDY), pd.read_parquet(TRIALS))
    write_json(NUMBERS, numbers | {"pictures": pictures})
    write_tables()


if __name__ == "__main__":
    main()
