"""Figures look as in the pictures of ``tests/figures/seen``, which a person has reviewed.

After an intended change run ``python -m tests.figures.test_pictures``, review the changed pictures and commit
them.
"""

import itertools
import tempfile
from pathlib import Path
from typing import Literal
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from benchmarks.evidence import pictures
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from tests.figures.conftest import Drawn
from tests.figures.test_drawings import FAMILIES, STUDY, write_results

from dpsweep import figures
from dpsweep.figures import style

SEEN = Path(__file__).parent / "seen"
# Root mean square of the grey values, 0 to 255. It is 0 with the pinned libraries, 3 to 5 with a line that is
# a third thinner, 10 with another label, and at least 27 with letters that are a point larger.
TOLERANCE = 2.0


def save_picture(drawing: Figure, picture: Path) -> None:
    with style.style():
        drawing.savefig(picture, dpi=75)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_picture_is_the_reviewed_one_and_has_room_for_its_texts(
    drawn: Drawn, tmp_path: Path, family: str
) -> None:
    picture = tmp_path / f"{family}.png"
    save_picture(drawn(family), picture)
    assert compare_images(str(SEEN / picture.name), str(picture), TOLERANCE) is None
    require_room_for_texts(drawn(family))


def test_the_picture_of_the_first_steps_and_its_caption_are_up_to_date(tmp_path: Path) -> None:
    pictures.draw(tmp_path / "drawn.png")
    drawn = str(tmp_path / "drawn.png")
    assert compare_images(str(pictures.PICTURE), drawn, TOLERANCE) is None
    document = pictures.DOCUMENT.read_text(encoding="utf-8")
    assert document.count(pictures.START) == 1
    assert pictures.filled(document) == document, "python -m benchmarks.evidence.pictures"


LONG = "A dataset with a rather long name, ViT-Base/16, ε = 8, C = 1"
BOUNDS = [0.0001, 0.0032, 0.1, 3.1623, 100.0]


@pytest.mark.parametrize("scale", ["shared", "panel"])
@pytest.mark.parametrize(
    ("titles", "columns", "sizes"),
    [
        ([LONG], [1], [64]),
        ([LONG, f"{LONG}, B", f"{LONG}, A"], [3, 3, 3], [64, 256]),
        (list("ABCD"), [1, 1, 1, 1], [64, 256]),
        (list("ABCDEFGHI"), [5, 2, 1, 3, 5, 5, 1, 4, 5], [64]),
    ],
    ids=["one square", "long titles", "one column", "columns"],
)
def test_heatmaps_of_any_shape_have_equal_squares_and_room_for_their_texts(
    titles: list[str], columns: list[int], sizes: list[int], scale: Literal["shared", "panel"]
) -> None:
    rows = [
        {"panel": panel, "title": title, "clipping_bound": bound, "batch_size": size}
        for panel, (title, of_panel) in enumerate(zip(titles, columns, strict=True))
        for bound, size in itertools.product(BOUNDS[:of_panel], sizes)
    ]
    frame = pd.DataFrame(rows).assign(as_good=True, learning_rate=0.01)
    frame["macro_accuracy"] = np.linspace(0.1, 0.9, len(frame))
    with style.style():
        drawing = figures.Heatmap.draw(frame, colour_scale=scale)
        require_room_for_texts(drawing)
    panels = [axes for axes in drawing.axes if axes.get_title()]
    shown = [" ".join(axes.get_title().split("\n")) for axes in panels]
    assert shown == titles
    assert not any("ε\n" in axes.get_title() for axes in panels)
    boxes = [axes.get_window_extent() for axes in panels]
    of_squares = [box.width / count for box, count in zip(boxes, columns, strict=True)]
    assert of_squares == pytest.approx([of_squares[0]] * len(panels), rel=0.02)


def require_room_for_texts(drawing: Figure) -> None:
    """Fail if a text is cut or covers another."""
    seen = dict[Text, None]()
    draw = Text.draw
    # Tick labels outside of an axis exist, but are not drawn.
    with mock.patch.object(
        Text, "draw", lambda text, *to: seen.setdefault(text) or draw(text, *to)
    ):
        drawing.draw_without_rendering()
    shown = [each for each in seen if each.get_visible() and each.get_text().strip()]
    boxes = {each: each.get_window_extent() for each in shown}
    width, height = drawing.bbox.size + 1
    for text, box in boxes.items():
        assert min(box.x0, box.y0) > -1 and box.x1 < width and box.y1 < height, text
    for (one, box), (other, covered) in itertools.combinations(boxes.items(), 2):
        shared = Bbox.intersection(box, covered)
        assert shared is None or min(shared.width, shared.height) < 1, (one, other)


if __name__ == "__main__":
    SEEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, style.style():
        made = write_results(Path(scratch))
        for name, figure in STUDY.figures.items():
            save_picture(figure.plot(figure.compute(STUDY, made)), SEEN / f"{name}.png")
