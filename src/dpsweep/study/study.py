"""A study: a file with sections that agree with each other, and its figures and tables."""

from functools import cached_property
from typing import Self

from pydantic import model_validator

from dpsweep.config.cells import Cell
from dpsweep.config.checks import disagreements
from dpsweep.config.file import StudyFile
from dpsweep.config.selections import Selection
from dpsweep.study.bound import Bound
from dpsweep.study.fingerprints import MadeFor
from dpsweep.study.resolved_targets import Targets, resolve_targets
from dpsweep.study.targets import Figure, PrintedTable


class Study(StudyFile):
    """The cells, figures and tables of a study file."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        # Resolve targets only if the sections are valid.
        mistakes = list(disagreements(self)) or self.targets.mistakes
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self

    @cached_property
    def targets(self) -> Targets:
        """The resolved figures and tables, and the reasons for those that are not drawn."""
        return resolve_targets(self)

    @cached_property
    def made_for(self) -> MadeFor:
        """The digits in file names that stand for the settings of results."""
        return MadeFor(self)

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures that are drawn, by name."""
        return self.targets.figures

    @property
    def tables(self) -> dict[str, PrintedTable]:
        """The tables that are written, by name."""
        return self.targets.tables

    def cells(self, selection: Selection) -> list[Cell]:
        """Return the cells of a selection, in grid order.

        Raises:
            NotDrawnError: a role is not bound, or there is no such cell.
            MistakeError: a name or a value does not exist.
        """
        if not selection.is_complete or selection.problem.name not in self.problems:
            bound = Bound(self)
            named = bound.bind("selection", selection)
            bound.resolve([named])
            selection = named.selection
        return selection.cells()
