"""A study: a file with sections that agree with each other, and its figures and tables."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Self

from pydantic import model_validator

from dpsweep.study.backbones import BytesTokenizer
from dpsweep.study.checks import disagreements
from dpsweep.study.clipping import clipping_kind
from dpsweep.study.descriptions import Targets, resolve_targets
from dpsweep.study.file import StudyFile
from dpsweep.study.fingerprints import SettingsHash
from dpsweep.study.grid import Block, Grid, Grids
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
    def settings_hash(self) -> SettingsHash:
        """The digits in file names, a hash of the settings of results."""
        return SettingsHash(self)

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures that are drawn, by name."""
        return self.targets.figures

    @property
    def tables(self) -> dict[str, PrintedTable]:
        """The tables that are written, by name."""
        return self.targets.tables

    def reads_bytes(self, dataset: str) -> bool:
        """Return whether the tokens of a dataset of texts are bytes."""
        reader = self.backbones.get(self.datasets[dataset].tokenizer or "")
        return reader is not None and isinstance(reader.reads_with, BytesTokenizer)

    def grid(
        self,
        dataset: str = "main",
        backbone: str = "weak",
        method: str = "main",
        optimizer: str = "adam",
        clipping: str = "flat",
        several: tuple[str, ...] = (),
    ) -> Grid:
        """Return the grid of a problem; arguments and errors as of ``one`` of `dpsweep.study.grid.Grids`."""
        return Grids(self).one(dataset, backbone, method, optimizer, clipping, several)

    @cached_property
    def blocks(self) -> Mapping[tuple[str, str], list[Block]]:
        """The values of each sweep by axis, by the name of its problem and its kind of clipping."""
        found: dict[tuple[str, str], list[Block]] = {}
        for sweep in self.sweeps.values():
            kind = clipping_kind(sweep.clipping_bound)
            block = {axis: frozenset(values) for axis, values in sweep.axes.items()}
            found.setdefault((sweep.problem.name, kind), []).append(block)
        return found

    @cached_property
    def cells_by_epochs(self) -> Counter[tuple[str, int]]:
        """The number of cells of each dataset with each number of epochs."""
        return Counter(
            (self.problems[cell.problem].dataset, cell.epochs) for cell in self.all_cells()
        )
