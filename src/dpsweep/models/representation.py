"""Representations: the outputs of one layer of a frozen network, one vector per example."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from dpsweep.config import Features
from dpsweep.config.messages import unknown
from dpsweep.data.prepared import PADDING
from dpsweep.models.architecture import BackboneError
from dpsweep.models.architectures import find_head
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.models.transformation import transform

_TOKENS, _MAP = 3, 4


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
        if features.layer is not None:
            _module(network, features.layer).register_forward_hook(self._after)
        elif features.pooling is None:
            head = network.get_submodule(find_head(network).modules[0])
            head.register_forward_pre_hook(self._before)
        else:
            self._body().register_forward_hook(self._after)

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
        pooled = self._pooled(reached, inputs).float().contiguous()
        return transform(pooled, self._transformation)

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:  # noqa: ARG002
        self._stop(inputs)

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> None:  # noqa: ARG002
        self._stop(getattr(outputs, "last_hidden_state", outputs))

    def _stop(self, reached: Any) -> None:
        self._reached = reached[0] if isinstance(reached, tuple) else reached
        raise _ReachedError

    def _body(self) -> nn.Module:
        """Return the module of the network whose outputs its own head pools."""
        network: Any = self.network
        if isinstance(network, SequenceClassifier):
            body: nn.Module = network.network.base_model  # type: ignore[assignment]
            return body
        # The last layer before the head of timm's transformers normalises each token.
        if isinstance(getattr(network, "norm", None), nn.Module):
            last: nn.Module = network.norm
            return last
        raise BackboneError(
            f"features.pooling: found {self._pooling} without a layer; allowed: with the layer of "
            f"{type(network).__name__} whose outputs are pooled"
        )

    def _pooled(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        pooling = self._pooling
        if outputs.shape[2:].numel() == 1:
            return outputs.flatten(1)
        if outputs.dim() == _MAP and pooling != "token":
            last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
            return outputs.mean(dim=(1, 2) if last else (2, 3))
        if outputs.dim() == _TOKENS:
            if pooling is None and not self._reads_text:
                # timm's attribute for the pooling of a transformer.
                own = getattr(self.network, "global_pool", None)
                pooling = {"token": "token", "avg": "mean"}.get(str(own))  # type: ignore[assignment]
            if pooling == "token":
                return outputs[:, 0]
            if pooling == "mean":
                return self._mean(outputs, inputs)
        raise BackboneError(
            f"features.pooling: found {self._pooling or 'nothing'} for outputs of shape "
            f"{tuple(outputs.shape[1:])} for an example; allowed: token or mean for outputs (tokens, "
            "features), mean for outputs (channels, height, width)"
        )

    def _mean(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        if not self._reads_text:
            # The class token is not part of the image.
            return outputs[:, getattr(self.network, "num_prefix_tokens", 0) :].mean(dim=1)
        mask = (inputs != PADDING).unsqueeze(-1).to(outputs.dtype)
        return (outputs * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


class _ReachedError(Exception):
    """The end of a forward pass, raised where the rest of the pass is not needed."""


def _module(network: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = dict(network.named_modules())
    if name not in modules:
        blocks = [
            f"{parent}.{index}"
            for parent, module in modules.items()
            if isinstance(module, nn.ModuleList | nn.Sequential) and parent.count(".") <= _TOKENS
            for index in range(len(module))
            if len(module) > 1
        ]
        raise BackboneError(f"features.layer: {unknown(name, blocks or list(modules))}")
    return modules[name]


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
