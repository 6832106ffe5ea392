"""Per-example gradients of a convolution, in each of the ways in which they are computed."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gradients.reference import check
from tests.gradients.tiny_models import HEAD, Case
from timm.layers import StdConv2d
from torch import Tensor, nn

from dpsweep.gradients import per_example
from dpsweep.gradients.convolutions import Convolutions
from dpsweep.gradients.parametrizations import Derived

EXAMPLES = 5
# Input and output channels, and the size of images.
SIZES = {
    "few pixels": (4, 6, 7, 7),
    "many pixels": (4, 6, 33, 33),
    "many channels": (48, 192, 3, 4),
}


def one_by_one(
    inputs: Tensor, outputs: Tensor, weight: Tensor, settings: tuple[Any, ...]
) -> Tensor:
    rows = []
    for x, g in zip(inputs, outputs, strict=True):
        y = F.conv2d(x[None], weight, None, *settings)
        rows.append(torch.autograd.grad(y, weight, g[None])[0])
    return torch.stack(rows)


@pytest.mark.parametrize("chunk", [1, per_example._AT_ONCE[0]])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 3)])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [
        *((1, 1, 1, 1), (1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1), (1, (0, 1), 1, 1)),
        *((1, 1, 1, 2), (2, 1, 2, 2)),
    ],
)
def test_gradients_are_those_of_autograd_in_each_of_the_ways(
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    size: str,
    kernel: tuple[int, int],
    stride: int,
    padding: int | tuple[int, int],
    dilation: int,
    groups: int,
) -> None:
    monkeypatch.setattr(per_example, "_AT_ONCE", (chunk, chunk))
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    channels, out, *image = SIZES[size]
    inputs = draw(EXAMPLES, channels, *image)
    weight = draw(out, channels // groups, *kernel).requires_grad_()
    pairs = padding if isinstance(padding, tuple) else (padding, padding)
    settings = (stride, stride), pairs, (dilation, dilation), groups
    outputs = draw(*F.conv2d(inputs, weight, None, *settings).shape)
    gradients = Convolutions("w", weight.shape, inputs, outputs, *settings)
    assert gradients._suits_groups == (size == "many pixels")
    wanted = one_by_one(inputs, outputs, weight, settings)
    torch.testing.assert_close(gradients.rows(), wanted)
    torch.testing.assert_close(gradients.rows(slice(1, 3)), wanted[1:3])
    torch.testing.assert_close(gradients.squared_norms(), wanted.square().sum((1, 2, 3, 4)))
    if groups == 1:
        if size == "many channels" and kernel != (1, 1):
            assert gradients.products_are_cheaper
            monkeypatch.delattr(Convolutions, "rows")
        check_channel_sums(gradients, wanted, draw(*weight.shape))


def check_channel_sums(gradients: Convolutions, wanted: Tensor, probe: Tensor) -> None:
    """Compare the sums of rows of shape (examples, out, in, height, width)."""
    scale = torch.linspace(1, 2, len(probe), dtype=probe.dtype)
    settings = gradients.stride, gradients.padding, gradients.dilation
    responses = F.conv2d(gradients.inputs, probe * scale[:, None, None, None], None, *settings)
    for given in (gradients, replace(gradients, responses=responses)):
        sums = given.channel_sums(probe, scale)
        torch.testing.assert_close(sums.squares, wanted.flatten(2).square().sum(2))
        torch.testing.assert_close(sums.total, wanted.flatten(2).sum(2))
        torch.testing.assert_close(sums.along, torch.einsum("bochw,ochw->bo", wanted, probe))
        assert (sums.rounding > 0.99 * sums.squares).all()
    # A gain of zero hides what the weights give.
    silent = replace(gradients, responses=torch.zeros_like(responses))
    torch.testing.assert_close(silent.channel_sums(probe, 0 * scale), sums)


class Standardizing(nn.Module):
    """Convolutions as timm has them in BiT, with groups of channels or without."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.first = StdConv2d(3, 16, 3, padding=1, bias=True)
        self.second = StdConv2d(16, 32, 3, stride=2, groups=groups)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(F.gelu(self.first(x))).mean((2, 3)))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [4, 16], ids=["few pixels", "many pixels"])
def test_weights_standardised_by_batch_norm(
    monkeypatch: pytest.MonkeyPatch, groups: int, size: int
) -> None:
    """Without a group, in closed form."""
    torch.manual_seed(0)
    model = Standardizing(groups).double().eval()
    inputs = torch.randn(EXAMPLES, 3, size, size, dtype=torch.float64)
    labels, mask = torch.arange(EXAMPLES) % 4, torch.ones(EXAMPLES, dtype=torch.bool)
    if groups == 1:
        monkeypatch.setattr(Derived, "squared_norms", None)
    check(Case(model, HEAD, inputs, labels, mask), "bookkeeping", 1e-8)
