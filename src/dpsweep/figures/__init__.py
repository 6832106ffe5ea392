"""Figures and tables of a study: functions that describe them, their classes, and their drawing.

`draw` writes a figure of a study. ``Heatmap.draw(frame)`` and its like draw any frame in a notebook; the
docstring of a class has the columns. Drawing code is imported on first use, because every job of a study
imports the descriptions.
"""

from typing import TYPE_CHECKING

from dpsweep.base.lazy import submodules

# Before the classes, which take the drawing code from here.
__getattr__ = submodules(__name__, "style")

from dpsweep.figures import families
from dpsweep.figures.families import *  # noqa: F403
from dpsweep.study.descriptions import figure, table

if TYPE_CHECKING:
    from dpsweep.study import Study
    from dpsweep.study.paths import Paths

__all__ = ["draw", "families", "figure", "table"]


def draw(study: "Study", paths: "Paths", target: str) -> None:
    """Write the files of a figure; see `dpsweep.figures.style.draw`."""
    __getattr__("style").draw(study, paths, target)
