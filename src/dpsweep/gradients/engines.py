"""The fast engines, which compute all per-example gradients at once.

Two use the rules: `ExpandedEngine` for few trainable parameters, and `BookkeepingEngine` for all.
`LinearEngine` is for a head on cached features, and `VmapEngine` for functions without a rule.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpsweep.gradients.engine import (
    FactoredEngine,
    GradientEngine,
    GradientSum,
    Rows,
    example_losses,
    full_precision,
    gradients_of,
)
from dpsweep.gradients.per_example import (
    Instantiated,
    OuterProducts,
    PerExampleGradients,
    only_usable,
    scaled,
    slices,
    sum_dtype,
)
from dpsweep.gradients.refusals import UnsupportedModelError
from dpsweep.gradients.rules import LINEAR
from dpsweep.gradients.tracked_parameters import (
    Constants,
    ForwardPass,
    RecordedPass,
    TrackedParameter,
    trains,
)
from dpsweep.gradients.units import Units, unit_starts
from dpsweep.study.clipping import Clipping
from dpsweep.study.messages import shorten

# Gradients of up to this many numbers are concatenated: copying costs less than separate calls.
_SMALL = 2**14
# Most numbers in the gradients of a chunk of `VmapEngine`: 256 MB on the CPU, elsewhere 2 GB.
_AT_ONCE = 2**26, 2**29


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
