"""Measurements of a finished trial's per-example gradients, at the start and after every epoch.

Their norms over the training set, and overlaps of the gradients of a few batches. The paper's theory of
clipping needs overlaps (`dpsweep.theory`). They come from raw gradients of training data, so they are **not
private** for any epsilon of the trial.

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

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import atomic_path, read_rows, write_rows
from dpsweep.data.examples import usual_classes
from dpsweep.gradients import GradientEngine
from dpsweep.privacy import Sampling
from dpsweep.study import Cell, Paths, Study
from dpsweep.study.cells import number
from dpsweep.study.choice import choose
from dpsweep.study.clipping import ClippingBound
from dpsweep.study.file import Training
from dpsweep.theory import ClippedSums, Rows
from dpsweep.training import processes
from dpsweep.training.cell import OpenCell
from dpsweep.training.context import Sampled, TrialContext, load_trainable, sample
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.processes import interruption
from dpsweep.training.randomness import PoissonSampler, numpy_stream
from dpsweep.training.store import Arrays, TrialStore, parameters_after
from dpsweep.training.trial import TrialSpec, train_trial

log = logging.getLogger(__name__)


# -- the models of a trial ---------------------------------------------------------------------


class TrajectoryError(DpsweepError):
    """A trial that cannot be replayed, or a cell that the study does not have."""


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


# -- measurements ------------------------------------------------------------------------------


def best_cell(
    study: Study,
    paths: Paths,
    problem: str,
    epsilon: float,
    epochs: int,
    clipping_bound: ClippingBound,
) -> tuple[Cell, "pd.Series[Any]"]:
    """Choose the batch size of an (epsilon, epochs, C) as in every figure (`dpsweep.study.choice`).

    Args:
        study: the study.
        paths: its files.
        problem: the name of one of its problems.
        epsilon: the target; infinite without privacy.
        epochs: E.
        clipping_bound: C, or the name of a rule without a bound.

    Returns:
        The cell, and the row of its first seed at its best learning rate.

    Raises:
        UnreadableResultsError: a file of trials cannot be read.
        TrajectoryError: the study has no such cell.
    """
    competing = study.competing_cells(problem, epsilon, epochs, clipping_bound)
    cells = {cell.name: cell for cell in competing}
    if not cells:
        raise TrajectoryError(
            f"no cell of {problem} has epsilon {number(epsilon)}, {epochs} epochs and clipping bound "
            f"{number(clipping_bound)}"
        )
    trials = pd.concat(
        [
            read_rows(paths.cell_trials(study, cell)).to_pandas().assign(problem=problem, cell=name)
            for name, cell in cells.items()
        ],
        ignore_index=True,
    )
    chosen = choose(trials, by=["epochs"]).iloc[0]
    row = trials[trials["trial_key"] == chosen["trial_key"]].iloc[0]
    return cells[chosen["cell"]], row


def measure_gradient_norms(
    study: Study,
    paths: Paths,
    problem: str,
    epsilon: float,
    epochs: int,
    clipping_bound: ClippingBound,
) -> None:
    """Write the gradient norms of the best (B, learning rate), first seed, in eval mode.

    Rows: one per (epoch, training example), in the order of the training set; see docs/files.md. With units
    of several rows, an example is a unit: its norm is that of its averaged gradient.
    Arguments are those of `best_cell`.

    Raises:
        CalibrationError: the noise of the trial is wrong.
        CellError: the noise is for data of another size.
        UnreadableResultsError: a file of trials cannot be read.
        Interrupted: a signal asked to stop (see `interruption`).
        TrajectoryError: the study has no such cell or describes another trial, or this device cannot repeat
            it.
    """
    torch.set_num_threads(study.training.threads)
    cell, row = best_cell(study, paths, problem, epsilon, epochs, clipping_bound)
    log.info("%s: best cell %s, learning rate %g", problem, cell.name, row["learning_rate"])

    def measure(trajectory: Trajectory, epoch: int) -> pd.DataFrame:
        engine, context = trajectory.engine, trajectory.context
        sampled = trajectory.sampled(epoch)
        if sampled.units is not None:
            of = "images" if context.train.units is None else "units"
            most = sampled.rows_per_unit
            log.info("norms of %s: of the mean gradient of at most %d rows of each", of, most)
        physical = context.physical_batch(
            *(study.physical_batch(problem), engine, int(row["batch_size"])), sampled.rows_per_unit
        )
        norms, head_norms = training_set_norms(engine, context, physical, sampled)
        return pd.DataFrame(
            {
                "epoch": epoch,
                "label": labels_of_units(context, sampled),
                "norm": norms,
                "head_norm": head_norms,
            }
        )

    measure_along(
        *(study, paths, cell, [row]),
        paths.gradient_norms(study, problem, epsilon, epochs, clipping_bound),
        epochs=range(1, epochs + 1),
        measure=measure,
        columns=("batch_size", "learning_rate", "seed", "trial_key"),
    )


def training_set_norms(
    engine: GradientEngine,
    context: TrialContext,
    physical: PhysicalBatch,
    sampled: Sampled | None = None,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the gradient norm of every training example, over all trainable parameters and over the head.

    Args:
        engine: computes the gradients.
        context: has the training set.
        physical: the number of rows at once.
        sampled: rows of every unit, whose mean gradient is measured; None: each row is an example.

    Returns:
        Two float arrays of shape (N,).
    """
    everything = sampled or Sampled(np.arange(len(context.train.labels)))
    if everything.rows_per_unit > 1:
        units_at_once = max(1, physical.size // everything.rows_per_unit)
        physical = PhysicalBatch(units_at_once, context.drop_step)

    def some(units: Tensor) -> Tensor:
        return torch.stack(
            engine.norms(*context.part(everything, everything.places(units.numpy())))
        )

    units = processes.rows_of_share(len(everything.starts) - 1)
    part = torch.cat(
        [torch.empty(2, 0), *(each.cpu() for each in physical.parts(units, some))], dim=1
    )
    norms = processes.joined(part, dim=1).numpy()
    return norms[0], norms[1]


def labels_of_units(context: TrialContext, sampled: Sampled) -> np.ndarray[Any, Any]:
    """Return the class that most rows of each unit have, shape (N,); the first one of equally many."""
    labels = context.train.labels.cpu().numpy()[sampled.rows]
    sizes = np.diff(sampled.starts)
    if sampled.rows_per_unit == 1:
        return labels
    return usual_classes(np.repeat(np.arange(len(sizes)), sizes), labels)


NOT_PRIVATE = "not private: computed from raw gradients of the training data"
"""A note in the metadata of the files, and in the column ``privacy`` of figures' numbers."""

# Gradients of a draw up to this size are kept for their second use; larger ones are computed twice.
_KEPT_BYTES = 2**28
# At most so many numbers, and so many gradients, are computed at once: with larger blocks, the
# activations of 224 x 224 images alone take gigabytes.
_AT_ONCE = 2**23
_BLOCK = 16


def best_trials(study: Study, paths: Paths, cell: Cell, seeds: int) -> list["pd.Series[Any]"]:
    """Return the rows of a cell's first seeds at its best learning rate, from its file of trials.

    Args:
        study: the study.
        paths: its files.
        cell: a cell of the study.
        seeds: their largest number.

    Raises:
        UnreadableResultsError: the file cannot be read.
    """
    trials = read_rows(paths.cell_trials(study, cell)).to_pandas()
    first = trials[trials["best"]].sort_values("seed").head(seeds)
    return [row for _, row in first.iterrows()]


def measure_overlap(study: Study, paths: Paths, cell: Cell) -> None:
    """Write the overlaps of gradients, in eval mode, for batches of a cell's best trials.

    With units of several rows, a gradient is the mean over the rows of a unit.

    Rows: one per (seed, epoch, draw, example of the draw with a gradient that is not zero), ascending in
    the norm; see docs/files.md. Batches have the trial's expected size, or ``theory.largest_batch`` if
    that is smaller, and are drawn without replacement. They are the same after every epoch, and for
    all trials with the same number of examples.

    Raises:
        CalibrationError: the noise of the trial is wrong.
        CellError: the noise is for data of another size.
        UnreadableResultsError: the file of trials cannot be read.
        Interrupted: a signal asked to stop (see `interruption`).
        TrajectoryError: the study describes another trial, or this device cannot repeat it.
    """
    torch.set_num_threads(study.training.threads)
    size = min(study.batch_size(cell), study.theory.largest_batch)

    def measure(trajectory: Trajectory, epoch: int) -> pd.DataFrame:
        examples = trajectory.context.train.protected
        batches = draw_batches(examples, size, study.theory.draws)
        draws = [_overlap(trajectory, each).assign(draw=draw) for draw, each in batches.items()]
        return pd.concat(draws).assign(epoch=epoch)

    measure_along(
        *(study, paths, cell, best_trials(study, paths, cell, study.theory.seeds)),
        paths.theory(study, cell),
        epochs=range(cell.epochs + 1),
        measure=measure,
        columns=(
            *("batch_size", "noise_multiplier", "trainable_parameters"),
            *("learning_rate", "seed", "trial_key"),
        ),
        metadata={b"privacy": NOT_PRIVATE.encode()},
    )


def draw_batches(examples: int, size: int, draws: int) -> dict[int, npt.NDArray[np.int64]]:
    """Draw batches without replacement, by number from 1; a batch of all examples is drawn only once."""
    if size >= examples:
        return {1: np.arange(examples)}
    return {
        draw: np.sort(numpy_stream("theory", draw).choice(examples, size, replace=False))
        for draw in range(1, draws + 1)
    }


def _overlap(trajectory: Trajectory, batch: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Return the overlaps of a batch's gradients; those that are not finite count as zero, as in training."""
    dimension = sum(each.numel() for each in trajectory.engine.parameters.values())
    at_once = min(_BLOCK, max(1, _AT_ONCE // dimension))
    rows, nonfinite = _rows(trajectory, batch, dimension, at_once)
    sums = ClippedSums.from_rows(rows, len(batch), at_once)
    return pd.DataFrame(
        {
            "norm": sums.norms,
            "dot_smaller": sums.smaller,
            "dot_larger": sums.larger,
            "dot_larger_units": sums.larger_units,
        }
    ).assign(examples=len(batch), nonfinite_examples=len(nonfinite))


def _rows(
    trajectory: Trajectory, batch: npt.NDArray[np.int64], dimension: int, at_once: int
) -> tuple[Rows, set[int]]:
    """Return a function for the gradients of a batch: kept if they are small, else computed at every call.

    Returns:
        The function, and a set to which it adds the examples with a gradient that is not finite.
    """
    context, nonfinite, sampled = trajectory.context, set[int](), trajectory.sampled(0)

    def compute(chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        examples = batch[chosen]
        inputs, labels, _, *units = context.part(sampled, sampled.places(examples))
        gradients, wrong = trajectory.engine.gradients(inputs, labels, *units)
        nonfinite.update(examples[wrong.cpu().numpy()].tolist())
        found: npt.NDArray[np.float32] = gradients.cpu().numpy()
        return found

    if 4 * len(batch) * dimension > _KEPT_BYTES:
        return compute, nonfinite
    kept = np.zeros((len(batch), dimension), dtype=np.float32)
    for first in range(0, len(batch), at_once):
        block = np.arange(first, min(first + at_once, len(batch)))
        kept[block] = compute(block)
    return lambda chosen: kept[chosen], nonfinite
