"""Figures look as they did when a person last looked at them.

After an intended change: ``python -m tests.figures.test_pictures``, look at what changed in
``tests/figures/seen``, and commit it.
"""

import tempfile
from pathlib import Path

import pytest
from matplotlib.testing.compare import compare_images
from tests.figures.test_draw import FAMILIES, STUDY, outcome, write_norms
from tests.synthetic import write_cells, write_dataset

from dpsweep.figures import style
from dpsweep.figures.draw import FAMILIES as PLOTS
from dpsweep.study.paths import Paths

SEEN = Path(__file__).parent / "seen"
# Root mean square of the grey values, 0 to 255. It is 0 with the pinned libraries; a line that is a
# third thinner makes 3 to 5, another label 10, letters that are a point larger 27 and more.
TOLERANCE = 2.0


def save_picture(family: str, folder: Path, picture: Path) -> None:
    paths = Paths(folder)
    write_cells(STUDY, paths, outcome, steps_too=True)
    write_norms(paths)
    write_dataset(paths, "digits", [250] * 4)
    compute, plot = PLOTS[family]
    with style.style():
        drawing = plot(STUDY.figures[family], compute(STUDY, paths, STUDY.figures[family]))
        drawing.savefig(picture, dpi=75)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_picture_is_the_one_that_was_seen(tmp_path: Path, family: str) -> None:
    picture = tmp_path / f"{family}.png"
    save_picture(family, tmp_path / "results", picture)
    assert compare_images(str(SEEN / picture.name), str(picture), TOLERANCE) is None


if __name__ == "__main__":
    SEEN.mkdir(exist_ok=True)
    for each in FAMILIES:
        with tempfile.TemporaryDirectory() as scratch:
            save_picture(each, Path(scratch), SEEN / f"{each}.png")
