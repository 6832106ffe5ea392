"""The models of a finished trial, at the start and after every epoch, for later measurements.

The store has the parameters of a cell's first seed at its best learning rate, unless they are large
(`KEPT_PARAMETER_BYTES`). Other trials are trained again: about one of a hundred, which is cheaper than
storing the parameters of all.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa
import torch
from torch import nn

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import atomic_path
from dpsweep.base.parquet import write_rows
from dpsweep.gradients import GradientEngine
from dpsweep.privacy import Sampling
from dpsweep.study import Cell, Study
from dpsweep.study.file import Training
from dpsweep.study.paths import Paths
from dpsweep.training import processes
from dpsweep.training.cell import OpenCell
from dpsweep.training.checkpoint import parameters_after
from dpsweep.training.context import Sampled, TrialContext, load_trainable, sample
from dpsweep.training.job import interruption
from dpsweep.training.randomness import PoissonSampler
from dpsweep.training.specification import TrialSpec
from dpsweep.training.store import Arrays, TrialStore
from dpsweep.training.trial import train_trial

log = logging.getLogger(__name__)


class TrajectoryError(DpsweepError):
    """A trial that cannot be replayed; the message names the remedy."""


def measure_along(
    study: Study,
    paths: Paths,
    cell: Cell,
    rows: Sequence["pd.Series[Any]"],
    output: Path,
    *,
    epochs: Sequence[int],
    measure: Callable[["Trajectory", int], pd.DataFrame],
    columns: Sequence[str],
    metadata: Mapping[bytes, bytes] = MappingProxyType({}),
) -> None:
    """Measure the models of finished trials after some epochs, and write one table.

    After a kill, the next call reuses finished epochs, and trials that were trained again.

    Args:
        study: the study.
        paths: its files.
        cell: the cell of the trials.
        rows: the trials' rows of ``trials.parquet``.
        output: the table, whose name has a hash of the settings.
        epochs: as `Trajectory.go_to` takes them, ascending.
        measure: returns the rows to write for the model after an epoch.
        columns: copied from the rows to the table.
        metadata: of the table.

    Raises:
        CalibrationError, CellError, TrajectoryError: as `Trajectory.open`.
        Interrupted: a signal asked to stop (see `interruption`).
    """
    # Snakemake deletes declared outputs of a killed job; this folder stays.
    folder = output.with_suffix(".unfinished")
    saved, frames = False, list[pd.DataFrame]()
    for row in rows:
        unfinished = folder / row["trial_key"]
        files = {epoch: unfinished / f"epoch{epoch}.parquet" for epoch in epochs}
        there = processes.on_first(partial(_existing, files))
        lacking = {epoch: file for epoch, file in files.items() if epoch not in there}
        if lacking:
            saved = _measure_trial(study, paths, cell, row, lacking, measure, saved)
        if processes.rank() > 0:
            continue  # the first process writes
        given = {name: row[name] for name in columns}
        frames += [pd.read_parquet(file).assign(**given) for file in files.values()]
    if processes.rank() > 0:
        return
    table = pa.Table.from_pandas(pd.concat(frames, ignore_index=True), preserve_index=False)
    write_rows(output, table, metadata)
    shutil.rmtree(folder)
    for row in rows:
        TrialStore(paths.trials).checkpoint_path(row["trial_key"]).unlink(missing_ok=True)


def _existing(files: Mapping[int, Path]) -> set[int]:
    return {epoch for epoch, file in files.items() if file.exists()}


def _measure_trial(
    study: Study,
    paths: Paths,
    cell: Cell,
    row: "pd.Series[Any]",
    files: Mapping[int, Path],
    measure: Callable[["Trajectory", int], pd.DataFrame],
    saved: bool,
) -> bool:
    """Measure one trial after the epochs of some files; return whether this process has saved anything.

    As a separate function, it frees the memory of one trial before the next one is opened.
    """
    trajectory = Trajectory.open(study, paths, cell, row, next(iter(files.values())).parent)
    saved |= trajectory.trained_again
    for epoch, file in files.items():
        if stop := interruption(saved=saved):
            raise stop
        started = time.monotonic()
        trajectory.go_to(epoch)
        measured = measure(trajectory, epoch)
        if processes.rank() == 0:
            with atomic_path(file) as partial:
                measured.to_parquet(partial, index=False)
        saved = True
        log.info("seed %d, epoch %d (%.1f s)", row["seed"], epoch, time.monotonic() - started)
    return saved


@dataclass
class Trajectory:
    """A finished trial, replayed by epoch.

    Attributes:
        context: its data and device.
        model: in eval mode; `go_to` loads its parameters.
        engine: for its gradients, in the precision of the trial even on another device.
        trained_again: whether this process has trained it again, and saved the parameters.
    """

    context: TrialContext
    model: nn.Module
    engine: GradientEngine
    trained_again: bool
    _spec: TrialSpec
    _stored: Arrays

    @classmethod
    def open(
        cls, study: Study, paths: Paths, cell: Cell, row: "pd.Series[Any]", unfinished: Path
    ) -> "Trajectory":
        """Open a trial.

        Args:
            study: the study.
            paths: its files.
            cell: the cell of the trial.
            row: the trial's row of ``trials.parquet``.
            unfinished: a folder that keeps the parameters of a trial that is trained again, because
                on a GPU every training rounds differently.

        Raises:
            CalibrationError: the noise of the trial is wrong.
            CellError: the noise is for data of another size.
            TrajectoryError: the study describes another trial, or this device cannot repeat it.
        """
        opened = OpenCell.open(study, paths, cell)
        context, given = opened.context, (row["learning_rate"], row["seed"])
        spec = _checked(opened.specs.get(given), row, paths.cell_trials(study, cell))
        store, retrained = TrialStore(paths.trials), TrialStore(unfinished)
        stored = store.load_parameters(spec.key) or retrained.load_parameters(spec.key)
        missing = stored is None
        if stored is None:
            stored = _train_again(spec, row, context, store, study.training)
            retrained.save_parameters(spec.key, stored)
        model = context.model(int(row["seed"]))
        engine = context.engine(study.engine(cell.problem), model, row["precision"])
        return cls(context, model, engine, missing, spec, stored)

    def sampled(self, number: int) -> Sampled:
        """Return rows of every unit of the training set, as a step could draw them; equal for a number."""
        spec, context = self._spec, self.context
        sampler = PoissonSampler(
            *(Sampling(spec.train_size, spec.train_size, 1), "measured"),
            secret=b"",
            units=context.train.units,
            rows_per_unit=spec.rows_per_unit or 1,
        )
        return sample(sampler, context.views("measured views"), number)

    def go_to(self, epoch: int) -> None:
        """Load the parameters after an epoch; epoch 0 is before the first step."""
        if epoch == 0:
            self.context.model(self._spec.seed)
            return
        stored = parameters_after(epoch, self._stored)
        load_trainable(
            self.model, {name: torch.from_numpy(value) for name, value in stored.items()}
        )


def _checked(spec: TrialSpec | None, row: "pd.Series[Any]", file: Path) -> TrialSpec:
    """Return the specification of a row's trial; raise an error if the study describes another trial."""
    # The trial may be from another kind of device.
    device = row["device"].partition(":")[0]
    spec = spec and replace(spec, precision=row["precision"], device=device)
    if spec is None or spec.key != row["trial_key"]:
        raise TrajectoryError(
            f"{file}: found trial {row['trial_key']} (learning rate {row['learning_rate']:g}, seed "
            f"{row['seed']}), expected {spec.key if spec else 'another learning rate'}: it was "
            "trained for another study than this one",
            (file,),
        )
    return spec


def _train_again(
    spec: TrialSpec,
    row: "pd.Series[Any]",
    context: TrialContext,
    store: TrialStore,
    training: Training,
) -> Arrays:
    """Return the parameters after every epoch of a finished trial, whose parameters were not stored."""
    if spec.device != context.device.type:
        raise TrajectoryError(
            f"trial {spec.key} was trained on {spec.device}, and this job has only "
            f"{context.device.type}, which draws other noise; its parameters are not stored, so measure "
            f"it on a machine with {spec.device}"
        )
    log.info("training the trial again: its parameters are not stored")
    seconds = 60 * training.checkpoint_minutes
    trial, parameters = train_trial(spec, context, store.checkpoint_path(spec.key), seconds)
    found, expected = trial.record["macro_accuracy"], row["macro_accuracy"]
    # Only on a CPU are repeated trainings equal.
    if found != expected:
        log.warning("macro accuracy %.4f, the first time it was %.4f", found, expected)
    return parameters
