"""Hold what the trials of a cell share: the data on the device, the backbone, the device itself."""

import logging
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsweep.config import Method
from dpsweep.config.clipping import NoClipping
from dpsweep.data.prepared import PreparedDataset
from dpsweep.gradients import GradientEngine, make_engine
from dpsweep.gradients.precision import Precision, autocast_dtype, full_precision
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_head, build_model, head_parameter_names, trainable_parameters
from dpsweep.models.preprocess import make_preprocess
from dpsweep.training.device import default_device
from dpsweep.training.physical import ON_THE_CPU, PhysicalBatch, PhysicalBatchSize, usual_batch

log = logging.getLogger(__name__)

_TEST_BATCH = 512
_STEP_BYTES = 20
"""For each trainable parameter: the sum in float64, the last gradient, and two averages of Adam."""


@dataclass(frozen=True)
class Examples:
    """Some rows of an array of inputs, and their labels."""

    inputs: Tensor
    """(rows of the array, ...); on the device where it fits"""
    labels: Tensor
    """(examples,)"""
    rows: Tensor
    """(examples,), int64: the row of each in ``inputs``"""


class TrialContext:
    """Everything that the trials of a cell share: the data on the device, the backbone, the device itself.

    Args:
        data: the prepared dataset, or its features where the method trains a head on them.
        backbone: the prepared backbone.
        method: which parameters train.
        holdout: the share of training examples to select on instead of training on them.
        device: where to train; by default the first GPU, or the CPU where there is none.

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
        # How many features a head reads; None where the network runs.
        self._features = stored.shape[0] if stored.features else None
        self.preprocess: nn.Module = (
            make_preprocess(reads.mean, reads.std, stored.resize, stored.shape).to(self.device)
            if self._features is None
            else nn.Identity()
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
        self._physical: dict[tuple[PhysicalBatchSize, int], PhysicalBatch] = {}
        self.evaluated_at_once = PhysicalBatch(_TEST_BATCH, self.drop_step)

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

    @full_precision()
    def batch(self, examples: Examples, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Gather some examples: inputs as the model reads them, and labels, both on the device.

        Args:
            examples: from which.
            indices: on the CPU, int64.
        """
        chosen = self.on_device(indices)
        if examples.inputs.device.type == self.device.type:
            inputs = examples.inputs.index_select(0, examples.rows[chosen])
        else:
            inputs = self.on_device(examples.inputs.index_select(0, examples.rows[indices]))
        batch: Tensor = self.preprocess(inputs)
        return batch, examples.labels[chosen]

    def on_device(self, tensor: Tensor) -> Tensor:
        """Copy a tensor from the CPU to the device, from pinned memory: so nothing waits."""
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def physical_batch(
        self, setting: PhysicalBatchSize, engine: GradientEngine, batch_size: int
    ) -> PhysicalBatch:
        """How many examples are on the device at once; trials with the same B share what they find.

        On a GPU it is at most what nearly all batches have (`usual_batch`).

        Args:
            setting: of the study. With ``auto``, that many are tried, and halved until they fit.
            engine: computes the gradients.
            batch_size: B, of which physical batches are parts.

        Raises:
            DoesNotFitError: not even one example fits.
        """
        key = setting, batch_size
        if key not in self._physical:
            if self.device.type == "cpu":
                size = ON_THE_CPU if setting == "auto" else setting
            else:
                usual = usual_batch(batch_size, len(self.train.labels))
                size = usual if setting == "auto" else min(setting, usual)
            physical = PhysicalBatch(size, self.drop_step)
            if setting == "auto" and self.device.type != "cpu":
                physical.fit(partial(self._try, engine))
                log.info("%d examples at once", physical.size)
            self._physical[key] = physical
        return self._physical[key]

    def _try(self, engine: GradientEngine, size: int) -> None:
        """Compute gradients of the first examples beside what a step holds; throw all away."""
        trainable = sum(each.numel() for each in engine.parameters.values())
        held = torch.empty(_STEP_BYTES * trainable, dtype=torch.uint8, device=self.device)
        inputs, labels = self.batch(self.train, torch.arange(size))
        mask = torch.ones_like(labels, dtype=torch.bool)
        engine.clipped_sum(inputs, labels, mask, NoClipping())
        self.drop_step()
        del held

    def drop_step(self) -> None:
        """Forget what was computed of a step that begins again, as the context of an audit has to."""

    def model(self, seed: int) -> nn.Module:
        """The model in its initial state for a seed, in eval mode (no dropout).

        It is one model for all seeds, so that what is made for it once (engines, compiled code)
        serves all trials.
        """
        if self._model is None or self._seed != seed:
            fresh = self._build(seed)
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

    def _build(self, seed: int) -> nn.Module:
        if self._features is not None:
            return build_head(self._features, self.classes)
        return build_model(self.backbone.folder, self.method, self.classes, seed)

    def engine(
        self, name: str, model: nn.Module, precision: Precision = "float32", compile: bool = False
    ) -> GradientEngine:
        """The engine of a name for the per-example gradients of a model; each is made once.

        Args:
            name: as in the study: auto, expanded, bookkeeping and so on.
            model: from `model`.
            precision: of the forward and backward pass.
            compile: whether torch compiles them; only ``expanded`` can.
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
