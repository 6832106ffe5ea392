"""What the fast engines share: from per-example gradients in some form to norms and sums."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpsweep.training.clipping import Clipping
from dpsweep.training.gradients.checks import check_model
from dpsweep.training.gradients.forms import Form, Rows
from dpsweep.training.gradients.interface import GradientSum, UnsupportedModelError, example_losses

# Gradients of up to that many numbers cost less to copy than to handle one by one.
_SMALL = 2**14


class FactoredEngine(ABC):
    """One forward and one backward pass for all examples; gradients come as `Form`."""

    def __init__(
        self, model: nn.Module, head_parameters: frozenset[str], autocast: torch.dtype | None
    ):
        self.model = model
        self.parameters: Mapping[str, nn.Parameter] = check_model(model, head_parameters)
        self._head = head_parameters
        self._autocast = autocast

    @abstractmethod
    def _per_example(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, list[Form]]:
        """Return the losses, and forms that hold every parameter once, head and others apart."""

    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping
    ) -> GradientSum:
        """See ``GradientEngine``."""
        losses, forms = self._per_example(inputs, labels)
        gradients: dict[str, Tensor] = {}
        with _full_precision():
            norms = _norms(forms, losses)
            finite = norms.isfinite()
            usable = mask & finite
            factors = torch.where(usable, clipping.factors(norms), 0)
            while forms:  # the memory of each is free once it is summed
                gradients |= forms.pop().weighted_sums(factors, usable)
        return GradientSum(
            gradients=gradients,
            norms=torch.where(usable, norms, 0),
            losses=torch.where(mask, losses, 0),
            nonfinite=mask & ~finite,
        )

    def norms(self, inputs: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        losses, forms = self._per_example(inputs, labels)
        with _full_precision():
            total = _norms(forms, losses)
            head = _norms((form for form in forms if form.names[0] in self._head), losses)
        return torch.where(mask, total, 0), torch.where(mask, head, 0)

    def _losses(self, parameters: Mapping[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """Run the model with other tensors in the place of its trainable parameters."""
        enabled = self._autocast is not None
        with torch.autocast(inputs.device.type, dtype=self._autocast, enabled=enabled):
            # Ties were refused, and looking for them again costs more than a small model's step.
            logits = torch.func.functional_call(
                self.model, dict(parameters), (inputs,), tie_weights=False
            )
        return example_losses(logits, labels)

    def _grouped(self, gradients: Mapping[str, Tensor]) -> list[Form]:
        """Return gradients as rows: many small ones together, head and others apart."""
        groups: dict[str | bool, dict[str, Tensor]] = {}
        for name, rows in gradients.items():
            small = rows[0].numel() <= _SMALL
            groups.setdefault(name in self._head if small else name, {})[name] = rows
        return [Rows(group) for group in groups.values()]


@contextmanager
def _full_precision() -> Iterator[None]:
    """Let GPUs multiply float32 numbers as such, not as TF32 with a mantissa of 10 bits.

    Otherwise norms and sums differ by 1e-3, and so does the sensitivity. TF32 is torch's default
    for convolutions.
    """
    # torch's stubs lack the latter.
    settings = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, precision in zip(settings, before, strict=True):
            each.fp32_precision = precision


def check_used(parameters: Mapping[str, nn.Parameter], forms: Iterable[Form]) -> None:
    """Check that forms hold the gradients of every trainable parameter, and each only once.

    Raises:
        UnsupportedModelError: naming the parameters that the forward pass leaves out, or uses in
            two ways, so that the norm is not that of one form.
    """
    uses = Counter(name for form in forms for name in form.names)
    if unused := sorted(parameters.keys() - uses.keys()):
        raise UnsupportedModelError(
            f"trainable parameters {unused} have no influence on the loss, so they have no "
            "per-example gradient: freeze them"
        )
    if several := sorted(name for name, count in uses.items() if count > 1):
        raise UnsupportedModelError(
            f"trainable parameters {several} are used by more than one layer: freeze them, or "
            "choose engine 'loop'"
        )


def _norms(forms: Iterable[Form], like: Tensor) -> Tensor:
    squared = like.new_zeros(like.shape)
    for form in forms:
        squared = squared + form.squared_norms()
    return squared.sqrt()
