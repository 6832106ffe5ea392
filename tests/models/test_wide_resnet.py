import pytest
import torch
from timm.layers import ScaledStdConv2d

from dpsweep.models.wide_resnet import StandardizedConv2d, WideResNet


def test_parameters_are_those_of_the_reference() -> None:
    # Printed by jax_privacy for depth 16, width 4, 10 classes.
    assert sum(each.numel() for each in WideResNet(10).parameters()) == 2_753_818


def test_resolution_falls_twice() -> None:
    model = WideResNet(10, depth=16, width=1)
    assert model.blocks(model.stem(torch.zeros(1, 3, 32, 32))).shape == (1, 64, 8, 8)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_standardised_convolution_agrees_with_timm(kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    ours = StandardizedConv2d(6, 8, kernel, stride)
    theirs = ScaledStdConv2d(6, 8, kernel, stride=stride, padding=kernel // 2, gamma=1.0)
    torch.nn.init.normal_(ours.gain)
    torch.nn.init.normal_(ours.bias)  # type: ignore[arg-type]
    with torch.no_grad():
        theirs.weight.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)
        theirs.gain.copy_(ours.gain.view_as(theirs.gain))
    images = torch.randn(2, 6, 9, 9)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-3, atol=1e-4)


def test_constant_weights_stay_finite() -> None:
    convolution = StandardizedConv2d(3, 4, 3)
    torch.nn.init.constant_(convolution.weight, 2.0)
    output = convolution(torch.randn(1, 3, 5, 5))
    output.sum().backward()
    assert torch.all(output == 0)
    assert torch.isfinite(convolution.weight.grad).all()  # type: ignore[arg-type]
