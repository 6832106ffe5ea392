"""One trial: train a model with one learning rate and one seed, and measure it on the test set.

A trial is a function of its `TrialSpec` (on the CPU: bit for bit). It can be killed at any step
and continued from its checkpoint with the same result.
"""

import logging
import pickle
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsweep import TRAINER_VERSION, __version__
from dpsweep.data.prepared import PreparedDataset
from dpsweep.files import atomic_path, fingerprint
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_model, head_parameter_names, trainable_parameters
from dpsweep.models.preprocess import make_preprocess
from dpsweep.study.config import Method
from dpsweep.training.clipping import AutomaticClipping, Clipping, FlatClipping, NoClipping
from dpsweep.training.gradients import GradientEngine, make_engine
from dpsweep.training.interruption import interruption
from dpsweep.training.optimizer import PrivateOptimizer, StepStatistics
from dpsweep.training.precision import Precision, autocast_dtype
from dpsweep.training.sampling import PoissonSampler, microbatches
from dpsweep.training.store import Arrays, StoredTrial
from dpsweep.training.streams import torch_stream

log = logging.getLogger(__name__)

_TEST_BATCH = 512
# One kernel for all parameters: FiLM has many small ones.
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(torch.optim.Adam, fused=True),
    "sgd": partial(torch.optim.SGD, fused=True),
}


@dataclass(frozen=True)
class TrialSpec:
    """Everything that determines a trial, as plain values."""

    data: str
    """checksum of the prepared dataset"""
    backbone: str
    """checksum of the prepared backbone"""
    method: dict[str, Any]
    """which parameters train; a method of the study"""
    optimizer: str
    epsilon: float
    delta: float
    noise_multiplier: float
    train_size: int
    batch_size: int
    """expected batch size B"""
    epochs: int
    steps: int
    clipping: dict[str, Any]
    """``kind`` flat with ``bound``, automatic with ``gamma``, or none"""
    learning_rate: float
    seed: int
    engine: str
    physical_batch: int
    threads: int
    precision: Precision = "float32"
    """of the forward and backward pass"""
    holdout: int = 0
    """training examples that were selected on instead of trained on; train_size leaves them out"""
    compile: bool = False

    @property
    def key(self) -> str:
        """The trial's name in the store: a hash of the specification and the trainer's version."""
        return fingerprint({"trainer": TRAINER_VERSION, **asdict(self)})

    def make_clipping(self) -> Clipping:
        """The rule that bounds the influence of one example."""
        match self.clipping:
            case {"kind": "flat", "bound": bound}:
                return FlatClipping(bound)
            case {"kind": "automatic", "gamma": gamma}:
                return AutomaticClipping(gamma)
            case {"kind": "none"}:
                return NoClipping()
        raise ValueError(f"clipping: found {self.clipping!r}")


def default_device() -> torch.device:
    """The first GPU, or the CPU where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Examples:
    """Some rows of an array of inputs, and their labels."""

    inputs: Tensor
    """(rows of the array, ...); on the device where it fits"""
    labels: Tensor
    """(examples,)"""
    rows: Tensor
    """(examples,), int64: where each stands in ``inputs``"""


class Workbench:
    """What the trials of a cell share: the data on the device, the backbone, the device itself.

    Args:
        data: the prepared dataset.
        backbone: the prepared backbone.
        method: which parameters train.
        holdout: how many training examples to select on instead of training on them.
        device: where to train; by default the first GPU, or the CPU where there is none.

    Raises:
        BackboneError: the backbone does not read such data.
    """

    def __init__(
        self,
        data: PreparedDataset,
        backbone: PreparedBackbone,
        method: Method,
        holdout: int = 0,
        device: torch.device | None = None,
    ) -> None:
        backbone.check_reads(data.metadata)
        self.device = device or default_device()
        self.backbone = backbone
        self.method = method
        self.classes = len(data.metadata.classes)
        self.preprocess = make_preprocess(backbone.metadata.mean, backbone.metadata.std).to(
            self.device
        )
        inputs, labels = self._place(data.train_inputs), torch.from_numpy(data.train_labels.copy())
        rows, held_out = (torch.from_numpy(each) for each in data.hold_out(holdout))
        self.train = self._examples(inputs, labels, rows)
        self.holdout = self._examples(inputs, labels, held_out)
        inputs, labels = self._place(data.test_inputs), torch.from_numpy(data.test_labels.copy())
        self.test = self._examples(inputs, labels, torch.arange(len(labels)))
        self._model: nn.Module | None = None
        self._seed: int | None = None
        self._initial: dict[str, Tensor] = {}
        self._engines: dict[tuple[int, str, str, bool], GradientEngine] = {}

    def _examples(self, inputs: Tensor, labels: Tensor, rows: Tensor) -> Examples:
        return Examples(inputs, labels[rows].to(self.device), rows.to(inputs.device))

    def _place(self, inputs: np.ndarray[Any, Any]) -> Tensor:
        """Move inputs to the device where they fit in half of its free memory."""
        with warnings.catch_warnings():
            # The mapped array is read-only, and nothing here writes to it.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(inputs)
        if self.device.type == "cpu":
            return tensor
        free, _ = torch.cuda.mem_get_info(self.device)
        return tensor.to(self.device) if inputs.nbytes < free / 2 else tensor

    def batch(self, examples: Examples, indices: Tensor) -> Tensor:
        """Gather some examples as the batch that the model reads.

        Indices on the CPU serve every device: they go where the inputs are, and nothing waits.
        """
        rows = examples.rows[indices.to(examples.rows.device)]
        inputs = examples.inputs[rows]
        if inputs.device.type != self.device.type:
            # From pinned memory the copy does not keep the device waiting.
            inputs = inputs.pin_memory().to(self.device, non_blocking=True)
        batch: Tensor = self.preprocess(inputs)
        return batch

    def model(self, seed: int) -> nn.Module:
        """The model in its initial state for a seed, in eval mode (no dropout).

        It is one model for all seeds, so that what is made for it once (engines, compiled code)
        serves all trials.
        """
        if self._model is None or self._seed != seed:
            fresh = build_model(self.backbone.folder, self.method, self.classes, seed)
            if self._model is None:
                self._model = fresh.to(self.device).eval()
            else:
                self._model.load_state_dict(fresh.state_dict())
            self._seed = seed
            self._initial = {
                name: parameter.detach().clone()
                for name, parameter in trainable_parameters(self._model).items()
            }
        load_trainable(self._model, self._initial)
        return self._model

    def engine(
        self, name: str, model: nn.Module, precision: Precision = "float32", compile: bool = False
    ) -> GradientEngine:
        """The engine called ``name`` for the per-example gradients of a model."""
        key = (id(model), name, precision, compile)
        if key not in self._engines:
            self._engines[key] = make_engine(
                name,
                model,
                head_parameter_names(model),
                autocast=autocast_dtype(precision),
                compile=compile,
            )
        return self._engines[key]


def load_trainable(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Copy values into the trainable parameters of a model, by name."""
    with torch.no_grad():
        for name, parameter in trainable_parameters(model).items():
            parameter.copy_(values[name])


def epoch_ends(steps: int, epochs: int) -> dict[int, int]:
    """Map the step (from 1) that ends an epoch to the epoch (from 1).

    T steps are E epochs whatever T*q is, so epoch e ends with step e*T/E, rounded half up.
    """
    return {(2 * epoch * steps + epochs) // (2 * epochs): epoch for epoch in range(1, epochs + 1)}


@dataclass
class _Progress:
    """The state of a running trial that is not in the model or the optimizer."""

    step: int
    seconds: float
    statistics: list[Tensor]
    epochs: dict[str, Tensor]


def train_trial(
    spec: TrialSpec, bench: Workbench, checkpoint: Path, checkpoint_seconds: float
) -> tuple[StoredTrial, Arrays]:
    """Train one trial, or continue it from its checkpoint.

    Returns:
        The trial, and its trainable parameters after every epoch as ``epoch<e>/<name>``.

    Raises:
        Interrupted: a signal asked to stop; the state after the last step is saved.
    """
    model = bench.model(spec.seed)
    parameters = trainable_parameters(model)
    head = head_parameter_names(model)
    optimizer = PrivateOptimizer(
        _OPTIMIZERS[spec.optimizer](parameters.values(), lr=spec.learning_rate),
        bench.engine(spec.engine, model, spec.precision, spec.compile),
        spec.make_clipping(),
        noise_multiplier=spec.noise_multiplier,
        expected_batch_size=spec.batch_size,
        noise=torch_stream(bench.device, spec.key, "noise"),
    )
    sampler = PoissonSampler(spec.train_size, spec.batch_size, spec.key, "sampling")
    progress = _restore(checkpoint, parameters, optimizer) or _Progress(0, 0.0, [], {})
    ends = epoch_ends(spec.steps, spec.epochs)
    started = saved = time.monotonic()
    for step in range(progress.step + 1, spec.steps + 1):
        statistics = optimizer.step(_microbatches(sampler.batch(step), spec, bench))
        progress.statistics.append(_pack(statistics))
        progress.step = step
        if step in ends:
            for name, parameter in parameters.items():
                progress.epochs[f"epoch{ends[step]}/{name}"] = parameter.detach().clone()
        now = time.monotonic()
        stop = interruption(saved=True)
        if (stop or now - saved > checkpoint_seconds) and step < spec.steps:
            progress.seconds += now - started
            started = saved = now
            _save(checkpoint, parameters, optimizer, progress)
            if stop:
                raise stop
    if bench.device.type == "cuda":
        torch.cuda.synchronize()
    progress.seconds += time.monotonic() - started
    steps = _unpack(progress.statistics)
    evaluation_started = time.monotonic()
    measured = evaluate(model, bench, bench.test)
    selected = evaluate(model, bench, bench.holdout) if spec.holdout else measured
    record = {
        "trial_key": spec.key,
        "spec": asdict(spec),
        **measured,
        "selection_accuracy": selected["macro_accuracy"],
        **_summary(steps, parameters, head),
        "wall_seconds": progress.seconds,
        "evaluation_seconds": time.monotonic() - evaluation_started,
        "examples_per_second": float(steps["sampled_examples"].sum() / progress.seconds),
        **_environment(bench.device),
    }
    epochs = {name: value.cpu().numpy() for name, value in progress.epochs.items()}
    return StoredTrial(record, steps), epochs


def _microbatches(
    indices: np.ndarray[Any, Any], spec: TrialSpec, bench: Workbench
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    for padded, mask in microbatches(indices, spec.physical_batch):
        rows, keep = torch.from_numpy(padded), torch.from_numpy(mask)
        if bench.device.type == "cpu":
            # Fixed shapes serve compiled kernels; here padding would only be computed in vain.
            rows, keep = rows[keep], keep[keep]
        inputs, labels = bench.batch(bench.train, rows), bench.train.labels[rows.to(bench.device)]
        yield inputs, labels, keep.to(bench.device)


# -- statistics of steps ---------------------------------------------------------------------

_STATISTICS = ("sampled_examples", "norm_sum", "clipped_examples", "nonfinite_examples")


def _pack(statistics: StepStatistics) -> Tensor:
    return torch.stack([getattr(statistics, name).double() for name in _STATISTICS])


def _unpack(statistics: list[Tensor]) -> Arrays:
    columns = torch.stack(statistics).cpu().numpy().T
    sampled, norm_sum, clipped, nonfinite = columns
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "sampled_examples": sampled.astype(np.int64),
            # NaN for a step whose batch is empty.
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


@torch.no_grad()
def evaluate(model: nn.Module, bench: Workbench, examples: Examples) -> dict[str, Any]:
    """Accuracy (all, macro, per class), mean loss and divergence of a model on some examples.

    Macro accuracy is the mean over classes that have an example; a class without one has
    per-class accuracy NaN. Outputs that are not finite count as wrong.
    """
    labels = examples.labels
    loss = torch.zeros((), dtype=torch.float64, device=bench.device)
    correct = torch.zeros_like(labels, dtype=torch.bool)
    for rows in torch.split(torch.arange(len(labels)), _TEST_BATCH):
        outputs = model(bench.batch(examples, rows)).float()
        chosen = rows.to(bench.device)
        loss += functional.cross_entropy(outputs, labels[chosen], reduction="sum").double()
        finite = outputs.isfinite().all(dim=1)
        correct[chosen] = (outputs.argmax(dim=1) == labels[chosen]) & finite
    counts = torch.bincount(labels, minlength=bench.classes).double()
    right = torch.bincount(labels[correct], minlength=bench.classes).double()
    per_class = right / counts
    finite_parameters = all(
        bool(parameter.isfinite().all()) for parameter in trainable_parameters(model).values()
    )
    mean_loss = float(loss) / len(labels)
    return {
        "accuracy": float(correct.double().mean()),
        "macro_accuracy": float(per_class[counts > 0].mean()),
        "per_class_accuracy": per_class.tolist(),
        "loss": mean_loss,
        "diverged": not (finite_parameters and np.isfinite(mean_loss)),
    }


def _environment(device: torch.device) -> dict[str, Any]:
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    versions = {each: version(each) for each in ("torch", "timm", "opacus", "numpy")}
    return {
        "device": f"{device.type}: {name}",
        "versions": {"python": platform.python_version(), "dpsweep": __version__, **versions},
    }


# -- checkpoints -----------------------------------------------------------------------------


def _save(
    path: Path,
    parameters: dict[str, nn.Parameter],
    optimizer: PrivateOptimizer,
    progress: _Progress,
) -> None:
    state = {
        "parameters": {name: parameter.detach() for name, parameter in parameters.items()},
        "optimizer": optimizer.state_dict(),
        "progress": vars(progress),
    }
    with atomic_path(path) as partial:
        torch.save(state, partial)
    log.info("checkpoint at step %d", progress.step)


def _restore(
    path: Path, parameters: dict[str, nn.Parameter], optimizer: PrivateOptimizer
) -> _Progress | None:
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        return None
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        log.warning("%s is damaged (%s): the trial starts again", path, error)
        path.unlink(missing_ok=True)
        return None
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state["parameters"][name])
    optimizer.load_state_dict(state["optimizer"])
    progress = _Progress(**state["progress"])
    log.info("continuing from step %d", progress.step)
    return progress
