"""Write docs/findings.md, its figures and its numbers from the study of frozen features.

    python -m benchmarks.findings            # from results/frozen-features, after the study
    python -m benchmarks.findings --film     # from results/film-confirmation, after that study
    python -m benchmarks.findings --page     # the page alone, from the committed trials

Trials go to benchmarks/results/frozen_features.parquet, numbers to findings.json and film.json beside it,
pictures to docs/images/findings/.
"""

import argparse
import shutil
from pathlib import Path

import pandas as pd

from benchmarks.findings.document import FIGURES, IMAGES, write_page
from benchmarks.findings.numbers import (
    FILM_NUMBERS,
    NUMBERS,
    REPOSITORY,
    TRIALS,
    collect,
    collect_film,
    digest,
    gather,
)
from dpsweep.base.files import atomic_path, write_json
from dpsweep.study import load_study
from dpsweep.study.paths import Paths

STUDY = REPOSITORY / "studies" / "frozen-features.yaml"
FILM_STUDY = REPOSITORY / "studies" / "film-confirmation.yaml"


def main() -> None:
    """Write the page, and unless it is all that is asked for, numbers and pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.findings", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument(
        "--film", action="store_true", help="numbers of the study with FiLM instead"
    )
    parser.add_argument("--page", action="store_true", help="from the committed trials")
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
        with atomic_path(TRIALS) as partial:
            gather(study, paths).to_parquet(partial, compression="zstd", index=False)
    if not options.film:
        pictures = {name: digest(IMAGES / f"{name}.png") for name in FIGURES}
        numbers = collect(load_study(STUDY), pd.read_parquet(TRIALS))
        write_json(NUMBERS, numbers | {"pictures": pictures})
    write_page()


if __name__ == "__main__":
    main()
