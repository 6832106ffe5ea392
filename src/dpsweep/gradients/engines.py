"""Engines: they clip the gradient of each example, and sum them.

The fast ones clip and sum in `FactoredEngine.compute`, and differ in how they compute the per-example
gradients. Two use the rules: `ExpandedEngine` for few trainable parameters, and `BookkeepingEngine` for all.
`LinearEngine` is for a head on cached features, and `VmapEngine` for functions without a rule. `LoopEngine`
and `dpsweep.gradients.opacus`, which serve for comparison, have their own sums. `dpsweep.training.optimizer`
adds the noise.

Only operations that torch's autocast considers safe (matrix products, convolutions) leave float32. TF32 is
never used. In every precision the sum over a batch and its noise are float64; parameters, per-example
norms, updates and the evaluation are float32.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import islice, pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpsweep.gradients.per_example import (
    Instantiated,
    OuterProducts,
    PerExampleGradients,
    only_usable,
    scaled,
    slices,
    sum_dtype,
)
from dpsweep.gradients.refusals import UnsupportedModelError, check_model
from dpsweep.gradients.rules import LINEAR
from dpsweep.gradients.tracked_parameters import (
    Constants,
    ForwardPass,
    RecordedPass,
    TrackedParameter,
    trains,
)
from dpsweep.gradients.units import Units, unit_starts, units_of
from dpsweep.study.clipping import Clipping, NoClipping
from dpsweep.study.messages import shorten
from dpsweep.study.section import Precision

# Gradients of up to this many numbers are concatenated: copying costs less than separate calls.
_SMALL = 2**14
# Most numbers in the gradients of a chunk of `VmapEngine`: 256 MB on the CPU, elsewhere 2 GB.
_AT_ONCE = 2**26, 2**29


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


class LinearEngine(FactoredEngine):
    """Norms and sums of a softmax layer in closed form, without autograd.

    Everything is float64, so gradients and sums do not depend on an example's place in a micro-batch.
    On a CPU this takes a tenth longer than float32; on a GPU it is not measured.
    """

    sums: ClassVar[torch.dtype] = torch.float64

    def __init__(
        self, model: nn.Module, head_parameters: frozenset[str] = frozenset(), **options: Any
    ):
        """Prepare a linear layer whose weight and bias train.

        Args:
            model: the layer.
            head_parameters: ignored, because the whole layer is the head.
            options: see ``GradientEngine``. Without autocast, logits are float64.

        Raises:
            UnsupportedModelError: the model is not such a layer.
        """
        trains = {name for name, each in model.named_parameters() if each.requires_grad}
        if not isinstance(model, nn.Linear) or trains != {"weight", "bias"}:
            raise UnsupportedModelError(
                f"engine 'linear' needs a linear layer whose weight and bias train, found "
                f"{type(model).__name__} with {', '.join(sorted(trains)) or 'nothing'} that trains"
            )
        super().__init__(model, frozenset(trains), **options)

    @torch.no_grad()
    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        inputs = inputs.double()
        weight, bias = self.parameters["weight"], self.parameters["bias"]
        if self._autocast is None:
            logits = F.linear(inputs, weight.double(), bias.double())
        else:
            with torch.autocast(inputs.device.type, dtype=self._autocast):
                logits = F.linear(inputs.float(), weight, bias).double()
        log_probabilities = F.log_softmax(logits, dim=1)
        chosen = labels[:, None]
        losses = -log_probabilities.gather(1, chosen).squeeze(1)
        residuals = log_probabilities.exp_()
        residuals.scatter_add_(1, chosen, residuals.new_full((), -1.0).expand_as(chosen))
        return losses.float(), [SoftmaxGradients(inputs, residuals)]


@dataclass(frozen=True)
class SoftmaxGradients(PerExampleGradients):
    """Gradients of a softmax layer's weight and bias.

    With the residual ``r = softmax(W x + b) - onehot(y)`` the gradient of an example is the outer
    product of r and (x, 1). So its norm is ``|r| sqrt(|x|^2 + 1)``, and the sum over examples with
    factors c is ``(c r)^T (x, 1)``. This needs two matrix products and no per-example gradient in
    memory (Goodfellow 2015, "Efficient Per-Example Gradient Computations").

    Attributes:
        inputs: x, shape (examples, features), float64.
        residuals: r, shape (examples, classes), float64.
    """

    inputs: Tensor
    residuals: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """See ``PerExampleGradients``."""
        return "weight", "bias"

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        lengths = torch.linalg.vector_norm(self.inputs, dim=1).square_().add_(1).sqrt_()
        norms: Tensor = torch.linalg.vector_norm(self.residuals, dim=1).mul_(lengths)
        return norms.square_()

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        kept = scaled(self.residuals, factors, usable)
        return {"weight": kept.T @ only_usable(usable, self.inputs), "bias": kept.sum(dim=0)}

    def instantiated(self) -> dict[str, Tensor]:
        """See ``PerExampleGradients``; in float32."""
        weights = self.residuals[:, :, None] * self.inputs[:, None, :]
        return {"weight": weights.float(), "bias": self.residuals.float()}

    def by_unit(self, units: Units) -> Sequence[PerExampleGradients]:
        """See ``PerExampleGradients``."""
        shape = torch.Size((self.residuals.shape[1], self.inputs.shape[1]))
        weight = OuterProducts("weight", shape, self.inputs[:, None], self.residuals[:, None])
        return [*weight.by_unit(units), *Instantiated({"bias": self.residuals}).by_unit(units)]


class StatelessEngine(FactoredEngine):
    """An engine that runs a model with other tensors in place of its trainable parameters."""

    def __init__(
        self, model: nn.Module, head_parameters: frozenset[str] = frozenset(), **options: Any
    ):
        """Prepare a model; see ``GradientEngine``."""
        super().__init__(model, head_parameters, **options)
        # The kind of layer of each trainable parameter, for messages.
        self._layers = {
            name: type(model.get_submodule(name.rpartition(".")[0])).__name__
            for name in self.parameters
        }
        self._shared = _shared_parameters(model)

    def _losses(self, parameters: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the losses of the model with ``parameters`` in place of its trainable ones."""
        # With tie_weights, torch would search for shared parameters in every step, and would not
        # restore those of a layer that has two names.
        shared = {name: parameters[first] for name, first in self._shared.items()}
        model = partial(
            torch.func.functional_call, self.model, {**parameters, **shared}, tie_weights=False
        )
        return example_losses(model, inputs, labels, self._autocast)

    def _grouped(self, gradients: Mapping[str, Tensor]) -> list[PerExampleGradients]:
        """Return gradients as rows: the small ones in one group for the head and one for the rest."""
        groups: dict[str | bool, dict[str, Tensor]] = {}
        for name, rows in gradients.items():
            small = rows[0].numel() <= _SMALL
            groups.setdefault(name in self._head if small else name, {})[name] = rows
        return [Instantiated(group) for group in groups.values()]

    def _check_used(self, gradients: Iterable[PerExampleGradients]) -> None:
        """Check that every trainable parameter has exactly one gradient.

        Raises:
            UnsupportedModelError: naming parameters that have none, because their use was not
                recorded, or several, so that their norm is not known.
        """
        counts = Counter(name for each in gradients for name in each.names)
        unused = self.parameters.keys() - counts.keys()
        several = {name for name, count in counts.items() if count > 1}
        if unused or several:
            use = "more than once, so that their norms are not known from factors"
            if unused:
                use = "where this engine does not see it (in a custom backward pass, or in TorchScript)"
            names = shorten(map(repr, sorted(unused or several)))
            found = f"trainable parameters {names} are used {use}"
            raise UnsupportedModelError(f"{found}; use engine auto", because=found)


def _shared_parameters(model: nn.Module) -> dict[str, str]:
    """Return the other names of trainable parameters that several layers share.

    Each maps to the name in ``named_parameters``. A layer that has several names itself, because a
    network uses it at several places, counts once.
    """
    first: dict[nn.Parameter, str] = {}
    further = {}
    for layer, module in model.named_modules():
        for name, parameter in module.named_parameters(layer, recurse=False):
            known = first.setdefault(parameter, name)
            if known != name and parameter.requires_grad:
                further[name] = known
    return further


class ExpandedEngine(StatelessEngine):
    """An engine for FiLM, LoRA and heads: every example gets its own copy of the parameters.

    The copies are views, which use no memory. Autograd returns the gradient of each copy: these are
    the per-example gradients. For a linear layer on one feature vector per example (the head) they
    are never instantiated: autograd returns the gradients of the layer's outputs, which with the
    features give norm and sum in closed form (see `OuterProducts`).

    There are no hooks, and the forward pass is a function of tensors only. So it can be compiled with
    its backward pass (``compile=True``); physical batches of fixed shape compile once.

    Sums are float64, which costs little for few parameters. So a sum does not depend on how examples
    are divided into micro-batches.
    """

    sums: ClassVar[torch.dtype] = torch.float64

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        examples = len(inputs)
        copies = {
            name: each.detach().expand(examples, *each.shape).requires_grad_()
            for name, each in self.parameters.items()
        }
        probes = {
            name: each.new_zeros(()).expand(examples, len(each)).requires_grad_()
            for name, each in self.parameters.items()
            if each.shape[2:].numel() == 1 and each.dim() > 1
        }
        with torch.enable_grad():
            losses, features = self._forward(copies, probes, inputs, labels)
            leaves = [*copies.values(), *probes.values()]
            gradients = torch.autograd.grad(losses.sum(), leaves, allow_unused=True)
        outputs = dict(zip(probes, gradients[len(copies) :], strict=True))
        rows = dict(zip(copies, gradients[: len(copies)], strict=True))
        per_example: list[PerExampleGradients] = [
            OuterProducts(name, self.parameters[name].shape, features[name][:, None], each[:, None])
            for name, each in outputs.items()
            if each is not None
        ]
        per_example += self._grouped({k: each for k, each in rows.items() if each is not None})
        self._check_used(per_example)
        return losses.detach(), per_example

    @cached_property
    def _forward(self) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
        return torch.compile(self._run, fullgraph=True) if self._compile else self._run

    def _run(
        self, copies: dict[str, Tensor], probes: dict[str, Tensor], inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses, and the inputs of linear layers by the name of the weight."""
        forward_pass = ExpandedPass(len(inputs), self._layers, copies, probes)
        tracked = {
            name: TrackedParameter.of(name, each.detach(), forward_pass)
            for name, each in self.parameters.items()
        }
        losses = self._losses(tracked, inputs, labels)
        return losses, forward_pass.features


class ExpandedPass(ForwardPass):
    """A forward pass that reads copies of a parameter, one for each example."""

    engine = "expanded"

    def __init__(
        self,
        examples: int,
        layers: Mapping[str, str],
        copies: dict[str, Tensor],
        probes: dict[str, Tensor],
    ):
        """Begin a forward pass; copies and probes are by parameter."""
        super().__init__(examples, layers)
        self._copies = copies
        self._probes = probes
        self.features: dict[str, Tensor] = {}

    def copies(self, parameter: Tensor | None) -> Tensor | None:
        """See ``ForwardPass``."""
        return self._copies[parameter.parameter_name] if trains(parameter) else None

    def keeps_factors(self, x: Tensor, weight: Tensor) -> bool:
        """See ``ForwardPass``."""
        return trains(weight) and x.dim() == 2 and len(x) == self.examples

    def outer_products(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See ``ForwardPass``."""
        assert trains(weight)  # noqa: S101 (see keeps_factors)
        name = weight.parameter_name
        if name in self.features:
            raise self.refusal("is used twice", weight)
        self.features[name] = x.detach()
        y = self.layer(LINEAR, x, weight.value.flatten(1), bias)
        # The probe is zero; its gradient is the gradient of the layer's output.
        return y + self._probes[name]


class BookkeepingEngine(StatelessEngine):
    """An engine for all parameters: one backward pass gives norms and sum (Bu et al. 2023).

    The forward pass records the inputs of all linear, convolutional and embedding layers. One
    backward pass returns the gradients of their outputs, and computes no weight gradients. These two
    factors give the norms and then the clipped sum, without a second backward pass and without
    instantiating per-example gradients. Where the gradients are smaller than the factors (linear
    layers of narrow networks), the backward pass returns the gradients instead.

    Some models compute a weight from parameters before use, as in weight-standardised convolutions or
    tables of relative positions. Per-example gradients then go back through that computation.
    """

    @cached_property
    def _constants(self) -> frozenset[int]:
        """Ids of tensors that are the same for all examples: buffers and frozen parameters."""
        tensors = *self.model.buffers(), *self.model.parameters()
        return frozenset(id(each) for each in tensors if not each.requires_grad)

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        forward_pass = RecordedPass(len(inputs), self._layers, self._constants)
        with torch.enable_grad():
            tracked = {
                name: TrackedParameter.of(name, each, forward_pass)
                for name, each in self.parameters.items()
            }
            with Constants(forward_pass):
                losses = self._losses(tracked, inputs, labels)
            rows, gradients = forward_pass.gradients(losses.sum())
        gradients += self._grouped(rows)
        self._check_used(gradients)
        return losses.detach(), gradients


class VmapEngine(StatelessEngine):
    """An engine that applies ``torch.func.vmap`` to the gradient of one example.

    It supports every model that vmap supports, but instantiates every gradient, so it is slower and
    needs more memory. It divides micro-batches into chunks, which limits that memory.
    """

    by_example: ClassVar[bool] = True

    def compute(self, rows: Rows, clipping: Clipping | None) -> GradientSum:
        """See ``GradientEngine``."""
        parts = []
        total: dict[str, Tensor] = {}
        for chunk in self._chunks(rows):
            part = super().compute(chunk, clipping)
            if total:
                torch._foreach_add_(list(total.values()), [part.gradients[name] for name in total])
                part.gradients.clear()
            else:
                total = dict(part.gradients)
            parts.append(part)
        return GradientSum(
            gradients=total,
            norms=torch.cat([part.norms for part in parts]),
            head_norms=torch.cat([part.head_norms for part in parts]),
            losses=torch.cat([part.losses for part in parts]),
            nonfinite=torch.cat([part.nonfinite for part in parts]),
        )

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        def loss(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            value = self._losses(parameters, x[None], y[None]).sum()
            return value, value

        gradient = torch.func.vmap(torch.func.grad(loss, has_aux=True), in_dims=(None, 0, 0))
        shared = {name: each.detach() for name, each in self.parameters.items()}
        # The CPU's attention kernel has no vectorised form, and the plain one no autocast.
        plain = inputs.device.type == "cpu" and self._autocast is None
        with sdpa_kernel(SDPBackend.MATH) if plain else nullcontext():
            gradients, losses = gradient(shared, inputs, labels)
        return losses, self._grouped(gradients)

    def _chunks(self, rows: Rows) -> Iterator[Rows]:
        """Yield parts of a micro-batch that hold whole units."""
        starts = unit_starts(rows.ids, len(rows.labels))
        size = sum(each.numel() for each in self.parameters.values())
        size *= int(np.diff(starts).max())
        for some in slices(len(starts) - 1, size, rows.inputs.device, _AT_ONCE):
            yield rows.part(starts[some.start], starts[min(some.stop, len(starts) - 1)])


class LoopEngine(GradientEngine):
    """An engine that runs one forward and backward pass for each example, with plain autograd."""

    by_example: ClassVar[bool] = True

    @full_precision()
    def compute(self, rows: Rows, clipping: Clipping | None) -> GradientSum:
        """See ``GradientEngine``."""
        sums: dict[str, Tensor] = {}
        units = Units(rows.ids, rows.mask)
        norms, head_norms, losses = [], [], []
        for (loss, gradients), counted in zip(
            self._per_unit(rows, units), units.counted, strict=True
        ):
            norm = _norm(gradients.values())
            usable = counted & norm.isfinite()
            if clipping is not None:
                factor = clipping.factors(norm)
                for name, gradient in gradients.items():
                    scaled = torch.where(usable, factor * gradient, 0)
                    sums[name] = sums[name] + scaled if name in sums else scaled
            head = [each for name, each in gradients.items() if name in self._head]
            head_norms.append(_norm(head or [torch.zeros_like(loss)]))
            norms.append(norm)
            losses.append(loss)
        found = torch.stack(norms)
        return GradientSum(
            gradients=sums,
            norms=torch.where(found.isfinite(), found, 0),
            head_norms=torch.stack(head_norms),
            losses=torch.stack(losses),
            nonfinite=units.counted & ~found.isfinite(),
        )

    def _per_unit(self, rows: Rows, units: Units) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield the loss and the gradients of each unit: the means over its rows that count."""
        each_row = zip(
            self._per_example(rows.inputs, rows.labels), units.mask, units.weights, strict=True
        )
        for size in np.diff(units.starts):
            total: Tensor | None = None
            gradients: dict[str, Tensor] = {}
            for (loss, row), counts, weight in islice(each_row, int(size)):
                share = torch.where(counts, weight.to(loss.dtype) * loss, 0)
                total = share if total is None else total + share
                for name, each in row.items():
                    share = torch.where(counts, weight.to(each.dtype) * each, 0)
                    gradients[name] = gradients[name] + share if name in gradients else share
            assert total is not None  # noqa: S101 (no unit is empty)
            yield total, gradients

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield the loss and the gradients of each example."""
        for x, y in zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True):
            with torch.enable_grad():
                loss = example_losses(self.model, x, y, self._autocast).sum()
            found = gradients_of(loss, self.parameters.values())
            gradients = {
                # The gradient of an embedding may be sparse. There is none for what an example skips.
                name: torch.zeros_like(each, dtype=sum_dtype(each))
                if gradient is None
                else gradient.to_dense().to(sum_dtype(gradient))
                for (name, each), gradient in zip(self.parameters.items(), found, strict=True)
            }
            yield loss.detach(), gradients


def _norm(gradients: Iterable[Tensor]) -> Tensor:
    # torch's norm of a long float32 vector is off by up to 1e-3; its sum adds pairwise.
    return torch.stack([each.square().sum() for each in gradients]).sum().sqrt()


ENGINES: dict[str, type[GradientEngine]] = {
    "linear": LinearEngine,
    "expanded": ExpandedEngine,
    "bookkeeping": BookkeepingEngine,
    "vmap": VmapEngine,
    "loop": LoopEngine,
}
"""The engines by name, in the order in which ``auto`` tries them."""


# -- memory and precision ----------------------------------------------------------------------

_OUT_OF_MEMORY = (
    "out of memory",  # the driver, and torch's own error inside that of a compiler
    "ALLOC_FAILED",  # cuBLAS, cuDNN
    "ALLOCATION_FAILED",  # cuDNN 9
    # torch's message for a convolution if no algorithm of cuDNN has enough memory.
    "unable to find an engine to execute this computation",
)


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
