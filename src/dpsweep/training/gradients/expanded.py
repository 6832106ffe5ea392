"""The engine for few trainable parameters: FiLM, LoRA, head."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsweep.training.gradients import layers
from dpsweep.training.gradients.factored import FactoredEngine, check_used
from dpsweep.training.gradients.per_example import OuterProducts, PerExampleGradients
from dpsweep.training.gradients.tracked import TrackedParameter, Uses, plain


class ExpandedEngine(FactoredEngine):
    """Every example gets its own copy of the trainable parameters.

    The copies are views, which cost no memory; autograd returns the gradient of each, and these
    are the per-example gradients. A linear layer on one feature vector an example (the head) never
    instantiates them: there autograd is asked for the gradients of the layer's outputs, and with
    the features these give norm and sum in closed form (see `OuterProducts`).

    There are no hooks, and the forward pass is a function of tensors alone, so it can be compiled
    (``compile=True``) with its backward pass: physical batches of fixed shape compile once.

    Few parameters can be summed in float64 at no cost that counts: then a sum does not depend on
    how examples are put into micro-batches.
    """

    sums: ClassVar[torch.dtype] = torch.float64

    def __init__(
        self,
        model: nn.Module,
        head_parameters: frozenset[str],
        *,
        autocast: torch.dtype | None = None,
        compile: bool = False,
    ):
        """Prepare a model; what has no rule is refused when it is met."""
        super().__init__(model, head_parameters, autocast)
        self._forward = torch.compile(self._run, fullgraph=True) if compile else self._run

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
            gradients = torch.autograd.grad(
                losses.sum(), [*copies.values(), *probes.values()], allow_unused=True
            )
        rows = {
            name: gradient
            for name, gradient in zip(copies, gradients, strict=False)
            if gradient is not None
        }
        per_example: list[PerExampleGradients] = [
            OuterProducts(name, self.parameters[name].shape, features[name][:, None], each[:, None])
            for name, each in zip(probes, gradients[len(copies) :], strict=True)
            if each is not None
        ]
        per_example += self._grouped(rows)
        check_used(self.parameters, per_example)
        return losses.detach(), per_example

    def _run(
        self, copies: dict[str, Tensor], probes: dict[str, Tensor], inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses, and the features that met a linear weight, by the weight's name."""
        uses = _ExpandedUses(len(inputs), self._layers, copies, probes)
        tracked = {
            name: TrackedParameter.of(name, each.detach(), uses)
            for name, each in self.parameters.items()
        }
        losses = self._losses(tracked, inputs, labels)
        return losses, uses.features


class _ExpandedUses(Uses):
    engine = "expanded"
    functions: ClassVar[Mapping[Any, str]] = {**Uses.functions, F.conv2d: "conv2d"}

    def __init__(
        self,
        examples: int,
        layers: Mapping[str, str],
        copies: dict[str, Tensor],
        probes: dict[str, Tensor],
    ):
        super().__init__(examples, layers)
        self._copies = copies
        self._probes = probes
        self.features: dict[str, Tensor] = {}

    def copies(self, parameter: Tensor | None) -> Tensor | None:
        """See ``Uses``."""
        return (
            self._copies[parameter.parameter_name]
            if isinstance(parameter, TrackedParameter)
            else None
        )

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute ``F.linear``: with copies for several tokens, with a probe for one vector."""
        x = self.by_example(self.batch(input, weight, bias))
        if x.dim() == 2 and isinstance(weight, TrackedParameter):
            return self._probed(x, weight, bias)
        copies = self.copies(weight), self.copies(bias)
        y: Tensor = layers.Linear.apply(x, plain(weight), plain(bias), *copies)
        return y.reshape(*input.shape[:-1], -1)

    def conv2d(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *settings: Any
    ) -> Tensor:
        """Compute ``F.conv2d`` for the head of a residual network: 1x1, after global pooling."""
        x = self.one_row_each(input, weight, bias)
        if not isinstance(weight, TrackedParameter) or x.shape[1:] != weight.shape[1:]:
            used = weight if isinstance(weight, TrackedParameter) else bias
            raise self.refusal(used, f"is used by conv2d() on an input of shape {tuple(x.shape)}")
        return self._probed(x.flatten(1), weight, bias)[:, :, None, None]

    def _probed(self, x: Tensor, weight: TrackedParameter, bias: Tensor | None) -> Tensor:
        """Apply a weight to one feature vector an example."""
        name = weight.parameter_name
        if name in self.features:
            raise self.refusal(weight, "is used twice")
        self.features[name] = x.detach()
        shared = weight.value.flatten(1), plain(bias)
        y = cast(Tensor, layers.Linear.apply(x, *shared, None, self.copies(bias)))
        # The probe is zero, and its gradient is that of the layer's output.
        return y + self._probes[name]
