"""The fast engines: from per-example gradients, as they are cheapest to keep, to norms and sums."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from dpsweep.study.clipping import Clipping
from dpsweep.training.device import full_precision
from dpsweep.training.gradients.interface import (
    GradientSum,
    UnsupportedModelError,
    check_model,
    example_losses,
)
from dpsweep.training.gradients.per_example import Instantiated, PerExampleGradients, only_usable

# Gradients of up to that many numbers cost less to copy than to handle one by one.
_SMALL = 2**14


class FactoredEngine(ABC):
    """One forward and one backward pass for all examples; gradients come as `PerExampleGradients`.

    Attributes:
        sums: dtype in which scaled gradients are summed, at least.
    """

    sums: ClassVar[torch.dtype] = torch.float32

    def __init__(
        self,
        model: nn.Module,
        head_parameters: frozenset[str],
        *,
        autocast: torch.dtype | None = None,
    ):
        """Prepare a model; what the engine does not know is refused when it is met."""
        self.model = model
        self.parameters: Mapping[str, nn.Parameter] = check_model(model, head_parameters)
        self._head = head_parameters
        self._autocast = autocast
        self._layers = {
            name: type(model.get_submodule(name.rpartition(".")[0])).__name__
            for name in self.parameters
        }
        self._shared = _shared_parameters(model)

    @abstractmethod
    def _per_example(
        self, inputs: Tensor, labels: Tensor
    ) -> tuple[Tensor, list[PerExampleGradients]]:
        """Return the losses, and the gradients: each parameter once, head and others apart."""

    @full_precision()
    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping
    ) -> GradientSum:
        """See ``GradientEngine``."""
        losses, per_example = self._per_example(inputs, labels)
        gradients: dict[str, Tensor] = {}
        norms = _norms(per_example, losses)
        finite = norms.isfinite()
        usable = mask & finite
        factors = torch.where(usable, clipping.factors(norms), 0)
        factors = factors.to(torch.promote_types(factors.dtype, self.sums))
        while per_example:  # the memory of each is free once it is summed
            gradients |= per_example.pop().weighted_sums(factors, usable)
        return GradientSum(
            gradients=gradients,
            norms=torch.where(usable, norms, 0),
            losses=torch.where(mask, losses, 0),
            nonfinite=mask & ~finite,
        )

    @full_precision()
    def norms(self, inputs: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        losses, per_example = self._per_example(inputs, labels)
        total = _norms(per_example, losses)
        head = _norms((each for each in per_example if each.names[0] in self._head), losses)
        return torch.where(mask, total, 0), torch.where(mask, head, 0)

    @full_precision()
    def gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        _, per_example = self._per_example(inputs, labels)
        found: dict[str, Tensor] = {}
        while per_example:
            found |= per_example.pop().instantiated()
        rows = torch.cat([found[name].flatten(1) for name in self.parameters], dim=1)
        finite = rows.isfinite().all(1)
        return only_usable(finite, rows), ~finite

    def _losses(self, parameters: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """Run the model with other tensors in the place of its trainable parameters."""
        # torch would look for shared parameters in every step, and would not put those of a layer
        # with two names back.
        shared = {name: parameters[first] for name, first in self._shared.items()}
        model = partial(
            torch.func.functional_call, self.model, {**parameters, **shared}, tie_weights=False
        )
        return example_losses(model, inputs, labels, self._autocast)

    def _grouped(self, gradients: Mapping[str, Tensor]) -> list[PerExampleGradients]:
        """Return gradients as rows: many small ones together, head and others apart."""
        groups: dict[str | bool, dict[str, Tensor]] = {}
        for name, rows in gradients.items():
            small = rows[0].numel() <= _SMALL
            groups.setdefault(name in self._head if small else name, {})[name] = rows
        return [Instantiated(group) for group in groups.values()]

    def _check_used(self, gradients: Iterable[PerExampleGradients]) -> None:
        """Check that there are gradients of every trainable parameter, and each only once.

        Raises:
            UnsupportedModelError: naming the parameters that the forward pass leaves out, or uses
                in two ways, so that the norm is not known.
        """
        uses = Counter(name for each in gradients for name in each.names)
        if unused := sorted(self.parameters.keys() - uses.keys()):
            raise UnsupportedModelError(
                f"trainable parameters {unused} have no influence on the loss, so they have no "
                "per-example gradient: freeze them"
            )
        if several := sorted(name for name, count in uses.items() if count > 1):
            raise UnsupportedModelError(
                f"trainable parameters {several} are used more than once, so that their norms are "
                "not known from factors; engine auto takes one that instantiates them"
            )


def _shared_parameters(model: nn.Module) -> dict[str, str]:
    """Return the layers' further names of trainable parameters that several layers hold.

    The value is the name that ``named_parameters`` has. A layer that itself has several names, as
    where a network uses it at several places, counts once.
    """
    first: dict[nn.Parameter, str] = {}
    further = {}
    for layer, module in model.named_modules():
        for name, parameter in module.named_parameters(layer, recurse=False):
            known = first.setdefault(parameter, name)
            if known != name and parameter.requires_grad:
                further[name] = known
    return further


def _norms(gradients: Iterable[PerExampleGradients], like: Tensor) -> Tensor:
    squared = like.new_zeros(like.shape)
    for each in gradients:
        squared = squared + each.squared_norms()
    return squared.sqrt()
