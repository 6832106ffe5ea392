"""Figures look as in the pictures of ``tests/figures/seen``, which a person has reviewed.

After an intended change run ``python -m tests.figures.test_pictures``, review the changed pictures and commit
them.
"""

import tempfile
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from tests.figures.conftest import Drawn
from tests.figures.test_draw import FAMILIES, STUDY, write_results

from dpsweep.figures import style

SEEN = Path(__file__).parent / "seen"
# Root mean square of the grey values, 0 to 255. It is 0 with the pinned libraries, 3 to 5 with a line that is
# a third thinner, 10 with another label, and at least 27 with letters that are a point larger.
TOLERANCE = 2.0


def save_picture(drawing: Figure, picture: Path) -> None:
    with style.style():
        drawing.savefig(picture, dpi=75)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_picture_is_the_reviewed_one(drawn: Drawn, tmp_path: Path, family: str) -> None:
    picture = tmp_path / f"{family}.png"
    save_picture(drawn(family), picture)
    assert compare_images(str(SEEN / picture.name), str(picture), TOLERANCE) is None


# Both axes of predicted_clipping are C, with ticks that show the logarithmic scale.
@pytest.mark.parametrize("family", [each for each in FAMILIES if each != "predicted_clipping"])
def test_logarithmic_axes_are_named(drawn: Drawn, family: str) -> None:
    strips = {"B", "η", "C"}  # their ticks are the chosen values
    labels = [
        axis.get_label_text()
        for axes in drawn(family).axes
        for axis in (axes.xaxis, axes.yaxis)
        if axis.get_scale() == "log" and axis.get_label_text() not in strips
    ]
    assert all("(log scale)" in label for label in labels if label), labels


if __name__ == "__main__":
    SEEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, style.style():
        made = write_results(Path(scratch))
        for name, figure in STUDY.figures.items():
            save_picture(figure.plot(figure.compute(STUDY, made)), SEEN / f"{name}.png")
