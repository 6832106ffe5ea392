"""A linear head on embeddings of another network, and normalisations of one vector at a time."""

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpsweep.study.backbones import BackboneError, GroupNorm

Transformation = Literal["layer-norm", "unit-norm", "group-norm"]


class Identity(nn.Module):
    """A linear head on vectors, which may be normalised one by one.

    Args:
        num_classes: outputs of the head.
        dimension: of the vectors.
        transformation: layer-norm: to mean 0 and variance 1 over the numbers of a vector; unit-norm: to
            length 1; group-norm: like layer-norm, over each of ``groups`` parts.
        groups: of neighbouring numbers, for group-norm.

    Raises:
        ValueError: an argument is out of its range.

    >>> import torch
    >>> network = Identity(num_classes=10, dimension=4, transformation="unit-norm")
    >>> network.normalised(torch.tensor([[0.0, 3.0, 4.0, 0.0]]))
    tensor([[0.0000, 0.6000, 0.8000, 0.0000]])
    """

    def __init__(
        self,
        num_classes: int,
        dimension: int,
        transformation: Transformation | None = None,
        groups: int | None = None,
    ):
        super().__init__()
        if transformation not in (None, "layer-norm", "unit-norm", "group-norm"):
            raise ValueError(
                f"found transformation {transformation!r}; allowed: layer-norm, unit-norm, group-norm"
            )
        if (groups is not None) != (transformation == "group-norm"):
            raise ValueError(
                f"found groups {groups} with transformation {transformation}; allowed: groups with "
                "group-norm, and only there"
            )
        self._transformation = (
            GroupNorm(kind="group-norm", groups=groups) if groups is not None else transformation
        )
        transform(torch.zeros(1, dimension), self._transformation)  # refuses other parts
        self.head = nn.Linear(dimension, num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the head, like networks of timm."""
        return self.head

    def forward(self, input: Tensor) -> Tensor:
        """Map vectors (B, dimension) to logits (B, num_classes)."""
        return cast(Tensor, self.head(self.normalised(input)))

    def normalised(self, vectors: Tensor) -> Tensor:
        """Return the inputs of the head, shape (B, dimension)."""
        return transform(vectors, self._transformation)


def transform(features: Tensor, transformation: str | GroupNorm | None) -> Tensor:
    """Apply a transformation of a study to float32 (N, features), one example at a time.

    Raises:
        BackboneError: the features cannot be divided into that many groups of two or more.
    """
    if transformation is None:
        return features
    if transformation == "unit-norm":
        return functional.normalize(features, dim=1)
    groups = transformation.groups if isinstance(transformation, GroupNorm) else 1
    width = features.shape[1]
    if width % groups or width == groups:
        raise BackboneError(
            f"groups: found {groups}; allowed: a divisor of the {width} features, and fewer than these: a "
            "number in a group of its own would become 0"
        )
    apart = features.reshape(-1, groups, width // groups)
    return functional.layer_norm(apart, apart.shape[2:]).flatten(1)
