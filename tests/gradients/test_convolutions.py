"""Per-example gradients of a convolution, in each of the ways in which they are computed."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from timm.layers import StdConv2d
from torch import Tensor, nn

from dpsweep.gradients import make_engine, per_example
from dpsweep.gradients.convolutions import Convolutions
from dpsweep.gradients.parametrizations import Derived

EXAMPLES, CHANNELS, OUT = 5, 4, 6
MANY_CHANNELS = 48


def one_by_one(
    inputs: Tensor, outputs: Tensor, weight: Tensor, settings: tuple[int, ...]
) -> Tensor:
    rows = []
    for x, g in zip(inputs, outputs, strict=True):
        y = F.conv2d(x[None], weight, None, *settings)
        rows.append(torch.autograd.grad(y, weight, g[None])[0])
    return torch.stack(rows)


@pytest.mark.parametrize("chunk", [1, per_example._AT_ONCE[0]])
@pytest.mark.parametrize("size", [7, 33], ids=["few pixels", "many pixels"])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups"),
    [(1, 1, 1, 1), (1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1), (1, 1, 1, 2), (2, 1, 2, 2)],
)
def test_rows_and_their_sums(
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    size: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> None:
    monkeypatch.setattr(per_example, "_AT_ONCE", (chunk, chunk))
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    inputs = draw(EXAMPLES, CHANNELS, size, size)
    weight = draw(OUT, CHANNELS // groups, kernel, kernel).requires_grad_()
    settings = (stride, padding, dilation, groups)
    outputs = draw(*F.conv2d(inputs, weight, None, *settings).shape)
    pairs = [(each, each) for each in settings[:3]]
    gradients = Convolutions("w", weight.shape, inputs, outputs, *pairs, groups)
    assert gradients._suits_groups == (size == 33)

    wanted = one_by_one(inputs, outputs, weight, settings)
    torch.testing.assert_close(gradients.rows(), wanted)
    torch.testing.assert_close(gradients.rows(slice(1, 3)), wanted[1:3])
    if groups == 1:
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


@pytest.mark.parametrize("kernel", [1, 3, (2, 3)])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(1, 1, 1), (1, 0, 1), (2, 1, 1), (1, 2, 2), (1, (0, 1), 1)]
)
def test_squares_of_channels_from_inner_products_of_few_pixels(
    monkeypatch: pytest.MonkeyPatch,
    kernel: int | tuple[int, int],
    stride: int,
    padding: int | tuple[int, int],
    dilation: int,
) -> None:
    random = torch.Generator().manual_seed(0)
    pairs = [each if isinstance(each, tuple) else (each, each) for each in (kernel, padding)]
    weight = torch.zeros(4 * MANY_CHANNELS, MANY_CHANNELS, *pairs[0], dtype=torch.float64)
    weight.requires_grad_()
    if kernel == 1:
        padding = pairs[1] = (0, 0)
    size = 3 if dilation == 1 else 5
    inputs = torch.randn(
        EXAMPLES, MANY_CHANNELS, size, size + 1, generator=random, dtype=torch.float64
    )
    settings = ((stride, stride), pairs[1], (dilation, dilation), 1)
    shape = F.conv2d(inputs, weight, None, *settings).shape
    outputs = torch.randn(shape, generator=random, dtype=torch.float64)
    gradients = Convolutions("w", weight.shape, inputs, outputs, *settings)
    wanted = one_by_one(inputs, outputs, weight, settings)
    torch.testing.assert_close(gradients.squared_norms(), wanted.square().sum((1, 2, 3, 4)))
    assert gradients.products_are_cheaper
    monkeypatch.delattr(Convolutions, "rows")
    probe = torch.randn(weight.shape, generator=random, dtype=torch.float64)
    check_channel_sums(gradients, wanted, probe)


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
    torch.manual_seed(0)
    model = Standardizing(groups).double().eval()
    inputs = torch.randn(EXAMPLES, 3, size, size, dtype=torch.float64)
    labels, mask = torch.arange(EXAMPLES) % 4, torch.ones(EXAMPLES, dtype=torch.bool)
    head = frozenset({"head.weight", "head.bias"})
    wanted = make_engine("loop", model, head).norms(inputs, labels, mask)
    if groups == 1:
        monkeypatch.setattr(Derived, "squared_norms", None)
    found = make_engine("bookkeeping", model, head).norms(inputs, labels, mask)
    torch.testing.assert_close(found, wanted)
