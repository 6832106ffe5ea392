"""The two engines that use the rules: one for few trainable parameters, one for all."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from dpsweep.training.gradients.factored import FactoredEngine
from dpsweep.training.gradients.per_example import OuterProducts, PerExampleGradients
from dpsweep.training.gradients.recorded import RecordedUses
from dpsweep.training.gradients.rules import BOOKKEEPING, EXPANDED, LINEAR
from dpsweep.training.gradients.uses import TrackedParameter, Uses, trains


class ExpandedEngine(FactoredEngine):
    """For FiLM, LoRA, head: every example gets its own copy of the trainable parameters.

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
        super().__init__(model, head_parameters, autocast=autocast)
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
    def __init__(
        self,
        examples: int,
        layers: Mapping[str, str],
        copies: dict[str, Tensor],
        probes: dict[str, Tensor],
    ):
        super().__init__("expanded", EXPANDED, examples, layers)
        self._copies = copies
        self._probes = probes
        self.features: dict[str, Tensor] = {}

    def copies(self, parameter: Tensor | None) -> Tensor | None:
        return self._copies[parameter.parameter_name] if trains(parameter) else None

    def keeps_factors(self, x: Tensor, weight: Tensor) -> bool:
        return trains(weight) and x.dim() == 2 and len(x) == self.examples

    def outer_products(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert trains(weight)  # noqa: S101 (see keeps_factors)
        name = weight.parameter_name
        if name in self.features:
            raise self.refusal(weight, "is used twice")
        self.features[name] = x.detach()
        y = self.layer(LINEAR, x, weight.value.flatten(1), bias)
        # The probe is zero, and its gradient is that of the layer's output.
        return y + self._probes[name]


class BookkeepingEngine(FactoredEngine):
    """For all parameters: one backward pass, from which norms and sum are both made (Bu et al. 2023).

    The forward pass records the inputs of all linear, convolutional and embedding layers. One
    backward pass returns the gradients of their outputs (and computes no weight gradients). From
    these two factors come the norms and then the clipped sum, without a second backward pass and
    without instantiating per-example gradients. Where these are smaller than the factors (linear
    layers of narrow networks), the backward pass returns them instead.

    Weights that the model computes from parameters before it uses them, as in weight-standardised
    convolutions or tables of relative positions, get their per-example gradients through that
    computation.
    """

    def __init__(
        self,
        model: nn.Module,
        head_parameters: frozenset[str],
        *,
        autocast: torch.dtype | None = None,
    ):
        """Prepare a model; what has no rule is refused when it is met."""
        super().__init__(model, head_parameters, autocast=autocast)
        # What is the same for all examples: buffers, and parameters that do not train.
        self._constants = frozenset(
            id(each) for each in (*model.buffers(), *model.parameters()) if not each.requires_grad
        )

    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        uses = RecordedUses(BOOKKEEPING, len(inputs), self._layers, self._constants)
        with torch.enable_grad():
            tracked = {
                name: TrackedParameter.of(name, each, uses)
                for name, each in self.parameters.items()
            }
            losses = self._losses(tracked, inputs, labels)
            rows, gradients = uses.gradients(losses.sum())
        gradients += self._grouped(rows)
        self._check_used(gradients)
        return losses.detach(), gradients
