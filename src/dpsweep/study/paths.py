"""The paths of all outputs of jobs."""

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dpsweep.base.errors import DpsweepError
from dpsweep.study.cells import BatchSize, Cell, number
from dpsweep.study.clipping import ClippingBound
from dpsweep.study.file import Study

_MADE_FOR = re.compile(r"-[0-9a-f]{10}$")


def trial_file(store: Path, key: str, ending: str = "safetensors") -> Path:
    """Return a file of a trial in a trial store."""
    return store / key[:2] / f"{key}.{ending}"


@dataclass(frozen=True)
class Paths:
    """File names under a study's results folder.

    The names of cells, and of measurements on them, end with ten digits for their settings
    (`dpsweep.study.fingerprints.SettingsHash`): a result of other settings is another file.

    Figures, tables and pages of an unfinished study (``partial``) have a folder of their own, so one can
    watch a running study.
    """

    results: Path
    partial: bool = False

    def check_writable(self) -> None:
        """Refuse a results folder that cannot be made or written.

        Raises:
            DpsweepError: names the folder, or the file in its place.
        """
        existing = self.results
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
            raise DpsweepError(
                f"results: {self.results}: {existing} is no folder that can be written"
            )

    def dataset(self, name: str) -> Path:
        """Return the folder of a prepared dataset."""
        return self.results / "data" / name

    def backbone(self, name: str) -> Path:
        """Return the folder of a prepared backbone."""
        return self.results / "backbones" / name

    def tokenizer(self, backbone: str) -> Path:
        """Return the file with the tokenizer of a backbone that reads text."""
        return self.results / "tokenizers" / f"{backbone}.json"

    def features(self, dataset: str, backbone: str) -> Path:
        """Return the folder of the features that a backbone computes for a dataset."""
        return self.results / "features" / dataset / backbone

    def noise(
        self, study: Study, dataset: str, epsilon: float, epochs: int, batch_size: BatchSize
    ) -> Path:
        """Return the file with the noise calibration of one (dataset, epsilon, epochs, B).

        Args:
            study: the study with the settings.
            dataset: its name.
            epsilon: the target.
            epochs: E.
            batch_size: B, or full.
        """
        name = f"eps{number(epsilon)}_epochs{epochs}_B{number(batch_size)}"
        file = f"{name}-{study.settings_hash.noise(dataset)}.json"
        return self.results.joinpath("noise", dataset, file)

    def cell(self, cell: Cell) -> Path:
        """Return the folder of a cell's outputs, which can include outputs of former settings."""
        return self.results.joinpath("cells", cell.problem, cell.name)

    def cell_trials(self, study: Study, cell: Cell) -> Path:
        """Return the file with the trials of a cell, which all later stages read."""
        return _in_cell(self.results, cell, f"trials-{study.settings_hash.cell(cell)}.parquet")

    def cell_steps(self, study: Study, cell: Cell) -> Path:
        """Return the file with the optimizer steps of a cell's trials."""
        return _in_cell(self.results, cell, f"steps-{study.settings_hash.cell(cell)}.parquet")

    def cell_log(self, study: Study, cell: Cell) -> Path:
        """Return the log of a cell's jobs."""
        name = f"{cell.name}-{study.settings_hash.cell(cell)}.log"
        return self.results.joinpath("logs", "cells", cell.problem, name)

    def cell_timing(self, study: Study, cell: Cell) -> Path:
        """Return the file with the trials of a cell and their time.

        It stays if the cell's outputs are removed, or if its learning rates or seeds change.
        """
        name = f"{cell.name}-{study.settings_hash.trainer(cell.problem)}.json"
        return self.results.joinpath("logs", "cells", cell.problem, name)

    @property
    def trials(self) -> Path:
        """The folder of the content-addressed trial store."""
        return self.results / "trials"

    def trial(self, key: str) -> Path:
        """Return the file of a trial in the store."""
        return trial_file(self.trials, key)

    def gradient_norms(
        self,
        study: Study,
        problem: str,
        epsilon: float,
        epochs: int,
        clipping_bound: ClippingBound,
    ) -> Path:
        """Return the gradient norms of the best (B, learning rate) of one (problem, epsilon, epochs, C).

        Args:
            study: the study with the competing cells.
            problem: its name.
            epsilon: the target.
            epochs: E.
            clipping_bound: C, or the name of a rule.
        """
        name = f"eps{number(epsilon)}_epochs{epochs}_C{number(clipping_bound)}"
        digits = study.settings_hash.gradient_norms(problem, epsilon, epochs, clipping_bound)
        return self.results.joinpath("gradnorms", problem, f"{name}-{digits}.parquet")

    def theory(self, study: Study, cell: Cell) -> Path:
        """Return the file with the overlaps of gradients of a cell's best trials."""
        name = f"{cell.name}-{study.settings_hash.theory(cell)}.parquet"
        return self.results.joinpath("theory", cell.problem, name)

    def problem(self, name: str) -> Path:
        """Return the file with all trials of a problem."""
        return self.results / "problems" / f"{name}.parquet"

    @property
    def drawn(self) -> Path:
        """The folder of figures, tables and the report."""
        return self.results / "partial" if self.partial else self.results

    def figure(self, target: str, suffix: str) -> Path:
        """Return the file of a figure as ``pdf``, ``png``, or of its numbers as ``csv``."""
        return self.drawn / "figures" / f"{target}.{suffix}"

    def table(self, target: str, suffix: str) -> Path:
        """Return the file of a table as ``tex``, ``md`` or ``csv``."""
        return self.drawn / "tables" / f"{target}.{suffix}"

    def audited(self, cell: Cell | str) -> Path:
        """Return the file with the audit of one setting, given as a cell or its name."""
        name = cell if isinstance(cell, str) else cell.name
        return self.results / "audit" / f"{name}.json"

    def audit(self, suffix: str) -> Path:
        """Return the audit of all settings: ``csv``, figure (``pdf``, ``png``) or table (``tex``, ``md``)."""
        return self.results / "audit" / f"audit.{suffix}"

    @property
    def release(self) -> Path:
        """The folder of a model that may be released."""
        return self.results / "release"

    @property
    def ledger(self) -> Path:
        """The ledger of earlier releases, shared by all studies with results in the same parent folder."""
        return self.results.parent / "releases.jsonl"

    @property
    def report(self) -> Path:
        """The report."""
        return self.drawn / "report.html"

    @property
    def explore(self) -> Path:
        """The interactive page with all cells."""
        return self.drawn / "explore.html"


def settings_of(file: Path) -> str:
    """Return the name of a file without suffix and without the digits for its settings.

    >>> settings_of(Path("gradnorms/digits_vit_film/eps8_epochs2_C0.1-0123456789.parquet"))
    'eps8_epochs2_C0.1'
    """
    return _MADE_FOR.sub("", file.stem)


# Cached, because a cell is an input of many outputs of a plan.
@cache
def _in_cell(results: Path, cell: Cell, name: str) -> Path:
    return results.joinpath("cells", cell.problem, cell.name, name)
