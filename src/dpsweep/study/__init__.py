"""The study: what is run and drawn, read from YAML, checked, and expanded into cells and targets."""

from typing import TYPE_CHECKING

from dpsweep.base.lazy import submodules
from dpsweep.study.cells import Cell
from dpsweep.study.file import Study
from dpsweep.study.load import StudyError, load_study
from dpsweep.study.paths import Paths

__all__ = ["Cell", "Paths", "Study", "StudyError", "load_study"]

if not TYPE_CHECKING:
    # It imports pandas.
    __getattr__ = submodules(__name__, "choice")
