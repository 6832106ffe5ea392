"""Estimate the cost of a study from its file alone: trials, seconds, memory, disk.

The estimate packs short cells into jobs, asks a cluster for time and memory, and gives the first
forecast of a run (`dpsweep.planning.plan`). No result depends on it: a job that needs more time goes
on from its checkpoint, and one that needs more memory is tried again with more. It is meant to be
right within a factor of two once the numbers of the `Device` fit.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpsweep.base.files import read_json
from dpsweep.planning.device import GPU, Device
from dpsweep.planning.pixels import stored_bytes
from dpsweep.study import Study
from dpsweep.study.cells import Cell, optimizer_steps
from dpsweep.study.config import (
    AllParameters,
    Backbone,
    Dataset,
    FileWeights,
    Film,
    HeadOnly,
    LoRA,
    Scratch,
)
from dpsweep.study.trials import KEPT_PARAMETER_BYTES, trials_per_cell

# What a processor computes while it moves a byte: a CPU core 100 Gflop and 2.5 GB a second, a GPU
# 20 Tflop and 500 GB.
_OPERATIONS_PER_BYTE = 40.0
# Bytes moved for each number of a gradient by the sums of `dpsweep.theory.sums`, in float64.
_SUMMED_BYTES = 64.0
_SUMMED_AT_ONCE = 64
_HOST_GIGABYTES = 6.0  # an interpreter with torch and a GPU's libraries
# Of a parameter that trains: itself, its gradient, Adam's two averages and the sum of a micro-batch in
# 32 bits; the sum of the step in 64.
_TRAINED_BYTES = 28.0
_LEAST_EXAMPLES = 32  # on a GPU at once, for which one should be large enough
_GIGA = 1e9


@dataclass(frozen=True)
class _Network:
    """One forward pass of one example."""

    operations: float
    activation_bytes: float
    parameters: float
    width: int
    """features that the head sees"""
    norm_parameters: float


@dataclass(frozen=True)
class _Floor:
    """Seconds that are spent however small a network and its data are."""

    start: float
    """of a job"""
    step: float
    """of a step"""


# Measured: 1 s where libraries are preloaded, 8 s in a process of its own; nothing is compiled.
_HEAD_FLOOR = _Floor(start=3.0, step=0.002)


@dataclass(frozen=True)
class CellCost:
    """Cost of each cell of one (problem, epochs)."""

    trials: int
    seconds: float
    """wall time of a job that trains the whole cell on one GPU"""
    host_gigabytes: float
    gpu_gigabytes: float
    """without the inputs"""
    input_gigabytes: float
    """what its trials read, which lies on the GPU where it fits"""


def _transformer(tokens: int, width: int, depth: int) -> _Network:
    """Count a transformer: 12 d^2 weights a layer, and two products of tokens by tokens.

    Activations: 34 values of 16 bits a token, channel and layer (Korthikanti et al. 2022, without
    the attention matrix), here in 32 bits.
    """
    products = depth * (12 * width**2 * tokens + 2 * width * tokens**2)
    return _Network(
        operations=2.0 * products,
        activation_bytes=68.0 * tokens * width * depth,
        parameters=12.0 * width**2 * depth,
        width=width,
        norm_parameters=2.0 * width * (2 * depth + 1),
    )


# timm's names of vision transformers: width and depth.
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


def _network(backbone: Backbone, dataset: Dataset) -> _Network:
    """Count a backbone on a dataset's inputs.

    An unknown one is taken for a ViT-Base, or for a DistilBERT if it reads text.
    """
    arguments = backbone.arguments
    if dataset.kind == "text":
        # DistilBERT's names, then BERT's; without either, the size of DistilBERT.
        if isinstance(backbone.weights, FileWeights):
            arguments = _described(backbone.weights.path) | arguments
        width = arguments.get("dim", arguments.get("hidden_size", 768))
        depth = arguments.get("n_layers", arguments.get("num_hidden_layers", 6))
        return _transformer(dataset.max_length or 512, int(width), int(depth))
    size = dataset.image_size or 224
    if backbone.architecture in _CONVOLUTIONAL:
        reference, products, activations, parameters, width, norms = _CONVOLUTIONAL[
            backbone.architecture
        ]
        area = (size / reference) ** 2
        return _Network(
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


@cache
def _described(path: str) -> dict[str, Any]:
    """Read the ``config.json`` beside a local file of weights; empty where there is none."""
    try:
        return dict(read_json(Path(path).expanduser().with_name("config.json")))
    except (OSError, ValueError, TypeError):
        return {}  # the preparation says what is wrong


def _floor(study: Study, problem: str, device: Device) -> _Floor:
    if study.features(problem) is None:
        return _Floor(device.start_seconds, device.step_seconds)
    return _HEAD_FLOOR


def _trained(study: Study, problem: str) -> _Network:
    """The network that a trial of a problem runs: a linear layer, where features are cached.

    In so small a layer moving numbers takes as long as computing: features and logits, in float64.
    """
    grid = study.problems[problem]
    dataset = study.datasets[grid.dataset]
    whole = _network(study.backbones[grid.backbone], dataset)
    if study.features(problem) is None:
        return whole
    return _Network(
        operations=2.0 * whole.width * dataset.classes
        + 8 * _OPERATIONS_PER_BYTE * (whole.width + 2 * dataset.classes),
        activation_bytes=4.0 * (whole.width + 2 * dataset.classes),
        parameters=0.0,
        width=whole.width,
        norm_parameters=0.0,
    )


def _passes(study: Study, problem: str) -> float:
    """Forward passes that one training example costs, its backward pass included."""
    match study.methods[study.problems[problem].method]:
        case HeadOnly():
            # On features: the logits, and the product of residuals and features.
            return 1.0 if study.features(problem) is None else 2.0
        case AllParameters() | Scratch():
            return 4.0  # the weights' half of the backward pass, and per-example norms
    return 2.0


def cell_cost(
    study: Study,
    problem: str,
    epochs: int,
    device: Device = GPU,
    trials: int | None = None,
) -> CellCost:
    """Estimate a cell of a problem: the same for every epsilon, B and C of these epochs.

    E epochs are E passes over the data at every batch size; only the work that each step adds
    differs, and it is counted for the smallest batch.

    Args:
        study: the study.
        problem: one of its problems.
        epochs: E.
        device: what trains.
        trials: of the cell; by default the most that a sweep asks for.
    """
    grid = study.problems[problem]
    dataset, network = study.datasets[grid.dataset], _trained(study, problem)
    rate = device.teraflops * 1e12
    sweeps = study.sweeps_of(problem)
    batch_sizes = [each for sweep in sweeps for each in study.sweeps[sweep].batch_size]
    smallest = min(study.numeric_batch_size(grid.dataset, each) for each in batch_sizes)
    steps = optimizer_steps(dataset.train_size, smallest, epochs, study.privacy.step_rounding)
    training = epochs * dataset.train_size * _passes(study, problem) * network.operations / rate
    testing = dataset.test_size * network.operations / rate
    trials = trials or max(trials_per_cell(study, sweep) for sweep in sweeps)
    setting = study.physical_batch(problem)
    physical = _LEAST_EXAMPLES if setting == "auto" else setting
    inputs, floor = _input_bytes(study, problem) / _GIGA, _floor(study, problem, device)
    trained = trainable_parameters(study, problem)
    copies = 4 * epochs * trained / _GIGA  # after every epoch, in the memory of the CPU
    parameters = 4 * max(network.parameters - trained, 0.0) + _TRAINED_BYTES * trained
    return CellCost(
        trials=trials,
        seconds=floor.start + trials * (training + testing + steps * floor.step),
        host_gigabytes=_HOST_GIGABYTES + inputs + copies,
        gpu_gigabytes=2.0 + (parameters + physical * network.activation_bytes) / _GIGA,
        input_gigabytes=inputs,
    )


def norms_seconds(study: Study, problem: str, epochs: int, device: Device = GPU) -> float:
    """Estimate the gradient norms of one (epsilon, epochs, C): a backward pass after every epoch.

    A trial whose parameters are not kept is trained again.

    Args:
        study: the study.
        problem: one of its problems.
        epochs: E.
        device: what measures.
    """
    grid = study.problems[problem]
    dataset = study.datasets[grid.dataset]
    operations = _trained(study, problem).operations
    work = epochs * dataset.train_size * _passes(study, problem) * operations
    seconds = _floor(study, problem, device).start + work / (device.teraflops * 1e12)
    return seconds + _repeated_seconds(study, problem, epochs, device)


def theory_seconds(study: Study, problem: str, epochs: int, device: Device = GPU) -> float:
    """Estimate the gradients of one cell that the theory looks at, at the start and after every epoch.

    The same for every B: it is counted for the largest.

    Args:
        study: the study.
        problem: one of its problems.
        epochs: E.
        device: what measures.
    """
    grid, theory = study.problems[problem], study.theory
    size = study.datasets[grid.dataset].train_size
    batch_sizes = [
        each for sweep in study.sweeps_of(problem) for each in study.sweeps[sweep].batch_size
    ]
    largest = max(study.numeric_batch_size(grid.dataset, each) for each in batch_sizes)
    batch = min(theory.largest_batch, largest, size)
    draws = 1 if batch == size else theory.draws
    # Gradients are written out, twice if they are too large to be kept: forward and backward passes with
    # all parameters.
    gradient = 2 * 4.0 * _trained(study, problem).operations
    sums = 2 * _SUMMED_AT_ONCE + _OPERATIONS_PER_BYTE * _SUMMED_BYTES
    work = (epochs + 1) * draws * batch * (gradient + sums * trainable_parameters(study, problem))
    seconds = _floor(study, problem, device).start + work / (device.teraflops * 1e12)
    return seconds + _repeated_seconds(study, problem, epochs, device)


def _repeated_seconds(study: Study, problem: str, epochs: int, device: Device) -> float:
    """Estimate the time to train a trial again whose parameters are not kept."""
    if _kept_bytes(study, problem, epochs):
        return 0.0
    cell = cell_cost(study, problem, epochs, device)
    return (cell.seconds - _floor(study, problem, device).start) / cell.trials


def features_seconds(study: Study, problem: str, device: Device = GPU) -> float:
    """Estimate how long the features take that a problem's trials read."""
    grid = study.problems[problem]
    dataset = study.datasets[grid.dataset]
    operations = _network(study.backbones[grid.backbone], dataset).operations
    work = (dataset.train_size + dataset.test_size) * operations
    return device.start_seconds + work / (device.teraflops * 1e12)


def features_bytes(study: Study, problem: str) -> float:
    """The size of the features that a problem's trials read: 32 bits each, and the labels."""
    grid = study.problems[problem]
    dataset = study.datasets[grid.dataset]
    width = _network(study.backbones[grid.backbone], dataset).width
    return float((dataset.train_size + dataset.test_size) * (4 * width + 8))


def _input_bytes(study: Study, problem: str) -> float:
    if study.features(problem) is not None:
        return features_bytes(study, problem)
    return input_bytes(study.datasets[study.problems[problem].dataset])


def trainable_parameters(study: Study, problem: str) -> float:
    """Estimate how many parameters a trial trains."""
    grid = study.problems[problem]
    dataset = study.datasets[grid.dataset]
    network = _network(study.backbones[grid.backbone], dataset)
    head = dataset.classes * (network.width + 1)
    match study.methods[grid.method]:
        case HeadOnly():
            return head
        case Film():
            return head + network.norm_parameters
        case LoRA(rank=rank, target_modules=modules):
            # A layer from d to 1...4 d features, in each of the layers of 12 d^2 parameters.
            layers = network.parameters / (12 * network.width**2)
            return head + 3 * rank * network.width * len(modules) * layers
    return head + network.parameters


def cell_bytes(study: Study, cell: Cell) -> float:
    """Estimate what a cell leaves on disk, its trials in the store included.

    Sizes of records, tables and logs were measured on the demo.
    """
    dataset = study.datasets[study.problems[cell.problem].dataset]
    trials, classes = trials_per_cell(study, study.sweep_of(cell)), dataset.classes
    batch_size = study.batch_size(cell)
    steps = optimizer_steps(
        dataset.train_size, batch_size, cell.epochs, study.privacy.step_rounding
    )
    store = trials * (1_700 + 20 * classes + 32 * steps)
    tables = 23_000 + trials * 8 * classes + 5_000 + 17 * trials * steps
    logs_and_records = 10_000
    return store + tables + logs_and_records + _kept_bytes(study, cell.problem, cell.epochs)


def norms_bytes(study: Study, problem: str, epochs: int) -> float:
    """Estimate the table of gradient norms of one (epsilon, epochs, C)."""
    return 12.2 * epochs * study.datasets[study.problems[problem].dataset].train_size


def theory_bytes(study: Study, cell: Cell) -> float:
    """Estimate the table of what the theory needs of one cell."""
    size = min(study.batch_size(cell), study.theory.largest_batch)
    return 45.0 * (cell.epochs + 1) * study.theory.draws * size


def input_bytes(dataset: Dataset) -> float:
    """The size of a prepared dataset: pixels are bytes, tokens are 32-bit integers."""
    values = stored_bytes(dataset) if dataset.kind == "image" else 4 * (dataset.max_length or 0)
    return float((dataset.train_size + dataset.test_size) * (values + 8))


def backbone_bytes(backbone: Backbone, dataset: Dataset) -> float:
    """Estimate a backbone's file of 32-bit weights, as it is used on a dataset."""
    return 4 * _network(backbone, dataset).parameters


def _kept_bytes(study: Study, problem: str, epochs: int) -> float:
    size = 4 * epochs * trainable_parameters(study, problem)
    return size if size <= KEPT_PARAMETER_BYTES else 0.0
