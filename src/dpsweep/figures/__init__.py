"""Figures and tables of a study: functions that describe them, their classes, and their drawing.

`draw` writes a figure of a study. ``Heatmap.draw(frame)`` and its like draw any frame in a notebook; the
docstring of a class has the columns. Drawing code is imported on first use, because every job of a study
imports the descriptions.
"""

from typing import TYPE_CHECKING, Any

from dpsweep.base.lazy import submodules
from dpsweep.figures import families
from dpsweep.study.descriptions import figure, table

if TYPE_CHECKING:
    from dpsweep.study import Study
    from dpsweep.study.paths import Paths

__all__ = ["draw", "families", "figure", "table"]

_modules = submodules(__name__, "lines", "style")


def draw(study: "Study", paths: "Paths", target: str) -> None:
    """Write the files of a figure; see `dpsweep.figures.style.draw`."""
    _modules("style").draw(study, paths, target)


def __getattr__(name: str) -> Any:
    return getattr(families, name) if name in families.__all__ else _modules(name)
