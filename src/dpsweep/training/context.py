"""The context of a cell's trials: the data on the device, their random views, the backbone, the model.

An image with its random crops and flips is one unit of privacy (`dpsweep.gradients.units`), so epsilon stays
that of the image (De et al. 2022, section 3.1). Test images are read as they are stored.
"""

import logging
import warnings
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsweep.data.prepared import PreparedDataset
from dpsweep.gradients import GradientEngine, make_engine
from dpsweep.gradients.engines import autocast_dtype, full_precision
from dpsweep.gradients.units import copied, unit_starts
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_head, build_model, head_parameter_names, trainable_parameters
from dpsweep.models.preprocess import make_preprocess
from dpsweep.study.clipping import NoClipping
from dpsweep.study.networks import Augmentations, Method
from dpsweep.study.section import Precision
from dpsweep.training import processes
from dpsweep.training.device import default_device
from dpsweep.training.optimizer import MicroBatch
from dpsweep.training.physical import ON_THE_CPU, PhysicalBatch, PhysicalBatchSize, usual_batch
from dpsweep.training.randomness import Indices, PoissonSampler, stream_key

log = logging.getLogger(__name__)

_TEST_BATCH = 512
_STEP_BYTES = 20
"""Memory for each trainable parameter: the sum in float64, the last gradient, two averages of Adam."""


@dataclass(frozen=True)
class Examples:
    """Selected rows of an array of inputs, and their labels."""

    inputs: Tensor
    """(rows of the array, ...); on the device if it fits there"""
    labels: Tensor
    """(examples,)"""
    rows: Tensor
    """(examples,), int64: the row of each in ``inputs``"""
    units: Indices | None = None
    """(examples,): the number of each one's unit of privacy; None: each is a unit"""

    @property
    def protected(self) -> int:
        """The number of units, or of examples."""
        return len(self.labels) if self.units is None else len(np.unique(self.units))


@dataclass(frozen=True)
class Sampled:
    """Rows of the training set that a step, or a measurement, reads."""

    rows: Indices
    """(rows,); those of a unit stand together"""
    units: Indices | None = None
    """(rows,): the unit of each; None: each row is a unit"""
    views: Tensor | None = None
    """(rows, 3): of each, as `Views.draw` returns them; None: rows are read as they are stored"""

    @property
    def ids(self) -> Indices:
        """The unit of each row."""
        return self.rows if self.units is None else self.units

    @cached_property
    def starts(self) -> Indices:
        """(units + 1,): the place of the first row of each unit, and the number of rows."""
        return unit_starts(self.ids, len(self.rows))

    @property
    def rows_per_unit(self) -> int:
        """The most rows of a unit."""
        return int(np.diff(self.starts).max(initial=1))

    def places(self, chosen: Indices) -> Indices:
        """Return the places of the rows of some units, which are numbered in the order of their rows."""
        if self.units is None:
            return chosen
        return np.concatenate(
            [np.arange(self.starts[each], self.starts[each + 1]) for each in chosen]
        )


class Views:
    """Random views of the rows of a batch.

    >>> views = Views(Augmentations(count=2, crop=1, flip=True), "mine", "views")
    >>> views.draw(step=0, rows=2).tolist()
    [[1, 0, 1], [1, -1, 0], [-1, 1, 1], [0, 1, 1]]

    The views of a step are a function of (stream, step), as its batch is: resuming needs no state.

    Attributes:
        count: of each row.
    """

    def __init__(
        self, augmentations: Augmentations, *stream_parts: str | int, secret: bytes = b""
    ) -> None:
        """Set the stream.

        Args:
            augmentations: of the method.
            stream_parts: the stream's name.
            secret: without one, anyone can draw the same views.
        """
        self.count = augmentations.count
        self._lowest = np.array([-augmentations.crop, -augmentations.crop, 0])
        self._highest = np.array([augmentations.crop, augmentations.crop, int(augmentations.flip)])
        self._key = stream_key(*stream_parts, secret=secret)

    def draw(self, step: int, rows: int) -> Tensor:
        """Draw views of some rows, ``count`` of each one after another.

        Returns:
            Of each view how far down and to the right it begins, and 1 if it is mirrored:
            int64, shape (rows * count, 3).
        """
        generator = np.random.Generator(np.random.Philox(key=self._key, counter=step << 128))
        size = (rows * self.count, 3)
        return torch.from_numpy(
            generator.integers(self._lowest, self._highest, size=size, endpoint=True)
        )


def viewed(images: Tensor, views: Tensor) -> Tensor:
    """Return a view of each image; beyond its edges an image is mirrored.

    >>> image = torch.arange(9, dtype=torch.uint8).view(1, 3, 3, 1)
    >>> viewed(image, torch.tensor([[1, 0, 1]])).view(3, 3).tolist()
    [[5, 4, 3], [8, 7, 6], [5, 4, 3]]

    It is the crop of a padded image (``padding_mode="reflect"`` of torchvision), mirrored, for another place
    in each image at once.

    Args:
        images: shape (B, H, W, C).
        views: as `Views.draw` returns them, on the same device; shifts are less than H and W.
    """
    height, width = images.shape[1:3]
    down, right, mirrored = views.T[:, :, None]
    rows = _reflected(down + torch.arange(height, device=images.device), height)
    columns = torch.arange(width, device=images.device)
    columns = _reflected(right + torch.where(mirrored > 0, columns.flip(0), columns), width)
    image = torch.arange(len(images), device=images.device)
    return images[image[:, None, None], rows[:, :, None], columns[:, None, :]]


def _reflected(places: Tensor, length: int) -> Tensor:
    """Return the places in a line that is mirrored beyond its ends."""
    return (length - 1) - ((length - 1) - places.abs()).abs()


def sample(sampler: PoissonSampler, views: Views | None, step: int) -> Sampled:
    """Return the rows of a step, and a number of views of each."""
    rows = sampler.batch(step)
    units = None if sampler.units is None else sampler.units[rows]
    if views is None:
        return Sampled(rows, units)
    repeated = np.repeat(rows, views.count)
    of_unit = repeated if units is None else np.repeat(units, views.count)
    return Sampled(repeated, of_unit, views.draw(step, len(rows)))


class TrialContext:
    """The data, backbone, model and device that the trials of a cell share.

    Args:
        data: the prepared dataset, or its features if the method trains a head on them.
        backbone: the prepared backbone.
        method: of fine-tuning.
        holdout: the share of training examples that are for selection instead of training.
        device: to train on; by default the first GPU, or the CPU if there is none.

    Raises:
        BackboneError: the backbone does not read such data.
    """

    def __init__(
        self,
        data: PreparedDataset,
        backbone: PreparedBackbone,
        method: Method,
        holdout: float = 0.0,
        device: torch.device | None = None,
    ) -> None:
        backbone.check_reads(data)
        self.device = device or default_device()
        self.backbone = backbone
        self.method = method
        self.classes = len(data.metadata.classes)
        reads, stored = backbone.metadata, data.metadata
        # The number of features that a head reads; None if the whole network runs.
        self._features = stored.shape[0] if stored.features else None
        self.preprocess: nn.Module = (
            make_preprocess(reads.mean, reads.std, stored.resize, stored.shape).to(self.device)
            if self._features is None
            else nn.Identity()
        )
        inputs, labels = self._place(data.train_inputs), torch.from_numpy(data.train_labels.copy())
        rows, held_out = data.hold_out(holdout)
        self.train = self._examples(inputs, labels, rows, data.train_units)
        self.holdout = self._examples(inputs, labels, held_out, data.train_units)
        inputs, labels = self._place(data.test_inputs), torch.from_numpy(data.test_labels.copy())
        self.test = self._examples(inputs, labels, np.arange(len(labels)), data.test_units)
        self._model: nn.Module | None = None
        self._seed: int | None = None
        self._initial: dict[str, Tensor] = {}
        self._engines: dict[tuple[int, str, str, bool], GradientEngine] = {}
        self._physical: dict[tuple[PhysicalBatchSize, int], PhysicalBatch] = {}
        self.evaluated_at_once = PhysicalBatch(_TEST_BATCH, self.drop_step)

    def _examples(
        self, inputs: Tensor, labels: Tensor, rows: Indices, units: Indices | None
    ) -> Examples:
        chosen = torch.from_numpy(rows)
        own = None if units is None else units[rows]
        return Examples(inputs, labels[chosen].to(self.device), chosen.to(inputs.device), own)

    def _place(self, inputs: np.ndarray[Any, Any]) -> Tensor:
        """Move inputs to the device if they fit in half of its free memory."""
        with warnings.catch_warnings():
            # The mapped array is read-only; no code here writes to it.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(inputs)
        if self.device.type == "cpu":
            return tensor
        free, _ = torch.cuda.mem_get_info(self.device)
        return tensor.to(self.device) if inputs.nbytes < free / 2 else tensor

    def part(self, sampled: Sampled, some: slice | Indices) -> MicroBatch:
        """Return some of the sampled rows of the training set, which hold whole units, on the device."""
        rows = torch.from_numpy(sampled.rows[some])
        views = None if sampled.views is None else sampled.views[some]
        inputs, labels = self.batch(self.train, rows, views)
        part = inputs, labels, torch.ones_like(labels, dtype=torch.bool)
        return part if sampled.units is None else (*part, sampled.units[some])

    def views(self, *stream_parts: str | int, secret: bytes = b"") -> Views | None:
        """Return the random views of training images that the method asks for, drawn by a stream."""
        section = self.method.augmentations
        return Views(section, *stream_parts, secret=secret) if section else None

    @property
    def views_of_row(self) -> int:
        """How many rows a step reads of each example."""
        return self.method.augmentations.count if self.method.augmentations else 1

    @full_precision()
    def batch(
        self, examples: Examples, indices: Tensor, views: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a batch: inputs as the model reads them, and labels, both on the device.

        Args:
            examples: to choose from.
            indices: of the chosen examples, on the CPU, int64.
            views: one of each, as `Views.draw` returns them; None: as the data is stored.
        """
        chosen = self.on_device(indices)
        if examples.inputs.device.type == self.device.type:
            inputs = examples.inputs.index_select(0, examples.rows[chosen])
        else:
            inputs = self.on_device(examples.inputs.index_select(0, examples.rows[indices]))
        if views is not None:
            inputs = viewed(inputs, self.on_device(views))
        batch: Tensor = self.preprocess(inputs)
        return batch, examples.labels[chosen]

    def on_device(self, tensor: Tensor) -> Tensor:
        """Copy a tensor from the CPU to the device, without waiting."""
        return copied(tensor, self.device)

    def physical_batch(
        self,
        setting: PhysicalBatchSize,
        engine: GradientEngine,
        batch_size: int,
        rows_per_unit: int = 1,
    ) -> PhysicalBatch:
        """Return the physical batch, shared by all trials with the same B.

        On a GPU it is at most `usual_batch`, the size that few sampled batches exceed.

        Args:
            setting: of the study. With ``auto``, the usual size is tried, and halved until it fits.
            engine: computes the gradients.
            batch_size: B.
            rows_per_unit: the most rows of a unit in a batch, the smallest size.

        Raises:
            DoesNotFitError: a single example, or unit, does not fit.
        """
        key = setting, batch_size
        if key not in self._physical:
            if self.device.type == "cpu":
                size = ON_THE_CPU if setting == "auto" else setting
            else:
                usual = usual_batch(batch_size, self.train.protected) * rows_per_unit
                usual = min(usual, len(self.train.labels) * self.views_of_row)
                size = usual if setting == "auto" else min(setting, usual)
            physical = PhysicalBatch(size, self.drop_step, rows_per_unit)
            if setting == "auto" and self.device.type != "cpu":
                physical.fit(partial(self._try, engine))
                physical.size = processes.smallest(physical.size)
                log.info("%d examples at once", physical.size)
            self._physical[key] = physical
        return self._physical[key]

    def _try(self, engine: GradientEngine, size: int) -> None:
        """Compute gradients of the first examples while the memory of a step is allocated; drop all."""
        trainable = sum(each.numel() for each in engine.parameters.values())
        held = torch.empty(_STEP_BYTES * trainable, dtype=torch.uint8, device=self.device)
        inputs, labels = self.batch(self.train, torch.arange(size) % len(self.train.labels))
        mask = torch.ones_like(labels, dtype=torch.bool)
        engine.clipped_sum(inputs, labels, mask, NoClipping())
        self.drop_step()
        del held

    def drop_step(self) -> None:
        """Reset after an aborted step; the context of an audit overrides this."""

    def model(self, seed: int) -> nn.Module:
        """Return the model in its initial state for a seed, in eval mode (no dropout).

        All seeds share one model, so that all trials share its engines and compiled code.
        """
        if self._model is None or self._seed != seed:
            fresh = (
                build_model(self.backbone.folder, self.method, self.classes, seed)
                if self._features is None
                else build_head(self._features, self.classes)
            )
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
        """Return an engine for the per-example gradients of a model; each is made once.

        Args:
            name: as in the study: auto, expanded, bookkeeping and so on.
            model: from `model`.
            precision: of the forward and backward pass.
            compile: whether torch compiles them; only ``expanded`` supports it.
        """
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
