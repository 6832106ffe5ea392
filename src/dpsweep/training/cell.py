"""Training of a cell: tune the learning rate, repeat the best one, and write the cell's outputs.

Finished trials come from the store, so after a longer grid, a lost output or a kill only missing
trials are trained.
"""

import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import pandas as pd
import pyarrow as pa
import torch

from dpsweep import TRAINER_VERSION
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_rows
from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy.noise import Calibration, read_calibration
from dpsweep.study import Cell, Paths, Study
from dpsweep.study.cells import Problem
from dpsweep.study.sweeps import KEPT_PARAMETER_BYTES, bracket_maximum
from dpsweep.training import processes
from dpsweep.training.context import TrialContext
from dpsweep.training.features import open_inputs
from dpsweep.training.store import StoredTrial, TrialStore
from dpsweep.training.trial import TrialSpec, specify, train_trial

log = logging.getLogger(__name__)


class CellError(DpsweepError):
    """A cell that cannot be trained; the message names the remedy."""


def cell_noise(study: Study, paths: Paths, cell: Cell) -> Calibration:
    """Read the noise of a cell, and compare it with the study's (epsilon, delta, N, B, T).

    Raises:
        CalibrationError: the file is wrong, or for another setting.
    """
    dataset = study.problems[cell.problem].dataset
    return read_calibration(
        paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size),
        epsilon=cell.epsilon,
        delta=study.privacy.delta,
        sampling=study.sampling(dataset, cell.epochs, cell.batch_size),
    )


def check_size(noise: Calibration, context: TrialContext, data: PreparedDataset) -> None:
    """Check that noise was calibrated for the number of training examples.

    Raises:
        CellError: the prepared data has another size.
    """
    found = context.train.protected
    if found != noise.train_size:
        what = "examples" if context.train.units is None else "units"
        raise CellError(
            f"{data.folder}: found {found} {what} to train on, expected {noise.train_size}, which "
            "the noise is calibrated for",
            (data.folder / "metadata.json",),
        )


@dataclass(frozen=True)
class OpenCell:
    """A cell with its inputs, read and checked, and the specifications of its possible trials.

    Attributes:
        cell: the cell.
        problem: its dataset, backbone, method and optimizer.
        noise: of all its trials.
        context: their data, backbone and device.
        specs: of its trials, by learning rate, in the order of the grid, and seed.
        seconds: the time that reading took.
    """

    cell: Cell
    problem: Problem
    noise: Calibration
    context: TrialContext
    specs: dict[tuple[float, int], TrialSpec]
    seconds: float

    @classmethod
    def open(cls, study: Study, paths: Paths, cell: Cell) -> "OpenCell":
        """Read and check the inputs of a cell.

        Args:
            study: the study.
            paths: its files; the dataset, the backbone and the calibration must exist.
            cell: the cell.

        Raises:
            CalibrationError: the calibration is wrong, or for another setting.
            CellError: the prepared data has another size.
            DatasetError: the dataset is not prepared.
        """
        started = time.monotonic()
        problem = study.problems[cell.problem]
        data = open_inputs(study, paths, cell.problem)
        backbone = PreparedBackbone.open(paths.backbone(problem.backbone))
        noise = cell_noise(study, paths, cell)
        context = TrialContext(data, backbone, study.methods[problem.method], study.holdout_share)
        check_size(noise, context, data)
        grid = study.sweeps[study.sweep_of(cell)]
        specs = {
            (rate, seed): specify(study, cell, noise, data, backbone, context.device, rate, seed)
            for rate in grid.learning_rates
            for seed in range(1, grid.seeds + 1)
        }
        return cls(cell, problem, noise, context, specs, time.monotonic() - started)


@dataclass
class _Run:
    """The trials of one cell, and the seconds that each stage took."""

    opened: OpenCell
    store: TrialStore
    checkpoint_seconds: float
    progress: Callable[[dict[str, Any]], None]
    seconds: defaultdict[str, float]
    trials: dict[tuple[float, int], StoredTrial] = field(default_factory=dict)
    trained: int = 0

    def ensure(self, learning_rate: float, seed: int, *, keep_parameters: bool) -> StoredTrial:
        """Return a trial from the store; if it is missing, train and store it.

        With ``keep_parameters``, parameters of a new trial are stored too, if they are small enough.
        """
        spec = self.opened.specs[learning_rate, seed]
        if stored := self.store.load(spec.key):
            self.trials[learning_rate, seed] = stored
            return stored
        if stop := processes.interruption(saved=self.trained > 0):
            raise stop
        started = time.monotonic()
        checkpoint = self.store.checkpoint_path(spec.key)
        trial, parameters = train_trial(
            spec, self.opened.context, checkpoint, self.checkpoint_seconds
        )
        self.seconds["training"] += trial.record["wall_seconds"]
        self.seconds["evaluation"] += trial.record["evaluation_seconds"]
        saving = time.monotonic()
        size = sum(array.nbytes for array in parameters.values())
        if keep_parameters and size <= KEPT_PARAMETER_BYTES:
            self.store.save_parameters(spec.key, parameters)
        self.store.save(spec.key, trial)
        self.seconds["store"] += time.monotonic() - saving
        self.trained += 1
        log.info(
            "learning rate %g, seed %d: macro accuracy %.4f (%.1f s)%s",
            learning_rate,
            seed,
            trial.record["macro_accuracy"],
            time.monotonic() - started,
            " DIVERGED" if trial.record["diverged"] else "",
        )
        self.trials[learning_rate, seed] = trial
        if processes.rank() == 0:
            self.progress(self.timing())
        return trial

    def timing(self) -> dict[str, Any]:
        """Return the seconds of this job by stage, and those of all trials of the cell."""
        return {
            "trials": len(self.trials),
            "keys": [[rate, seed, self.opened.specs[rate, seed].key] for rate, seed in self.trials],
            "trained": self.trained,
            "gpus": processes.count(),
            "trial_seconds": round(
                sum(
                    each.record["wall_seconds"] + each.record["evaluation_seconds"]
                    for each in self.trials.values()
                ),
                3,
            ),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }


def run_cell(
    study: Study,
    paths: Paths,
    cell: Cell,
    started: float | None = None,
    progress: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Train the missing trials of a cell and write its two outputs.

    Args:
        study: the study.
        paths: its files, with the trial store.
        cell: the cell.
        started: `time.monotonic` at the start of the job, for the timing breakdown.
        progress: called with the timing breakdown after every trial that is trained, and at the end.

    Raises:
        CalibrationError, CellError, DatasetError: see `OpenCell.open`.
        Interrupted: a signal asked to stop (see `processes.interruption`).
    """
    opened = OpenCell.open(study, paths, cell)
    now, training = time.monotonic(), study.training
    started = now - opened.seconds if started is None else started
    torch.set_num_threads(training.threads)
    run = _Run(
        opened,
        TrialStore(paths.trials),
        60 * training.checkpoint_minutes,
        progress,
        defaultdict(float, {"start": now - opened.seconds - started, "load": opened.seconds}),
    )
    log.info("%s/%s on %s", cell.problem, cell.name, _place(opened.context.device))
    best = _train(run, training.selection)
    if processes.rank() > 0:
        return
    _write_outputs(study, paths, run, best)
    run.seconds["total"] = time.monotonic() - started
    progress(run.timing())
    record = next(iter(run.trials.values())).record
    log.info(
        "%s parameters train, %s of them in the head",
        f"{record['trainable_parameters']:,}",
        f"{record['head_parameters']:,}",
    )
    log.info(
        "best learning rate %g; %d of %d trials trained now", best, run.trained, len(run.trials)
    )


def _place(device: torch.device) -> str:
    """Return the device of a job and its Slurm job, for the log."""
    gpu = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS")
    job = os.environ.get("SLURM_JOB_ID")
    return f"{device.type} (Slurm job {job}, GPU {gpu})" if job else device.type


def _train(run: _Run, selection: str) -> float:
    """Train the trials of a kind of selection; return the best learning rate.

    The best rate has the highest selection accuracy of the first seed; the smallest rate wins a tie.
    """
    specs = run.opened.specs
    rates = list(dict.fromkeys(rate for rate, _ in specs))
    seeds = max(seed for _, seed in specs)
    scores: dict[float, float] = {}

    def tune(position: int) -> float:
        rate = rates[position]
        trial = run.ensure(rate, 1, keep_parameters=True)
        rivals = {_best(scores), rate} if scores else {rate}
        scores[rate] = float(trial.record["selection_accuracy"])
        # Parameters are large: keep only those of the best rate so far.
        for loser in rivals - {_best(scores)}:
            run.store.drop_parameters(specs[loser, 1].key)
        return scores[rate]

    if selection == "bracket":
        bracket_maximum(len(rates), tune)
    else:
        for position in range(len(rates)):
            tune(position)
    best = _best(scores)
    for seed in range(2, seeds + 1):
        for rate in rates if selection == "exhaustive" else [best]:
            run.ensure(rate, seed, keep_parameters=False)
    return best


def _best(scores: dict[float, float]) -> float:
    return max(sorted(scores), key=scores.__getitem__)


def _write_outputs(study: Study, paths: Paths, run: _Run, best: float) -> None:
    cell = run.opened.cell
    found = [(run.opened.specs[key], run.trials[key]) for key in sorted(run.trials)]
    rows = [
        _row(run.opened, spec, trial.record) | {"best": spec.learning_rate == best}
        for spec, trial in found
    ]
    write_rows(paths.cell_trials(study, cell), trial_table(rows))
    steps = pd.concat([_step_rows(trial, spec) for spec, trial in found])
    write_rows(paths.cell_steps(study, cell), pa.Table.from_pandas(steps, preserve_index=False))


# Columns that are fields of the problem, and of the specification.
_OF_PROBLEM = ("dataset", "backbone", "method", "optimizer")
_SPECIFIED = (
    *("epsilon", "delta", "epochs", "batch_size", "train_size", "steps", "learning_rate", "seed"),
    *("noise_multiplier", "precision"),
)


def _row(opened: OpenCell, spec: TrialSpec, record: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a trial (see `TRIALS`), without the column ``best``."""
    rate = spec.sampling.rate
    # Older stored trials have no averages, so the measured accuracy is that of the last step.
    record = {f"last_{name}": record[name] for name in ("accuracy", "macro_accuracy")} | record
    known = {
        **{name: getattr(opened.problem, name) for name in _OF_PROBLEM},
        **{name: getattr(spec, name) for name in _SPECIFIED},
        "full_batch": opened.cell.batch_size == "full",
        "sampling_rate": rate,
        "passes": spec.steps * rate,
        "clipping": spec.clipping.kind,
        "clipping_bound": getattr(spec.clipping, "bound", float("nan")),
        "certified_epsilon": opened.noise.certified_epsilon,
        "data_checksum": spec.data,
        "classes_checksum": spec.classes,
        "backbone_checksum": spec.backbone,
        "trainer_version": TRAINER_VERSION,
        "trainer_sources": record.get("trainer_sources", ""),
        "physical_batch": record.get("physical_batch", spec.physical_batch),
        "versions": json.dumps(record["versions"], sort_keys=True),
        "trial_key": spec.key,
    }
    # The other columns were measured during training.
    return {name: record[name] for name in TRIALS.names if name in record} | known


def _step_rows(trial: StoredTrial, spec: TrialSpec) -> pd.DataFrame:
    count = len(trial.steps["sampled_examples"])
    return pd.DataFrame(
        {
            "trial_key": spec.key,
            "learning_rate": spec.learning_rate,
            "seed": spec.seed,
            "step": range(1, count + 1),
            **{
                name: trial.steps[name]
                for name in ("sampled_examples", "mean_gradient_norm", "clipped_fraction")
            },
        }
    )


COLUMNS = files("dpsweep.training").joinpath("trial_columns.md").read_text(encoding="utf-8")
"""The columns of ``trials.parquet`` as a table in Markdown; the schema is parsed from it."""

_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "list of float": pa.list_(pa.float64()),
}


def _column(row: str) -> pa.Field:
    name, kind, meaning = (cell.strip() for cell in row.strip("|").split("|"))
    return pa.field(name.strip("`"), _TYPES[kind], metadata={"meaning": meaning})


TRIALS = pa.schema([_column(row) for row in COLUMNS.splitlines()[2:]])
"""The columns of ``trials.parquet``, which has one row per trial."""
_OF_UNITS = {"unit_accuracy"}
"""Columns that only trials on units of several rows have."""


def trial_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table with the columns of `TRIALS`.

    Raises:
        ValueError: a row has other columns.
        pyarrow.ArrowInvalid: a value does not have the type of its column.
    """
    for row in rows:
        if different := (row.keys() ^ set(TRIALS.names)) - (_OF_UNITS - row.keys()):
            raise ValueError(f"a trial's record lacks or should not have {sorted(different)}")
    absent = _OF_UNITS.difference(*rows)
    schema = pa.schema([each for each in TRIALS if each.name not in absent])
    return pa.Table.from_pylist(list(rows), schema=schema)
