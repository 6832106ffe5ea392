"""Representations: the outputs of one layer of a frozen network, one vector per example."""

import contextlib
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dpsweep.data.prepared import PADDING
from dpsweep.models.architectures import find_head
from dpsweep.models.featurisers import transform
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.study.messages import unknown
from dpsweep.study.networks import BackboneError, Features, Reduction

_TOKENS, _MAP = 3, 4


class Tap(NamedTuple):
    """The place in a network where features are read."""

    module: str
    """its name in ``network.named_modules()``"""
    side: Literal["input", "output"]
    """of the module"""


def tap_of(network: nn.Module, features: Features) -> Tap:
    """Return the place in a network where features are read.

    Raises:
        BackboneError: the network has no such layer, or its own pooling cannot be replaced.
    """
    if features.layer is not None:
        names = [each for each, _ in network.named_modules() if each]
        if features.layer not in names:
            raise BackboneError(f"features.layer: {unknown(features.layer, names)}")
        return Tap(features.layer, "output")
    if features.pooling is None:
        return Tap(find_head(network).modules[0], "input")
    if isinstance(network, SequenceClassifier):
        return Tap(f"network.{network.network.base_model_prefix}", "output")
    # The last layer before the head of timm's transformers normalises each token.
    if isinstance(getattr(network, "norm", None), nn.Module):
        return Tap("norm", "output")
    raise BackboneError(
        f"features.pooling: found {features.pooling} without a layer; allowed: with the layer of "
        f"{type(network).__name__} whose outputs are pooled"
    )


class Representation(nn.Module):
    """A network up to one of its layers, and the pooling of that layer's outputs.

    Args:
        network: made by `create`; it runs in its current mode.
        features: the layer, pooling and transformation.

    Raises:
        BackboneError: the network does not have this layer.
    """

    def __init__(self, network: nn.Module, features: Features) -> None:
        super().__init__()
        self.network = network
        self._pooling = features.pooling
        self._transformation = features.transformation
        self._reads_text = isinstance(network, SequenceClassifier)
        self._reached: Tensor | None = None
        self.reduction: Reduction = "none"
        """of the last batch"""
        self.tap = tap_of(network, features)
        module = network.get_submodule(self.tap.module)
        if self.tap.side == "input":
            module.register_forward_pre_hook(self._before)
        else:
            module.register_forward_hook(self._after)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map a batch of the network's inputs to float32 (B, features).

        The network runs up to the layer only.

        Raises:
            BackboneError: the outputs of the layer are not one vector for each example, and no pooling
                is set that makes them so.
        """
        with contextlib.suppress(_ReachedError):
            self.network(inputs)
        reached, self._reached = self._reached, None
        if reached is None:
            raise BackboneError(
                "features.layer: found one that the network does not call; allowed: one that it calls"
            )
        self.reduction = self._reduction_of(reached)
        pooled = self._pooled(reached, inputs).float().contiguous()
        return transform(pooled, self._transformation)

    @property
    def prefix_tokens(self) -> int:
        """The number of tokens before those of the image, which a mean of tokens leaves out."""
        return 0 if self._reads_text else int(getattr(self.network, "num_prefix_tokens", 0))

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:  # noqa: ARG002
        self._stop(inputs)

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:  # noqa: ARG002
        self._stop(getattr(outputs, "last_hidden_state", outputs))

    def _stop(self, reached: Any) -> None:
        self._reached = reached[0] if isinstance(reached, tuple) else reached
        raise _ReachedError

    def _reduction_of(self, outputs: Tensor) -> Reduction:
        pooling = self._pooling
        if outputs.shape[2:].numel() == 1:
            return "none"
        if outputs.dim() == _MAP and pooling != "token":
            last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
            return "mean_of_pixels_nhwc" if last else "mean_of_pixels"
        if outputs.dim() == _TOKENS:
            if pooling is None and not self._reads_text:
                # timm's attribute for the pooling of a transformer.
                own = getattr(self.network, "global_pool", None)
                pooling = {"token": "token", "avg": "mean"}.get(str(own))  # type: ignore[assignment]
            if pooling is not None:
                return "first_token" if pooling == "token" else "mean_of_tokens"
        raise BackboneError(
            f"features.pooling: found {self._pooling or 'nothing'} for outputs of shape "
            f"{tuple(outputs.shape[1:])} for an example; allowed: token or mean for outputs (tokens, "
            "features), mean for outputs (channels, height, width)"
        )

    def _pooled(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        match self.reduction:
            case "none":
                return outputs.flatten(1)
            case "first_token":
                return outputs[:, 0]
            case "mean_of_pixels":
                return outputs.mean(dim=(2, 3))
            case "mean_of_pixels_nhwc":
                return outputs.mean(dim=(1, 2))
        if not self._reads_text:
            return outputs[:, self.prefix_tokens :].mean(dim=1)
        mask = (inputs != PADDING).unsqueeze(-1).to(outputs.dtype)
        return (outputs * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


class _ReachedError(Exception):
    """The end of a forward pass, raised where the rest of the pass is not needed."""


@torch.no_grad()
def represent(network: Representation, inputs: Tensor) -> Tensor:
    """Compute the features of a batch; float32 (B, features).

    Raises:
        BackboneError: a feature is not finite.
    """
    features: Tensor = network(inputs)
    if not bool(features.isfinite().all()):
        raise BackboneError("the network gives features that are not finite numbers")
    return features
