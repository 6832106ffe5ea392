"""Loader of measured gradient overlaps of trials, for `dpsweep.theory`. Not private."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dpsweep.analysis.frames import of_todays_trials, read_all
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.theory import ClippedSums

PRIVACY = "not private"
"""The value of the column ``privacy`` in every CSV made from these files."""
NOTE = "Not private: drawn from raw gradients of the training data."
"""The note under every figure made from these files."""

_BATCH = ["seed", "epoch", "draw"]
_SUMS = ["norm", "dot_smaller", "dot_larger", "dot_larger_units"]
_CONSTANT = [
    "examples", "batch_size", "noise_multiplier", "trainable_parameters", "learning_rate",
]  # fmt: skip


@dataclass(frozen=True)
class Overlap:
    """The gradients of one batch, at the start of a trial (epoch 0) or after an epoch.

    Attributes:
        cell: of the trial.
        seed: of the trial.
        epoch: from 0.
        draw: number of the batch, from 1.
        sums: of its gradients.
        examples: number of examples in the batch.
        batch_size: B, the expected batch size of the trial.
        noise_multiplier: sigma of the trial.
        dimension: d.
        learning_rate: of the trial.
    """

    cell: Cell
    seed: int
    epoch: int
    draw: int
    sums: ClippedSums
    examples: int
    batch_size: int
    noise_multiplier: float
    dimension: int
    learning_rate: float

    def scaled(self, noise_multiplier: float) -> float:
        """Scale a noise multiplier to the size of this batch, so that noise per example stays the same."""
        return noise_multiplier * self.examples / self.batch_size

    def setting(self, noise_multiplier: float | None = None) -> tuple[ClippedSums, float, int]:
        """Return the arguments of the rules of `dpsweep.theory`: sums, noise multiplier and dimension.

        Args:
            noise_multiplier: sigma for a batch of size B, by default that of the trial.
        """
        sigma = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        return self.sums, self.scaled(sigma), self.dimension


def load_overlaps(
    study: Study, paths: Paths, cells: Iterable[Cell], missing: list[Path] | None = None
) -> list[Overlap]:
    """Read the overlaps of cells, in their order, then by seed, epoch and draw.

    Args:
        study: the study.
        paths: its files.
        cells: of the study.
        missing: absent files are added to it and left out. If it is None, they are an error.

    Raises:
        FormerResultsError: a file is of other trials than the current ones, and ``missing`` is None.
        MissingResultsError: overlaps have not been measured, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column.
    """
    measured = {(cell.problem, cell.name): (paths.theory(study, cell), [cell]) for cell in cells}
    files = of_todays_trials(study, paths, measured, missing)
    columns = [*_BATCH, *_SUMS, *_CONSTANT]
    frame = read_all(files, columns, ["problem", "cell"], missing, "overlap of gradients")
    groups = frame.groupby(["problem", "cell", *_BATCH], sort=False)
    return [_overlap(rows) for _, rows in groups]


def _overlap(rows: pd.DataFrame) -> Overlap:
    first = rows.iloc[0]
    return Overlap(
        cell=Cell.parse(first["problem"], first["cell"]),
        seed=int(first["seed"]),
        epoch=int(first["epoch"]),
        draw=int(first["draw"]),
        sums=ClippedSums(*(rows[name].to_numpy(dtype=float) for name in _SUMS)),
        examples=int(first["examples"]),
        batch_size=int(first["batch_size"]),
        noise_multiplier=float(first["noise_multiplier"]),
        dimension=int(first["trainable_parameters"]),
        learning_rate=float(first["learning_rate"]),
    )
