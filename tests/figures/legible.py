"""Search for illegible texts of a drawing, by the boxes in which the renderer draws them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

# Smallest distance of texts on one line, in font sizes; a space has 0.32.
_NEAREST = 0.4
# Pixels that boxes may share, as letters do not fill their boxes.
_SHARED = 1.0


@dataclass(frozen=True)
class _Drawn:
    """A text that is drawn, with its box and its font size in pixels."""

    text: str
    box: Bbox
    size: float


def illegible(drawing: Figure) -> list[str]:
    """Describe the texts of a drawing that are cut at an edge or touch another text."""
    drawn = _texts(drawing)
    boxes = np.array([each.box.extents for each in drawn]).reshape(-1, 4)
    lower, upper = boxes[:, :2], boxes[:, 2:]
    cut = (lower < -_SHARED).any(axis=1) | (upper > drawing.bbox.size + _SHARED).any(axis=1)
    touching = _touching(lower, upper, np.array([each.size for each in drawn]))
    return [f"{drawn[each].text!r} is cut" for each in np.flatnonzero(cut)] + [
        f"{drawn[one].text!r} touches {drawn[other].text!r}"
        for one, other in np.argwhere(np.triu(touching, 1))
    ]


def _touching(lower: Any, upper: Any, sizes: Any) -> Any:
    """Return which texts touch which, from the corners of their boxes, shape (texts, 2), and font sizes."""
    shared = np.minimum(upper[:, None], upper) - np.maximum(lower[:, None], lower)
    across, down = shared[..., 0], shared[..., 1]
    heights = (upper - lower)[:, 1]
    on_a_line = down > 0.5 * np.minimum.outer(heights, heights)
    near = across > -_NEAREST * np.minimum.outer(sizes, sizes)
    return np.where(on_a_line, near, (across > _SHARED) & (down > _SHARED))


def _texts(drawing: Figure) -> list[_Drawn]:
    """Return every text that is drawn; tick labels outside of an axis exist, but are not drawn."""
    with _recorded() as seen:
        drawing.draw_without_rendering()
    return [
        _Drawn(text.get_text(), text.get_window_extent(), text.get_fontsize() * drawing.dpi / 72)
        for text in seen
        if text.get_text().strip()
    ]


@contextmanager
def _recorded() -> Iterator[dict[Text, None]]:
    """Record the texts that are drawn inside the context."""
    seen: dict[Text, None] = {}
    draw = Text.draw

    def record(text: Text, *args: Any, **kwargs: Any) -> Any:
        if text.get_visible():
            seen[text] = None
        return draw(text, *args, **kwargs)

    with mock.patch.object(Text, "draw", record):
        yield seen
