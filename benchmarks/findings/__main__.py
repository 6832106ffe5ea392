"""Write docs/findings.md, its figures and its numbers from the study of frozen features.

    python -m benchmarks.findings            # from results/frozen-features, after the study
    python -m benchmarks.findings --film     # from results/film-confirmation, after that study
    python -m benchmarks.findings --page     # the page alone, from the committed numbers

Numbers go to benchmarks/results/findings.json and film.json, pictures to docs/images/findings/.
"""

import argparse
import shutil
from pathlib import Path

from benchmarks.findings.document import FIGURES, IMAGES, write_page
from benchmarks.findings.numbers import (
    FILM_NUMBERS,
    NUMBERS,
    REPOSITORY,
    collect,
    collect_film,
    digest,
)
from dpsweep.base.files import write_json
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
