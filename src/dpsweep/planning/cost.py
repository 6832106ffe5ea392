"""Estimate the cost of a study from its file alone: trials, seconds, memory, disk.

The workflow uses it to pack short cells into jobs and to ask a cluster for time and memory; it is also the
first forecast of a run (`dpsweep.planning.plan`). No result depends on it: a job that needs more time resumes
from its checkpoint, and one that needs more memory is tried again with more. It should be right within a
factor of two once the numbers of the `Device` fit.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpsweep.base.gpus import Gpu
from dpsweep.planning.outputs import Stage
from dpsweep.study import Cell, Study
from dpsweep.study.datasets import Dataset
from dpsweep.study.networks import AllParameters, Backbone, Film, HeadOnly, LoRA, Scratch
from dpsweep.study.sweeps import KEPT_PARAMETER_BYTES

# Sustained float32 speed of training on a data-centre GPU, in 10^12 operations a second.
TERAFLOPS = 20.0


@dataclass(frozen=True)
class Device:
    """A training device, for estimates of time."""

    name: str
    unit: str
    """the unit of its hours: GPU, or core of a CPU"""
    teraflops: float
    """sustained speed of training, in 10^12 operations a second"""
    start_seconds: float
    """time of a job before its first step: imports, weights, data, compilation"""
    step_seconds: float
    """least time of a step: noise, optimizer, sampling, kernel launches"""


GPU = Device("GPUs", "GPU", TERAFLOPS, start_seconds=40.0, step_seconds=0.02)
# One core with AVX2. Libraries are preloaded (1 s a job, else 8 s), and nothing is compiled.
CPU = Device("this machine's CPU", "core", 0.1, start_seconds=3.0, step_seconds=0.005)


def device_of(teraflops: float, gpus: Sequence[Gpu]) -> Device:
    """Return GPUs of a cluster at some speed; without one, the device of this machine.

    Args:
        teraflops: sustained speed of a GPU of the cluster, in 10^12 operations a second; 0: no cluster.
        gpus: those of this machine.
    """
    if teraflops:
        return replace(GPU, teraflops=teraflops)
    return GPU if gpus or shutil.which("rocm-smi") else CPU


# Width and depth of vision transformers by their names in timm.
_VISION_TRANSFORMERS = {
    "tiny": (192, 12),
    "small": (384, 12),
    "base": (768, 12),
    "large": (1024, 24),
    "huge": (1280, 32),
}
# Convolutional networks at a reference size: multiply-adds, activations and parameters, in 10^6;
# features, and parameters of norm layers.
_CONVOLUTIONAL = {
    "resnetv2_50x1_bit": (224, 4_230, 100, 24, 2048, 41_344),
    "wide_resnet": (32, 390, 4, 3, 256, 4_000),
}


# -- networks --------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkSize:
    """The size of a network, and of one forward pass of one example."""

    operations: float
    activation_bytes: float
    parameters: float
    width: int
    """the number of inputs of the head"""
    norm_parameters: float


def _transformer(tokens: int, width: int, depth: int) -> NetworkSize:
    """Count a transformer: 12 d^2 weights a layer, and two products of tokens by tokens.

    Activations: 34 values of 16 bits a token, channel and layer (Korthikanti et al. 2022, without
    the attention matrix), here in 32 bits.
    """
    products = depth * (12 * width**2 * tokens + 2 * width * tokens**2)
    return NetworkSize(
        operations=2.0 * products,
        activation_bytes=68.0 * tokens * width * depth,
        parameters=12.0 * width**2 * depth,
        width=width,
        norm_parameters=2.0 * width * (2 * depth + 1),
    )


def _fixed_features(dataset: Dataset, width: int, operations: float) -> NetworkSize:
    """Count a network without parameters; its operations are measured on a core, for each byte or pixel."""
    numbers = math.prod(dataset.input_shape)
    return NetworkSize(operations * numbers, 68.0 * numbers, 0.0, width, 0.0)


def count_network(backbone: Backbone, dataset: Dataset) -> NetworkSize:
    """Estimate the size of a backbone for a dataset's inputs.

    An unknown one counts as a ViT-Base, or as a DistilBERT if it reads text.
    """
    arguments = backbone.arguments
    if dataset.kind == "embedding":
        return NetworkSize(0.0, 0.0, 0.0, dataset.dimension or 1, 0.0)
    if backbone.architecture == "hashed_ngrams":
        return _fixed_features(dataset, int(arguments.get("dimension", 1024)), operations=2e4)
    if backbone.architecture == "scattering":
        scales, angles, channels = (
            int(arguments.get(key, usual))
            for key, usual in (("scales", 2), ("angles", 8), ("in_chans", 1))
        )
        channels *= 1 + scales * angles + angles**2 * (scales * (scales - 1) // 2)
        pixels = ((dataset.image_size or 1) // 2**scales) ** 2
        return _fixed_features(dataset, channels * pixels, operations=3e5)
    if dataset.kind == "text":
        # The keys of DistilBERT, then of BERT; without both, the size of DistilBERT.
        width = arguments.get("dim", arguments.get("hidden_size", 768))
        depth = arguments.get("n_layers", arguments.get("num_hidden_layers", 6))
        return _transformer(dataset.max_length or 512, int(width), int(depth))
    size = dataset.image_size or 224
    if backbone.architecture in _CONVOLUTIONAL:
        reference, products, activations, parameters, width, norms = _CONVOLUTIONAL[
            backbone.architecture
        ]
        area = (size / reference) ** 2
        return NetworkSize(
            2e6 * products * area, 1e6 * activations * area, 1e6 * parameters, width, norms
        )
    words = backbone.architecture.split("_")
    kind = next((word for word in words if word in _VISION_TRANSFORMERS), "base")
    width, depth = _VISION_TRANSFORMERS[kind]
    patch = next((int(word[5:]) for word in words if word[:5] == "patch"), 16)
    patch = int(arguments.get("patch_size", patch))
    width = int(arguments.get("embed_dim", width))
    depth = int(arguments.get("depth", depth))
    return _transformer((size // patch) ** 2 + 1, width, depth)


# -- jobs ------------------------------------------------------------------------------------

# Operations that a processor computes while it moves a byte: a CPU core has 100 Gflop/s and 2.5 GB/s, a GPU
# 20 Tflop/s and 500 GB/s.
_OPERATIONS_PER_BYTE = 40.0
# Bytes that are moved for each number of a gradient by the sums of `dpsweep.theory`, in float64.
_SUMMED_BYTES = 64.0
_SUMMED_AT_ONCE = 64
_HOST_GIGABYTES = 6.0  # an interpreter with torch and a GPU's libraries
# For a parameter that trains: itself, its gradient, Adam's two averages and the sum of a micro-batch in
# 32 bits; the sum of the step in 64 bits.
_TRAINED_BYTES = 28.0
_LEAST_EXAMPLES = 32  # the physical batch that a GPU should have memory for
_GIGA = 1e9
# Seconds of a head on features for the start of a job and for a step, even with tiny data. Measured for the
# start: 1 s with preloaded libraries, 8 s in a process of its own; nothing is compiled.
_HEAD_START_SECONDS, _HEAD_STEP_SECONDS = 3.0, 0.002


@dataclass(frozen=True)
class CellCost:
    """Cost of each cell of one (problem, epochs)."""

    trials: int
    seconds: float
    """wall time of a job that trains the whole cell, on as many GPUs as it has"""
    host_gigabytes: float
    gpu_gigabytes: float
    """without the inputs"""
    input_gigabytes: float
    """data that its trials read; they are kept on the GPU if they fit"""


class ProblemCost:
    """Estimates for the jobs of one problem: the same for every epsilon, B and C.

    Args:
        study: the study.
        problem: one of its problems.
        device: the device of the jobs.
    """

    def __init__(self, study: Study, problem: str, device: Device = GPU) -> None:
        self._study, self._problem, self._device = study, problem, device
        self._parts = study.problems[problem]
        self._dataset = study.datasets[self._parts.dataset]
        self._method = study.methods[self._parts.method]
        self._whole = count_network(study.backbones[self._parts.backbone], self._dataset)
        self._on_features = study.trains_on_vectors(problem)
        self._rate = device.teraflops * 1e12
        if self._on_features:
            self._network = self._head()
            self._start, self._step = _HEAD_START_SECONDS, _HEAD_STEP_SECONDS
        else:
            self._network = self._whole
            self._start, self._step = device.start_seconds, device.step_seconds
        self._sweeps = study.sweeps_of(problem)
        self._batch_sizes = [
            study.numeric_batch_size(self._parts.dataset, each)
            for sweep in self._sweeps
            for each in study.sweeps[sweep].batch_size
        ]

    def gpus(self, stage: Stage) -> int:
        """Return the number of GPUs of a job; only trials and gradient norms are divided."""
        return self._study.gpus(self._problem) if stage in ("train", "gradient_norms") else 1

    def cell(self, epochs: int, trials: int | None = None, *, gpus: int | None = None) -> CellCost:
        """Estimate a cell.

        E epochs are E passes over the data at every batch size. Only the extra work of each step differs;
        it is counted for the smallest batch.

        Args:
            epochs: E.
            trials: of the cell; by default the largest number of a sweep.
            gpus: of its job; by default those of the study.
        """
        gpus = gpus or self.gpus("train")
        study, dataset, network = self._study, self._dataset, self._network
        steps = study.steps(self._parts.dataset, epochs, min(self._batch_sizes))
        training = epochs * self._rows * self._passes * network.operations / self._rate
        testing = dataset.test_size * network.operations / self._rate
        trials = trials or max(study.trials_per_cell(sweep) for sweep in self._sweeps)
        setting = study.physical_batch(self._problem)
        physical = _LEAST_EXAMPLES if setting == "auto" else setting
        inputs = self.features_bytes if self._on_features else input_bytes(dataset)
        trained = self.trained_parameters
        copies = 4 * epochs * trained / _GIGA  # after every epoch, in host memory
        parameters = 4 * max(network.parameters - trained, 0.0) + _TRAINED_BYTES * trained
        return CellCost(
            trials=trials,
            seconds=self._start + trials * ((training + testing) / gpus + steps * self._step),
            host_gigabytes=gpus * (_HOST_GIGABYTES + copies) + inputs / _GIGA,
            gpu_gigabytes=2.0 + (parameters + physical * network.activation_bytes) / _GIGA,
            input_gigabytes=inputs / _GIGA,
        )

    def seconds(self, stage: Stage, epochs: int) -> float:
        """Estimate the time of a job.

        Args:
            stage: the stage of the job.
            epochs: E; features do not depend on it.
        """
        match stage:
            case "train":
                return self.cell(epochs).seconds
            case "audit":
                return self.cell(epochs, trials=1, gpus=1).seconds
            case "features":
                dataset = self._dataset
                work = (dataset.train_size + dataset.test_size) * self._whole.operations
                return self._device.start_seconds + work / self._rate
            case "gradient_norms":
                # A backward pass after every epoch.
                passes = epochs * self._rows * self._passes
                work = passes * self._network.operations
            case "theory":
                work = self._theory_operations(epochs)
        seeds = self._theory_seeds if stage == "theory" else 1
        seconds = self._start + seeds * work / (self._rate * self.gpus(stage))
        # The store has the parameters of the first seed only, or none.
        cell = self.cell(epochs, gpus=self.gpus(stage))
        again = seeds - bool(self._kept_bytes(epochs))
        return seconds + again * (cell.seconds - self._start) / cell.trials

    def bytes(self, stage: Stage, cell: Cell) -> float:
        """Estimate the disk space of a job's outputs; for a cell, with its trials in the store.

        Sizes of records, tables and logs were measured on the demo.

        Args:
            stage: the stage of the job.
            cell: the cell of the job; for features and gradient norms, one of their cells.
        """
        study, dataset, epochs = self._study, self._dataset, cell.epochs
        match stage:
            case "audit":
                return 0.0
            case "features":
                return self.features_bytes
            case "gradient_norms":
                return 12.2 * epochs * dataset.protected
            case "theory":
                size = min(study.batch_size(cell), study.theory.largest_batch)
                return 45.0 * (epochs + 1) * study.theory.draws * self._theory_seeds * size
        trials, classes = study.trials_per_cell(study.sweep_of(cell)), dataset.classes
        steps = study.steps(self._parts.dataset, epochs, cell.batch_size)
        store = trials * (1_700 + 20 * classes + 32 * steps)
        tables = 23_000 + trials * 8 * classes + 5_000 + 17 * trials * steps
        logs_and_records = 10_000
        return store + tables + logs_and_records + self._kept_bytes(epochs)

    def _kept_bytes(self, epochs: int) -> float:
        """Return the size of the parameters after every epoch; 0 if they are too large to be kept."""
        size = 4 * epochs * self.trained_parameters
        return size if size <= KEPT_PARAMETER_BYTES else 0.0

    @property
    def features_bytes(self) -> float:
        """The size of the features, 32 bits each, with their labels."""
        dataset = self._dataset
        return float((dataset.train_size + dataset.test_size) * (4 * self._whole.width + 8))

    @property
    def trained_parameters(self) -> float:
        """The number of parameters that a trial trains."""
        network = self._whole
        head = self._dataset.classes * (network.width + 1)
        match self._method:
            case HeadOnly():
                return head
            case Film():
                return head + network.norm_parameters
            case LoRA(rank=rank, target_modules=modules):
                # Adapted layers have d inputs and d to 4 d outputs; each block has 12 d^2 parameters.
                layers = network.parameters / (12 * network.width**2)
                return head + 3 * rank * network.width * len(modules) * layers
        return head + network.parameters

    @property
    def _rows(self) -> float:
        """The number of rows that an epoch reads: each view of each row that a unit may have in a step."""
        dataset, views = self._dataset, self._method.augmentations
        most = dataset.protected * dataset.rows_per_unit if dataset.has_units else math.inf
        return min(dataset.train_size, most) * (views.count if views else 1)

    @property
    def _passes(self) -> float:
        """The cost of a training example in forward passes, with its backward pass."""
        match self._method:
            case HeadOnly():
                # On features: logits, then residuals times features.
                return 2.0 if self._on_features else 1.0
            case AllParameters() | Scratch():
                return 4.0  # the weights' half of the backward pass, and per-example norms
        return 2.0

    def _head(self) -> NetworkSize:
        """Return the size of a linear layer on features.

        Such a small layer spends as much time on moving features and logits, in float64, as on computing.
        """
        width, classes = self._whole.width, self._dataset.classes
        return NetworkSize(
            operations=2.0 * width * classes + 8 * _OPERATIONS_PER_BYTE * (width + 2 * classes),
            activation_bytes=4.0 * (width + 2 * classes),
            parameters=0.0,
            width=width,
            norm_parameters=0.0,
        )

    @property
    def _theory_seeds(self) -> int:
        """The number of seeds of a cell that the theory measures."""
        trained = max(self._study.sweeps[name].seeds for name in self._sweeps)
        return min(self._study.theory.seeds, trained)

    def _theory_operations(self, epochs: int) -> float:
        """Count the operations on gradients at the start and after every epoch, for the largest B."""
        theory, size = self._study.theory, self._dataset.protected
        batch = min(theory.largest_batch, max(self._batch_sizes), size)
        draws = 1 if batch == size else theory.draws
        # Gradients are computed in full, and twice if they do not fit in memory: forward and backward passes
        # with all parameters.
        gradient = 2 * 4.0 * self._network.operations
        sums = 2 * _SUMMED_AT_ONCE + _OPERATIONS_PER_BYTE * _SUMMED_BYTES
        rows = self._rows / size  # of a unit
        return (epochs + 1) * draws * batch * (rows * gradient + sums * self.trained_parameters)


def input_bytes(dataset: Dataset) -> float:
    """Estimate the size of a prepared dataset, with its labels: pixels of 8 bits; tokens or numbers of 32.

    Images that are all smaller are stored as they are, which takes less.
    """
    row = (1 if dataset.kind == "image" else 4) * math.prod(dataset.input_shape) + 8
    return float((dataset.train_size + dataset.test_size) * row)


def backbone_bytes(backbone: Backbone, dataset: Dataset) -> float:
    """Estimate the size of a backbone's 32-bit weights, with the input size of a dataset."""
    if backbone.weights.kind in {"none", "random"}:
        return 0.0  # nothing is stored
    return 4 * count_network(backbone, dataset).parameters
