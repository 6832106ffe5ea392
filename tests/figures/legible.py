"""Which texts of a drawing cannot be read: the renderer says where each one lies."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

# Texts of one line that are nearer than this read as one: a space is 0.32 of the size of the type.
_NEAREST = 0.4
# Pixels that boxes may share: letters end before their boxes do.
_SHARED = 1.0


@dataclass(frozen=True)
class _Drawn:
    """A text that is drawn: what it says, its box in pixels, and the size of its type in pixels."""

    text: str
    box: Bbox
    size: float


def illegible(drawing: Figure) -> list[str]:
    """Return what is wrong with the texts of a drawing: cut at an edge, or touching another text."""
    drawn = _texts(drawing)
    width, height = drawing.bbox.size
    cut = [
        f"{each.text!r} is cut"
        for each in drawn
        if each.box.x0 < -_SHARED or each.box.y0 < -_SHARED
        or each.box.x1 > width + _SHARED or each.box.y1 > height + _SHARED
    ]  # fmt: skip
    return cut + [
        f"{one.text!r} touches {other.text!r}"
        for one, other in itertools.combinations(drawn, 2)
        if _touch(one, other)
    ]


def _touch(one: _Drawn, other: _Drawn) -> bool:
    across = min(one.box.x1, other.box.x1) - max(one.box.x0, other.box.x0)
    down = min(one.box.y1, other.box.y1) - max(one.box.y0, other.box.y0)
    nearest = _NEAREST * min(one.size, other.size)
    on_a_line = down > 0.5 * min(one.box.height, other.box.height)
    return across > -nearest if on_a_line else across > _SHARED and down > _SHARED


def _texts(drawing: Figure) -> list[_Drawn]:
    """Every text that is drawn. Ticks outside of an axis exist, and are not."""
    with _recorded() as seen:
        drawing.draw_without_rendering()
    return [
        _Drawn(text.get_text(), text.get_window_extent(), text.get_fontsize() * drawing.dpi / 72)
        for text in seen
        if text.get_text().strip()
    ]


@contextmanager
def _recorded() -> Iterator[dict[Text, None]]:
    """The texts that are drawn while the context is open."""
    seen: dict[Text, None] = {}
    draw = Text.draw

    def record(text: Text, *args: Any, **kwargs: Any) -> Any:
        if text.get_visible():
            seen[text] = None
        return draw(text, *args, **kwargs)

    with mock.patch.object(Text, "draw", record):
        yield seen
