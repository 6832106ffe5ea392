"""One trial: a model is trained with one learning rate and one seed, and measured on the test set.

The result is a function of the `TrialSpec` (on the CPU: bit for bit). A trial that is killed at any
step continues from its checkpoint to the same result.
"""

import contextlib
import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsweep import TRAINER_VERSION, __version__
from dpsweep.base.files import fingerprint
from dpsweep.data.prepared import PreparedDataset
from dpsweep.gradients.engines import full_precision, resolve_precision
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import head_parameter_names, trainable_parameters
from dpsweep.privacy import Calibration, Sampling
from dpsweep.study import Cell, Study
from dpsweep.study.clipping import Clipping
from dpsweep.study.fingerprints import TRAINER, sources
from dpsweep.study.optimizers import optimizer_of
from dpsweep.study.section import Precision
from dpsweep.training import processes
from dpsweep.training.context import Examples, Sampled, TrialContext, Views, load_trainable, sample
from dpsweep.training.optimizer import (
    MicroBatch,
    PrivateOptimizer,
    RunningAverage,
    StepStatistics,
    make_optimizer,
    set_learning_rate,
)
from dpsweep.training.physical import MicroBatches, PhysicalBatchSize, padded_size, parts_of_units
from dpsweep.training.randomness import GaussianNoise, Indices, Mask, PoissonSampler, microbatches
from dpsweep.training.store import Arrays, StoredTrial, TrialState, load_checkpoint, save_checkpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrialSpec:
    """Everything that determines a trial, as plain values."""

    data: str
    """checksum of the prepared dataset"""
    classes: str
    """fingerprint of the list of its classes"""
    backbone: str
    """checksum of the prepared backbone"""
    method: dict[str, Any]
    """which parameters train: the identity of a method of the study"""
    optimizer: str | dict[str, Any]
    """the update after the noise: the identity of an optimizer of the study"""
    epsilon: float
    delta: float
    noise_multiplier: float
    train_size: int
    batch_size: int
    """expected batch size B"""
    epochs: int
    steps: int
    clipping: Clipping
    """the rule that bounds the influence of one example"""
    learning_rate: float
    seed: int
    engine: str
    physical_batch: PhysicalBatchSize
    threads: int
    device: str = "cpu"
    """kind of device; each kind draws other noise and rounds differently"""
    precision: Precision = "float32"
    """of the forward and backward pass"""
    holdout: int = 0
    """number of examples for selection; train_size does not count them"""
    compile: bool = False
    rows_per_unit: int = 0
    """the most rows of a unit in a step; train_size counts units. 0: each row is a unit"""

    @property
    def sampling(self) -> Sampling:
        """The sampling of the training set."""
        return Sampling(self.train_size, self.batch_size, self.steps)

    @property
    def key(self) -> str:
        """The trial's name in the store: a hash of the specification and the trainer's version."""
        fields = asdict(self)
        if not self.rows_per_unit:  # the keys of trials from before there were units
            del fields["rows_per_unit"]
        return fingerprint({"trainer": TRAINER_VERSION, **fields})


def specify(
    study: Study,
    cell: Cell,
    noise: Calibration,
    data: PreparedDataset,
    backbone: PreparedBackbone,
    device: torch.device,
    learning_rate: float,
    seed: int,
) -> TrialSpec:
    """Specify one trial of a cell on a device.

    N, B, T and sigma come from the calibration, so training matches the accounting.

    Args:
        study: the study.
        cell: of one of its problems; it need not belong to a sweep.
        noise: of the cell.
        data: the prepared dataset, or its features.
        backbone: the prepared backbone.
        device: where the trial is trained.
        learning_rate: of the trial.
        seed: of the trial.
    """
    problem, training = study.problems[cell.problem], study.training
    engine = study.engine(cell.problem)
    # A linear layer gains no speed from bfloat16.
    precision = "float32" if study.trains_on_vectors(cell.problem) else training.precision
    return TrialSpec(
        data=data.metadata.checksum,
        classes=fingerprint(data.metadata.classes),
        backbone=backbone.metadata.checksum,
        method=study.methods[problem.method].identity(),
        optimizer=study.optimizer(problem.optimizer).identity(),
        epsilon=noise.epsilon,
        delta=noise.delta,
        noise_multiplier=noise.noise_multiplier,
        train_size=noise.train_size,
        holdout=study.holdout_size(problem.dataset),
        batch_size=noise.batch_size,
        epochs=cell.epochs,
        steps=noise.steps,
        clipping=study.clipping(cell),
        learning_rate=learning_rate,
        seed=seed,
        engine=engine,
        physical_batch=study.physical_batch(cell.problem),
        threads=training.threads,
        device=device.type,
        compile=training.compile,
        rows_per_unit=study.datasets[problem.dataset].rows_per_unit
        if data.train_units is not None
        else 0,
        precision=resolve_precision(precision, engine, device),
    )


def epoch_ends(steps: int, epochs: int) -> dict[int, int]:
    """Map the step (from 1) that ends an epoch to the epoch (from 1).

    T steps are E epochs for every sampling rate q, so epoch e ends with step e*T/E, rounded half up.
    """
    return {(2 * epoch * steps + epochs) // (2 * epochs): epoch for epoch in range(1, epochs + 1)}


def train_trial(
    spec: TrialSpec,
    context: TrialContext,
    checkpoint: Path | None,
    checkpoint_seconds: float,
    secret: bytes = b"",
) -> tuple[StoredTrial, Arrays]:
    """Train one trial, or continue it from its checkpoint.

    Args:
        spec: the trial.
        context: its data, backbone and device.
        checkpoint: the file of its state until it is finished; with None, no state is saved.
        checkpoint_seconds: the time between two checkpoints.
        secret: of the sampling and noise streams. Without one, anyone with the specification can
            replay them.

    Returns:
        The trial, and its trainable parameters after every epoch as ``epoch<e>/<name>``. If the optimizer
        has an average, it is included as ``average/<name>``, and the accuracies are those of the average.

    Raises:
        OptimizerError: torch refuses the optimizer.
        Interrupted: a signal asked to stop; the state after the last step is saved.
    """
    model = context.model(spec.seed)
    optimizer = _optimizer(spec, context, model, secret)
    sampler = PoissonSampler(
        *(spec.sampling, spec.key, "sampling"),
        secret=secret,
        units=context.train.units,
        rows_per_unit=spec.rows_per_unit or 1,
    )
    views = context.views(spec.key, "views", secret=secret)
    progress = _take_steps(spec, context, optimizer, sampler, views, checkpoint, checkpoint_seconds)
    steps = _unpack(progress.statistics)
    evaluation_started = time.monotonic()
    measured = last = evaluate(model, context, context.test)
    if progress.average:
        load_trainable(model, progress.average)
        measured = evaluate(model, context, context.test)
    selected = evaluate(model, context, context.holdout) if spec.holdout else measured
    record = {
        "trial_key": spec.key,
        "spec": asdict(spec),
        **measured,
        **{f"last_{name}": last[name] for name in ("accuracy", "macro_accuracy")},
        "selection_accuracy": selected["macro_accuracy"],
        **_summary(steps, trainable_parameters(model), head_parameter_names(model)),
        "wall_seconds": progress.seconds,
        "evaluation_seconds": time.monotonic() - evaluation_started,
        "examples_per_second": float(steps["sampled_examples"].sum() / progress.seconds),
        "physical_batch": progress.physical_batch,
        "trainer_sources": sources(*TRAINER),
        **_environment(context.device),
    }
    epochs = {name: value.numpy() for name, value in progress.epochs.items()}
    average = {
        # Copy, because later trials use the same model.
        f"average/{name}": each.detach().to("cpu", copy=True).numpy()
        for name, each in trainable_parameters(model).items()
        if name in progress.average
    }
    return StoredTrial(record, steps), epochs | average


def _optimizer(
    spec: TrialSpec, context: TrialContext, model: nn.Module, secret: bytes
) -> PrivateOptimizer:
    parameters = trainable_parameters(model)
    return PrivateOptimizer(
        make_optimizer(
            optimizer_of(spec.optimizer),
            parameters.values(),
            spec.learning_rate,
            spec.noise_multiplier / spec.batch_size,
        ),
        context.engine(spec.engine, model, spec.precision, spec.compile),
        spec.clipping,
        noise_multiplier=spec.noise_multiplier,
        expected_batch_size=spec.batch_size,
        noise=GaussianNoise(spec.key, "noise", secret=secret),
    )


def _take_steps(
    spec: TrialSpec,
    context: TrialContext,
    optimizer: PrivateOptimizer,
    sampler: PoissonSampler,
    views: Views | None,
    checkpoint: Path | None,
    checkpoint_seconds: float,
) -> TrialState:
    """Take all steps that a checkpoint does not cover; save the state from time to time."""
    parameters = dict(optimizer.engine.parameters)
    rows_per_unit = sampler.most_rows * context.views_of_row
    physical = context.physical_batch(
        spec.physical_batch, optimizer.engine, spec.batch_size, rows_per_unit
    )
    found = checkpoint and load_checkpoint(checkpoint, parameters, optimizer)
    progress = found or TrialState(0, 0.0, [], {}, physical.size)
    # A checkpoint is loaded on the CPU.
    progress.statistics = [each.to(context.device) for each in progress.statistics]
    progress.average = {name: each.to(context.device) for name, each in progress.average.items()}
    section = optimizer_of(spec.optimizer)
    average = RunningAverage(section, spec.steps, progress.average)
    physical.size = progress.physical_batch
    ends = epoch_ends(spec.steps, spec.epochs)

    def take(sampled: Sampled, size: int) -> StepStatistics:
        return optimizer.step(_microbatches(sampled, spec, context, size))

    started = saved = time.monotonic()
    for step in range(progress.step + 1, spec.steps + 1):
        set_learning_rate(
            optimizer.optimizer, spec.learning_rate * section.factor(step, spec.steps)
        )
        statistics = physical.fit(partial(take, sample(sampler, views, step)))
        average.update(step, parameters)
        progress.physical_batch = physical.size
        progress.statistics.append(_pack(statistics))
        progress.step = step
        if step in ends:
            # On the CPU, to leave the device's memory to the next steps.
            kept = {name: each.detach().to("cpu", copy=True) for name, each in parameters.items()}
            if processes.count() > 1:
                digest = processes.digest(kept.values())
                processes.require_equal(f"after epoch {ends[step]}", {"parameters": digest})
            progress.epochs |= {f"epoch{ends[step]}/{name}": each for name, each in kept.items()}
        now = time.monotonic()
        stop = processes.interruption(saved=checkpoint is not None)
        if (stop or now - saved > checkpoint_seconds) and step < spec.steps:
            progress.seconds += now - started
            started = saved = now
            if checkpoint is not None:
                save_checkpoint(checkpoint, parameters, optimizer, progress)
            if stop:
                raise stop
    if context.device.type == "cuda":
        torch.cuda.synchronize()
    progress.seconds += time.monotonic() - started
    return progress


def _microbatches(
    sampled: Sampled, spec: TrialSpec, context: TrialContext, physical_batch: int
) -> Sequence[MicroBatch]:
    """Return the micro-batches of a sampled batch, which are loaded without waiting for the device.

    Args:
        sampled: its rows.
        spec: of the trial.
        context: of the trial.
        physical_batch: the most rows of a micro-batch.
    """
    if sampled.units is None and spec.compile and context.device.type != "cpu":
        # Code that is compiled for a GPU takes one number of rows.
        def load_padded(part: tuple[Indices, Mask]) -> MicroBatch:
            padded, mask = part
            inputs, labels = context.batch(context.train, torch.from_numpy(padded))
            return inputs, labels, context.on_device(torch.from_numpy(mask))

        size = padded_size(physical_batch, spec.batch_size, spec.train_size)
        return MicroBatches(list(microbatches(sampled.rows, size)), load_padded)
    parts = parts_of_units(sampled.ids, physical_batch)
    return MicroBatches(parts, partial(context.part, sampled))


# -- evaluation ----------------------------------------------------------------------------


@torch.no_grad()
@full_precision()
def evaluate(model: nn.Module, context: TrialContext, examples: Examples) -> dict[str, Any]:
    """Return accuracy (all, macro, per class), mean loss and divergence of a model on some examples.

    Macro accuracy is the mean over classes with examples; a class without examples has a per-class
    accuracy of NaN. Outputs that are not finite count as wrong. With units of several rows, unit accuracy is
    the share of units of which more than half of the rows are right; exactly half counts as wrong.
    """
    labels, correct = examples.labels, list[Tensor]()
    loss = torch.zeros((), dtype=torch.float64, device=context.device)
    rows = processes.rows_of_share(len(labels))

    def outputs(rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs, wanted = context.batch(examples, rows)
        return model(inputs).float(), wanted

    for found, wanted in context.evaluated_at_once.parts(rows, outputs):
        loss += functional.cross_entropy(found, wanted, reduction="sum").double()
        correct.append((found.argmax(dim=1) == wanted) & found.isfinite().all(dim=1))
    processes.add_up(loss)
    hits = processes.joined(torch.cat([*correct, labels.new_empty(0, dtype=torch.bool)]))
    counts = torch.bincount(labels, minlength=context.classes).double()
    right = torch.bincount(labels[hits], minlength=context.classes).double()
    per_class = right / counts
    finite_parameters = all(
        bool(parameter.isfinite().all()) for parameter in trainable_parameters(model).values()
    )
    mean_loss = float(loss) / len(labels)
    of_units = {}
    if examples.units is not None:
        _, numbers, rows_of = np.unique(examples.units, return_inverse=True, return_counts=True)
        right_rows = np.bincount(numbers, weights=hits.cpu().numpy())
        of_units["unit_accuracy"] = float((2 * right_rows > rows_of).mean())
    return {
        "accuracy": float(hits.double().mean()),
        "macro_accuracy": float(per_class[counts > 0].mean()),
        **of_units,
        "per_class_accuracy": per_class.tolist(),
        "loss": mean_loss,
        "diverged": not (finite_parameters and np.isfinite(mean_loss)),
    }


# -- statistics of steps ---------------------------------------------------------------------


def _pack(statistics: StepStatistics) -> Tensor:
    return torch.stack([each.double() for each in statistics])


def _unpack(statistics: list[Tensor]) -> Arrays:
    columns = torch.stack(statistics).cpu().numpy().T
    sampled, norm_sum, clipped, nonfinite = columns
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "sampled_examples": sampled.astype(np.int64),
            # NaN for an empty batch.
            "mean_gradient_norm": norm_sum / sampled,
            "clipped_fraction": clipped / sampled,
            "nonfinite_examples": nonfinite.astype(np.int64),
        }


def _summary(
    steps: Arrays, parameters: dict[str, nn.Parameter], head: frozenset[str]
) -> dict[str, Any]:
    sampled = steps["sampled_examples"]
    filled = sampled > 0
    clipped = (steps["clipped_fraction"] * sampled)[filled].sum()
    return {
        "mean_gradient_norm": float(steps["mean_gradient_norm"][filled].mean())
        if filled.any()
        else float("nan"),
        "clipped_fraction": float(clipped / sampled.sum()) if filled.any() else float("nan"),
        "nonfinite_examples": int(steps["nonfinite_examples"].sum()),
        "trainable_parameters": sum(each.numel() for each in parameters.values()),
        "head_parameters": sum(parameters[name].numel() for name in head),
    }


def _environment(device: torch.device) -> dict[str, Any]:
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    versions = {}
    for library in ("torch", "timm", "opacus", "numpy"):
        with contextlib.suppress(PackageNotFoundError):  # Opacus is one of several engines
            versions[library] = version(library)
    several = f" x {processes.count()}" if processes.count() > 1 else ""
    return {
        "device": f"{device.type}: {name}{several}",
        "versions": {"python": platform.python_version(), "dpsweep": __version__, **versions},
    }
