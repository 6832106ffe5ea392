"""Figures look as they did when a person last looked at them.

After an intended change: ``python -m tests.figures.test_pictures``, look at what changed in
``tests/figures/seen``, and commit it.
"""

import tempfile
from pathlib import Path

import pytest
from matplotlib.testing.compare import compare_images
from tests.figures.test_draw import FAMILIES, STUDY, write_results

from dpsweep.figures import style
from dpsweep.study.paths import Paths

SEEN = Path(__file__).parent / "seen"
# Root mean square of the grey values, 0 to 255. It is 0 with the pinned libraries; a line that is a
# third thinner makes 3 to 5, another label 10, letters that are a point larger 27 and more.
TOLERANCE = 2.0


def save_picture(family: str, results: Path, picture: Path) -> None:
    figure = STUDY.figures[family]
    with style.style():
        drawing = figure.plot(figure.compute(STUDY, Paths(results)))
        drawing.savefig(picture, dpi=75)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_picture_is_the_one_that_was_seen(results: Path, tmp_path: Path, family: str) -> None:
    picture = tmp_path / f"{family}.png"
    save_picture(family, results, picture)
    assert compare_images(str(SEEN / picture.name), str(picture), TOLERANCE) is None


if __name__ == "__main__":
    SEEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        made = write_results(Path(scratch)).results
        for each in FAMILIES:
            save_picture(each, made, SEEN / f"{each}.png")
