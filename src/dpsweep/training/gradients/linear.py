"""The engine for a linear layer alone: a head on features that are computed once."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpsweep.study.clipping import Clipping
from dpsweep.training.device import full_precision
from dpsweep.training.gradients.interface import GradientEngine, GradientSum, UnsupportedModelError
from dpsweep.training.gradients.per_example import only_usable, scaled


class LinearEngine(GradientEngine):
    """Norms and sums of a softmax layer in closed form, without autograd.

    With the residual ``r = softmax(W x + b) - onehot(y)`` the gradient of an example is the outer
    product of r and (x, 1). So its norm is ``|r| sqrt(|x|^2 + 1)``, and the sum over examples with
    factors c is ``(c r)^T (x, 1)``: two products of matrices, and nothing of the size of a gradient
    for any one example (Goodfellow 2015, "Efficient Per-Example Gradient Computations").

    Everything is float64 (a tenth more than float32 on a CPU; on a GPU it is not measured): an
    example's gradient and the sum then do not depend on the example's place in a micro-batch.
    """

    def __init__(
        self,
        model: nn.Module,
        head_parameters: frozenset[str] = frozenset(),
        *,
        autocast: torch.dtype | None = None,
    ):
        """Prepare a linear layer whose weight and bias train.

        Args:
            model: the layer.
            head_parameters: everything is the head, whatever is named here.
            autocast: dtype of the product that gives the logits; by default float64.

        Raises:
            UnsupportedModelError: the model is something else.
        """
        trains = {name for name, each in model.named_parameters() if each.requires_grad}
        if not isinstance(model, nn.Linear) or trains != {"weight", "bias"}:
            raise UnsupportedModelError(
                f"engine 'linear' knows a linear layer whose weight and bias train, found "
                f"{type(model).__name__} with {', '.join(sorted(trains)) or 'nothing'} that trains"
            )
        super().__init__(model, frozenset(trains), autocast=autocast)
        self._layer = model

    @torch.no_grad()
    @full_precision()
    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping
    ) -> GradientSum:
        """See ``GradientEngine``."""
        inputs = inputs.double()
        losses, residuals, norms = self._gradients(inputs, labels)
        finite = norms.isfinite()
        counted = finite & mask
        norms = torch.where(counted, norms, 0.0)
        factors = torch.where(counted, clipping.factors(norms), 0.0)
        # A gradient that is not finite is left out, even if 0 times it would be NaN.
        kept = scaled(residuals, factors, counted)
        return GradientSum(
            gradients={
                "weight": kept.T @ only_usable(counted, inputs),
                "bias": kept.sum(dim=0),
            },
            norms=norms.float(),
            losses=torch.where(mask, losses, 0.0).float(),
            nonfinite=mask & ~finite,
        )

    @torch.no_grad()
    @full_precision()
    def norms(self, inputs: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``; everything is the head."""
        _, _, norms = self._gradients(inputs.double(), labels)
        norms = torch.where(mask, norms, 0.0).float()
        return norms, norms

    @torch.no_grad()
    @full_precision()
    def gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        inputs = inputs.double()
        _, residuals, _ = self._gradients(inputs, labels)
        weights = residuals[:, :, None] * inputs[:, None, :]
        rows = torch.cat([weights.flatten(1), residuals], dim=1).float()
        finite = rows.isfinite().all(1)
        return only_usable(finite, rows), ~finite

    def _gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return losses, residuals (examples, classes), and norms of gradients, in float64."""
        weight, bias = self._layer.weight, self._layer.bias
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
        lengths = torch.linalg.vector_norm(inputs, dim=1).square_().add_(1).sqrt_()
        return losses, residuals, torch.linalg.vector_norm(residuals, dim=1).mul_(lengths)
