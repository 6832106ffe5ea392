"""Transformations of feature vectors, one example at a time, so that they cost no privacy."""

from torch import Tensor
from torch.nn import functional

from dpsweep.models.architecture import BackboneError
from dpsweep.study.backbones import GroupNorm


def transform(features: Tensor, transformation: str | GroupNorm | None) -> Tensor:
    """Apply a transformation of a study to float32 (N, features), one example at a time.

    Raises:
        BackboneError: the features cannot be divided into that many groups of two or more.
    """
    match transformation:
        case None:
            return features
        case GroupNorm(groups=groups):
            width = features.shape[1]
            # A number in a group of its own would become 0.
            if width % groups or width == groups:
                raise BackboneError(
                    f"features.transformation.groups: found {groups}; allowed: a divisor of the {width} "
                    "features of the network, and fewer than these"
                )
            apart = features.reshape(-1, groups, width // groups)
            return functional.layer_norm(apart, apart.shape[2:]).flatten(1)
        case "layer-norm":
            return functional.layer_norm(features, features.shape[1:])
        case "unit-norm":
            return functional.normalize(features, dim=1)
    raise ValueError(
        f"transformation {transformation!r}: choose layer-norm, unit-norm or GroupNorm"
    )
