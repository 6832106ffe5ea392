"""Per-example gradients of a convolution, in each of the ways in which they are computed."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpsweep.training.gradients import per_example
from dpsweep.training.gradients.convolutions import Convolutions

EXAMPLES, CHANNELS, OUT = 5, 4, 6


def one_by_one(
    inputs: Tensor, outputs: Tensor, weight: Tensor, settings: tuple[int, ...]
) -> Tensor:
    rows = []
    for x, g in zip(inputs, outputs, strict=True):
        y = F.conv2d(x[None], weight, None, *settings)
        rows.append(torch.autograd.grad(y, weight, g[None])[0])
    return torch.stack(rows)


@pytest.mark.parametrize("chunk", [1, per_example._CHUNK_CPU])
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
    monkeypatch.setattr(per_example, "_CHUNK_CPU", chunk)
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
        probes = draw(OUT, 2, *weight.shape[1:])
        squares, dots = gradients.channel_sums(probes)
        torch.testing.assert_close(squares, wanted.flatten(2).square().sum(2))
        torch.testing.assert_close(dots, torch.einsum("bochw,opchw->bpo", wanted, probes))
