"""Where every result lies: the one place that makes file names."""

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dpsweep.base.errors import DpsweepError
from dpsweep.config.cells import BatchSize, Cell, number
from dpsweep.config.clipping import ClippingBound
from dpsweep.study.study import Study

_MADE_FOR = re.compile(r"-[0-9a-f]{10}$")


@dataclass(frozen=True)
class Paths:
    """File names under a study's results folder.

    The names of cells, and of what is measured on them, end with what they are made for in a study
    (`dpsweep.study.fingerprints.MadeFor`): a result of other settings is another file.

    What is drawn of an unfinished study (``partial``) lies beside what is drawn of a finished one,
    so that a running study can be watched.
    """

    results: Path
    partial: bool = False

    def check_writable(self) -> None:
        """Refuse a results folder that cannot be made or written.

        Raises:
            DpsweepError: names the folder that is in the way.
        """
        existing = self.results
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            raise DpsweepError(f"results: {self.results}: {existing} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise DpsweepError(f"results: {self.results}: {existing} cannot be written")

    def dataset(self, name: str) -> Path:
        """Folder of a prepared dataset."""
        return self.results / "data" / name

    def backbone(self, name: str) -> Path:
        """Folder of a prepared backbone."""
        return self.results / "backbones" / name

    def tokenizer(self, backbone: str) -> Path:
        """The tokenizer of a backbone that reads text."""
        return self.results / "tokenizers" / f"{backbone}.json"

    def features(self, dataset: str, backbone: str) -> Path:
        """Folder of the features that a backbone has for a dataset."""
        return self.results / "features" / dataset / backbone

    def noise(
        self, study: Study, dataset: str, epsilon: float, epochs: int, batch_size: BatchSize
    ) -> Path:
        """The calibration of one (dataset, epsilon, epochs, B) of a study.

        Args:
            study: whose settings it is for.
            dataset: its name.
            epsilon: the target.
            epochs: E.
            batch_size: B, or full.
        """
        name = f"eps{number(epsilon)}_epochs{epochs}_B{number(batch_size)}"
        file = f"{name}-{study.made_for.noise(dataset)}.json"
        return self.results.joinpath("noise", dataset, file)

    def cell(self, cell: Cell) -> Path:
        """Folder of a cell's outputs, those of former settings included."""
        return self.results.joinpath("cells", cell.problem, cell.name)

    def cell_trials(self, study: Study, cell: Cell) -> Path:
        """The trials of a cell, the file that everything after training reads."""
        return _in_cell(self.results, cell, f"trials-{study.made_for.cell(cell)}.parquet")

    def cell_steps(self, study: Study, cell: Cell) -> Path:
        """The optimizer steps of a cell's trials."""
        return _in_cell(self.results, cell, f"steps-{study.made_for.cell(cell)}.parquet")

    def cell_log(self, study: Study, cell: Cell) -> Path:
        """The log of a cell's jobs."""
        name = f"{cell.name}-{study.made_for.cell(cell)}.log"
        return self.results.joinpath("logs", "cells", cell.problem, name)

    def cell_timing(self, study: Study, cell: Cell) -> Path:
        """The time of a cell so far, for `dpsweep status`; it stays where the cell is removed."""
        return self.cell_log(study, cell).with_suffix(".json")

    @property
    def trials(self) -> Path:
        """Folder of the content-addressed trial store."""
        return self.results / "trials"

    def gradient_norms(
        self,
        study: Study,
        problem: str,
        epsilon: float,
        epochs: int,
        clipping_bound: ClippingBound,
    ) -> Path:
        """Gradient norms of the best (B, learning rate) of one (problem, epsilon, epochs, C).

        Args:
            study: whose cells compete for them.
            problem: its name.
            epsilon: the target.
            epochs: E.
            clipping_bound: C, or the name of a rule without a bound.
        """
        name = f"eps{number(epsilon)}_epochs{epochs}_C{number(clipping_bound)}"
        made_for = study.made_for.gradient_norms(problem, epsilon, epochs, clipping_bound)
        return self.results.joinpath("gradnorms", problem, f"{name}-{made_for}.parquet")

    def theory(self, study: Study, cell: Cell) -> Path:
        """How the gradients of a cell's best trials overlap."""
        name = f"{cell.name}-{study.made_for.theory(cell)}.parquet"
        return self.results.joinpath("theory", cell.problem, name)

    def problem(self, name: str) -> Path:
        """All trials of a problem in one table."""
        return self.results / "problems" / f"{name}.parquet"

    @property
    def drawn(self) -> Path:
        """Folder of what a reader sees: figures, tables and the report."""
        return self.results / "partial" if self.partial else self.results

    def figure(self, target: str, suffix: str) -> Path:
        """A figure as ``pdf``, ``png``, or the ``csv`` behind it."""
        return self.drawn / "figures" / f"{target}.{suffix}"

    def table(self, target: str, suffix: str) -> Path:
        """A table as ``tex``, ``md`` or ``csv``."""
        return self.drawn / "tables" / f"{target}.{suffix}"

    def audited(self, cell: Cell | str) -> Path:
        """Result of the audit of one setting; by cell, or by the name of one."""
        name = cell if isinstance(cell, str) else cell.name
        return self.results / "audit" / f"{name}.json"

    def audit(self, suffix: str) -> Path:
        """The audit of all settings: ``csv``, a figure (``pdf``, ``png``), a table (``tex``, ``md``)."""
        return self.results / "audit" / f"audit.{suffix}"

    @property
    def release(self) -> Path:
        """Folder of a model that may be released."""
        return self.results / "release"

    @property
    def ledger(self) -> Path:
        """Ledgers of earlier releases, of this study and of those whose results lie beside its own."""
        return self.results.parent / "releases.jsonl"

    @property
    def report(self) -> Path:
        """The report."""
        return self.drawn / "report.html"

    @property
    def explore(self) -> Path:
        """The page to explore all cells with."""
        return self.drawn / "explore.html"


def settings_of(file: Path) -> str:
    """The settings in the name of a file, without what it was made for.

    >>> settings_of(Path("gradnorms/digits_vit_film/eps8_epochs2_C0.1-0123456789.parquet"))
    'eps8_epochs2_C0.1'
    """
    return _MADE_FOR.sub("", file.stem)


# A plan asks for these again and again: a cell is in the inputs of many outputs.
@cache
def _in_cell(results: Path, cell: Cell, name: str) -> Path:
    return results.joinpath("cells", cell.problem, cell.name, name)
