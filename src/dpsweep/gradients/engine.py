"""The common base of all engines: clipping per-example gradients and summing them.

All fast engines clip and sum in `FactoredEngine.clipped_sum`. They differ in how they compute the
per-example gradients (`dpsweep.gradients.engines`). The engines `loop` and `opacus`, which serve for
comparison, have their own sums. `dpsweep.training.optimizer` adds the noise.

Only operations that torch's autocast considers safe (matrix products, convolutions) leave float32. TF32 is
never used. In every precision the sum over a batch and its noise are float64; parameters, per-example
norms, updates and the evaluation are float32.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsweep.gradients.per_example import PerExampleGradients, only_usable, sum_dtype
from dpsweep.gradients.refusals import check_model
from dpsweep.gradients.units import unit_starts, units_of
from dpsweep.study.clipping import Clipping, NoClipping
from dpsweep.study.section import Precision

_OUT_OF_MEMORY = (
    "out of memory",  # the driver, and torch's own error inside that of a compiler
    "ALLOC_FAILED",  # cuBLAS, cuDNN
    "ALLOCATION_FAILED",  # cuDNN 9
    # torch's message for a convolution if no algorithm of cuDNN has enough memory.
    "unable to find an engine to execute this computation",
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Make GPUs multiply float32 numbers exactly, not as TF32 with a mantissa of 10 bits.

    TF32, torch's default for convolutions, changes norms and sums, and so the sensitivity, by 1e-3.
    Autocast is not affected.
    """
    # torch's type stubs lack the second one.
    settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, precision in zip(settings, before, strict=True):
            each.fp32_precision = precision


@dataclass(frozen=True)
class GradientSum:
    """The scaled per-example gradients of a micro-batch, summed.

    With units, an example is a unit: there is one norm and one loss for each, and its gradient is the mean
    over its unmasked rows.

    Attributes:
        gradients: for each trainable parameter, the sum over unmasked examples of factor times
            gradient; float32, or float64 for a float64 parameter and from ``expanded`` and ``linear``.
        norms: norm of each example's gradient over all trainable parameters, before scaling,
            shape (physical_batch,); 0 where masked or not finite.
        head_norms: likewise over those of the head; 0 where masked.
        losses: cross entropy of each example, shape (physical_batch,); 0 where masked.
        nonfinite: unmasked examples whose gradient norm was not finite, shape (physical_batch,),
            bool. Their contribution to the sum is zero.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    head_norms: Tensor
    losses: Tensor
    nonfinite: Tensor


class Rows(NamedTuple):
    """The rows of a micro-batch; see `GradientEngine`."""

    inputs: Tensor
    labels: Tensor
    mask: Tensor
    units: Any = None

    @property
    def ids(self) -> Any:
        """The number of each row's unit."""
        return np.arange(len(self.labels)) if self.units is None else np.asarray(self.units)

    def part(self, first: int, last: int) -> "Rows":
        """Return the rows from one to before another."""
        return Rows(*(each[first:last] for each in (*self[:3], self.ids)))


class GradientEngine(ABC):
    """Per-example gradients of the cross entropy of ``model(inputs)``, which returns logits.

    Inputs are a tensor whose first dimension is the example, labels are int64 class indices, and mask
    is bool. Each has ``physical_batch`` rows; rows with a false mask are ignored. The model runs in
    its current mode (train or eval). Calls do not wait for the device, except in ``opacus`` and in
    the first call, which may compare engines.

    ``units`` has the number of each row's unit, shape (physical_batch,), integers on the CPU. Rows of a unit
    stand together, and count as one example: its gradient is their mean, which is scaled as a whole.
    Without ``units`` every row is an example (`dpsweep.gradients.units`).

    Attributes:
        parameters: the trainable parameters by name, in the model's order.
    """

    parameters: Mapping[str, nn.Parameter]
    by_example: ClassVar[bool] = False
    """Whether each example is computed alone, so that the network may reorder the rows of a batch."""

    def __init__(
        self,
        model: nn.Module,
        head_parameters: frozenset[str] = frozenset(),
        *,
        autocast: torch.dtype | None = None,
        compile: bool = False,
    ):
        """Prepare a model; see ``make_engine``. Calls raise an error for unsupported parts of the model.

        Raises:
            UnsupportedModelError: see `check_model`.
        """
        self.parameters = check_model(model, head_parameters)
        self.model = model
        self._head = head_parameters
        self._autocast = autocast
        self._compile = compile

    @abstractmethod
    def compute(self, rows: Rows, clipping: Clipping | None) -> GradientSum:
        """Compute `clipped_sum`; without ``clipping``, ``gradients`` is left empty."""

    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping, units: Any = None
    ) -> GradientSum:
        """Scale each example's gradient by ``clipping`` and sum them.

        Args:
            inputs: of the examples, shape (physical_batch, ...).
            labels: class indices, shape (physical_batch,), int64.
            mask: which examples count, shape (physical_batch,), bool.
            clipping: maps the norm of a gradient to its factor.
            units: whose row each is; None: each row is a unit.

        Raises:
            BatchError: the rows of a unit do not stand together.
        """
        return self.compute(Rows(inputs, labels, mask, units), clipping)

    def norms(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, units: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Return the norms over all trainable parameters, and over those of the head.

        Both have shape (physical_batch,), or (units,), and are 0 for masked examples. They are not finite
        where the gradient is not finite.

        Args:
            inputs: of the examples, shape (physical_batch, ...).
            labels: class indices, shape (physical_batch,), int64.
            mask: which examples count, shape (physical_batch,), bool.
            units: whose row each is; None: each row is a unit.

        Raises:
            BatchError: the rows of a unit do not stand together.
        """
        found = self.compute(Rows(inputs, labels, mask, units), None)
        return found.norms.masked_fill(found.nonfinite, torch.nan), found.head_norms

    def gradients(self, inputs: Tensor, labels: Tensor, units: Any = None) -> tuple[Tensor, Tensor]:
        """Return the per-example gradients themselves; for analysis, not for training.

        Returns:
            Gradients of shape (physical_batch, d), with the parameters concatenated in the model's
            order, and zero where not finite. Then which of them are not finite, (physical_batch,). With
            units, there is one for each unit.
        """
        found = self.alone(inputs, labels, units)
        rows = [
            torch.cat([each.gradients[name].flatten() for name in self.parameters])
            for each in found
        ]
        return torch.stack(rows), torch.cat([each.nonfinite for each in found])

    def alone(self, inputs: Tensor, labels: Tensor, units: Any = None) -> list[GradientSum]:
        """Return the gradient of each example, computed in a batch of one."""
        rows = Rows(inputs, labels, torch.ones_like(labels, dtype=torch.bool), units)
        starts = unit_starts(rows.ids, len(labels))
        return [self.compute(rows.part(*some), NoClipping()) for some in pairwise(starts)]


def example_losses(
    model: Callable[[Tensor], Tensor],
    inputs: Tensor,
    labels: Tensor,
    autocast: torch.dtype | None = None,
) -> Tensor:
    """Return the cross entropy of each example, at least in float32.

    Args:
        model: maps inputs to logits.
        inputs: of the examples, shape (physical_batch, ...).
        labels: class indices, shape (physical_batch,), int64.
        autocast: dtype of the model's pass where torch considers it safe.
    """
    with torch.autocast(inputs.device.type, dtype=autocast, enabled=autocast is not None):
        logits = model(inputs)
    return F.cross_entropy(logits.to(sum_dtype(logits)), labels, reduction="none")


def gradients_of(
    loss: Tensor, parameters: Iterable[Tensor], *, retain_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """Return the gradient of a loss by each parameter, None for those that its examples do not use."""
    wanted = tuple(parameters)
    if not loss.requires_grad:
        return (None,) * len(wanted)
    return torch.autograd.grad(loss, wanted, retain_graph=retain_graph, allow_unused=True)


class FactoredEngine(GradientEngine):
    """An engine that computes all per-example gradients at once, in the cheapest form to store.

    Attributes:
        sums: least precise dtype in which scaled gradients are summed.
    """

    sums: ClassVar[torch.dtype] = torch.float32

    @abstractmethod
    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        """Return the losses and the gradients: each parameter once, head and others separate."""

    @full_precision()
    def compute(self, rows: Rows, clipping: Clipping | None) -> GradientSum:
        """See ``GradientEngine``."""
        losses, per_example, mask = self._per_unit(rows)
        gradients: dict[str, Tensor] = {}
        squares = [(each.names[0] in self._head, each.squared_norms()) for each in per_example]
        norms = _norms([each for _, each in squares], losses)
        head_norms = _norms([each for of_head, each in squares if of_head], losses)
        finite = norms.isfinite()
        usable = mask & finite
        if clipping is not None:
            factors = torch.where(usable, clipping.factors(norms), 0)
            factors = factors.to(torch.promote_types(losses.dtype, self.sums))
            while per_example:  # pop frees the memory of each after its sum
                gradients |= per_example.pop().weighted_sums(factors, usable)
        return GradientSum(
            gradients=gradients,
            norms=torch.where(usable, norms, 0).to(losses.dtype),
            head_norms=torch.where(mask, head_norms, 0).to(losses.dtype),
            losses=torch.where(mask, losses, 0),
            nonfinite=mask & ~finite,
        )

    def _per_unit(self, rows: Rows) -> tuple[Tensor, list[PerExampleGradients], Tensor]:
        """Return the losses, the gradients and the mask of units, those of rows without units."""
        units = units_of(rows.units, rows.mask)
        losses, per_example = self._per_example(rows.inputs, rows.labels)
        if units is None:
            return losses, per_example, rows.mask
        gradients: list[PerExampleGradients] = []
        while per_example:  # pop frees the memory of the rows
            gradients[:0] = per_example.pop().by_unit(units)
        return units.mean(losses.where(rows.mask, 0)), gradients, units.counted

    @full_precision()
    def gradients(self, inputs: Tensor, labels: Tensor, units: Any = None) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        mask = torch.ones_like(labels, dtype=torch.bool)
        _, per_example, _ = self._per_unit(Rows(inputs, labels, mask, units))
        found: dict[str, Tensor] = {}
        while per_example:
            found |= per_example.pop().instantiated()
        rows = torch.cat([found[name].flatten(1) for name in self.parameters], dim=1)
        finite = rows.isfinite().all(1)
        return only_usable(finite, rows), ~finite


def _norms(squares: list[Tensor], like: Tensor) -> Tensor:
    return reduce(torch.add, squares).sqrt() if squares else torch.zeros_like(like)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that the memory of a device has run out.

    torch has a class for its own failed allocations. Failed allocations of its libraries, of the driver
    and of compiled code differ only in their messages.
    """
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(each in str(error) for each in _OUT_OF_MEMORY)
    )


def first_line(error: Exception) -> str:
    """Return the sentence of an error's message about memory; compilers put it last."""
    lines = str(error).splitlines() or [type(error).__name__]
    reasons = [line for line in lines if any(each in line for each in _OUT_OF_MEMORY)]
    return (reasons or lines)[0].partition(". ")[0]


def resolve_precision(
    setting: Literal["auto", "float32", "bfloat16"], engine: str, device: torch.device
) -> Precision:
    """Return the precision that a setting of the study means on a device.

    ``auto`` is bfloat16 on GPUs and with engines that support it, otherwise float32. A trial's key
    contains the returned value, never ``auto``.

    >>> resolve_precision("auto", "expanded", torch.device("cpu"))
    'float32'
    """
    if setting != "auto":
        return setting
    # Opacus computes norms in the precision of the forward pass.
    if engine == "opacus" or device.type != "cuda":
        return "float32"
    with torch.cuda.device(device):
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if native else "float32"


def autocast_dtype(precision: Precision) -> torch.dtype | None:
    """Return the argument ``autocast`` of engines."""
    return torch.bfloat16 if precision == "bfloat16" else None
