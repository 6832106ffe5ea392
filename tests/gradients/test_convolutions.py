"""Per-example gradients of convolutions, for each way to compute them."""

from typing import Any

import pytest
import torch
from tests.gradients.reference import check
from tests.gradients.tiny_models import Case
from timm.layers import StdConv2d
from torch import nn

from dpsweep.gradients import per_example
from dpsweep.gradients.per_example import Derived
from dpsweep.models.wide_resnet import StandardizedConv2d

# Input channels, output channels, and the size of images.
SIZES = {"few pixels": (4, 6, 7, 7), "many pixels": (4, 6, 15, 15), "many channels": (16, 48, 3, 4)}
# Kernel, stride, padding, dilation and groups.
SETTINGS: list[tuple[Any, ...]] = [
    *(((1, 1), 1, 0, 1, 1), ((3, 3), 1, 0, 1, 1), ((2, 3), 1, 1, 1, 1), ((2, 3), 2, 1, 1, 1)),
    *(((2, 3), 1, 2, 2, 1), ((2, 3), 1, (0, 1), 1, 1), ((2, 3), 1, 1, 1, 2), ((2, 3), 2, 1, 2, 2)),
    *(((2, 4), 1, "same", 1, 1), ((3, 2), 1, "same", (1, 3), 2)),
]


def check_convolution(
    convolution: nn.Conv2d, image: list[int], tolerance: float = 1e-10, *, silent: bool = False
) -> None:
    """Compare a convolution with a head with the reference; if ``silent``, a gain is zero."""
    random = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        convolution, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(3)
    ).double()
    inputs = torch.randn(4, *image, generator=random, dtype=torch.float64)
    model(inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random))
        if silent:
            convolution.gain[0] = 0
    head = frozenset({"4.weight", "4.bias"})
    case = Case(model, head, inputs, torch.arange(4) % 3, torch.arange(4) < 3)
    check(case, "bookkeeping", tolerance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_gradients_equal_the_reference(size: str, setting: tuple[Any, ...]) -> None:
    channels, out, *image = SIZES[size]
    check_convolution(nn.Conv2d(channels, out, *setting), [channels, *image])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("stride", "chunk"), [(1, per_example._AT_ONCE[0]), (2, 1)])
@pytest.mark.parametrize("kind", ["BiT", "BiT in groups", "gains", "a gain of zero"])
def test_gradients_of_standardised_weights(
    kind: str, size: str, stride: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their norms have a closed form, except for groups of channels."""
    monkeypatch.setattr(per_example, "_AT_ONCE", (chunk, chunk))
    channels, out, *image = SIZES[size]
    groups = 1 + (kind == "BiT in groups")
    if groups == 1:
        monkeypatch.setattr(Derived, "squared_norms", None)
    if "gain" in kind:
        convolution: nn.Conv2d = StandardizedConv2d(channels, out, 3, stride)
    else:
        convolution = StdConv2d(channels, out, 3, stride, padding=1, groups=groups)
    silent = kind == "a gain of zero"
    check_convolution(convolution, [channels, *image], 1e-8, silent=silent)
