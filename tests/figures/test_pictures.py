"""Figures look as they did when a person last looked at them.

After an intended change: look at the new drawings, then ``python -m tests.figures.test_pictures``.
"""

import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.figures.test_draw import STUDY, outcome, write_norms
from tests.synthetic import write_cells, write_dataset

from dpsweep.figures import draw
from dpsweep.study.paths import Paths

SEEN = Path(__file__).parent / "seen"
FAMILIES = ["heatmap", "clipping_curve", "per_class", "noise_curve", "gradient_norm_distribution"]
# Root mean square, where black and white are 1 apart. With the pinned libraries it is 0; a missing line,
# another colour or a label that is gone or a point larger are 0.012 and more.
TOLERANCE = 0.008


def small_picture(family: str, folder: Path) -> Image.Image:
    """A figure at a sixth of its size."""
    paths = Paths(folder)
    write_cells(STUDY, paths, outcome, steps_too=True)
    write_norms(paths)
    write_dataset(paths, "digits", [250] * 4)
    draw(STUDY, paths, family)
    with Image.open(io.BytesIO(paths.figure(family, "png").read_bytes())) as image:
        full = image.convert("RGB")
    return full.resize((full.width // 6, full.height // 6), Image.Resampling.BOX)


def distance(one: Image.Image, other: Image.Image) -> float:
    """Root of the mean squared difference, 1 where the sizes differ."""
    if one.size != other.size:
        return 1.0
    values = [np.asarray(image, dtype=np.float64) / 255 for image in (one, other)]
    return float(np.sqrt(np.mean((values[0] - values[1]) ** 2)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_picture_is_the_one_that_was_seen(tmp_path: Path, family: str) -> None:
    with Image.open(SEEN / f"{family}.png") as seen:
        assert distance(small_picture(family, tmp_path), seen) < TOLERANCE


if __name__ == "__main__":
    SEEN.mkdir(exist_ok=True)
    for each in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            small_picture(each, Path(folder)).save(SEEN / f"{each}.png", optimize=True)
