"""Per-example gradients of the weights of convolutions, as factors."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from dpsweep.training.gradients.per_example import (
    ALL,
    above_rounding,
    factors_are_cheaper,
    only_usable,
    scaled,
    slices,
    widened,
)

# With so many pixels a convolution on the CPU is faster than unfolding its input.
_PIXELS = 128


@dataclass(frozen=True)
class Convolutions:
    """Gradients of the weight of ``F.conv2d`` as factors: its inputs and its outputs' gradients.

    The norms are those of `OuterProducts` whose tokens are the output's pixels, with an input
    patch each, for every group of channels.

    Attributes:
        name: the weight.
        shape: its shape (out, in / groups, height, width).
        inputs: shape (examples, in, rows, columns).
        outputs: gradients of the loss by the outputs, shape (examples, out, rows, columns).
        stride, padding, dilation: for rows and columns.
        groups: of channels.
    """

    name: str
    shape: torch.Size
    inputs: Tensor
    outputs: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def names(self) -> tuple[str, ...]:
        """See ``PerExampleGradients``."""
        return (self.name,)

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        patches, outputs = self._tokens()
        ghost = (patches.mT @ patches) * (outputs.mT @ outputs)
        lengths = torch.linalg.vector_norm(patches, dim=2) * torch.linalg.vector_norm(
            outputs, dim=2
        )
        return above_rounding(ghost.sum((1, 2, 3)), lengths.sum((1, 2)))

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``: a convolution's ordinary gradient, of scaled outputs."""
        gradient: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
            only_usable(usable, self.inputs),
            self.shape,
            scaled(self.outputs, factors, usable),
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )
        return {self.name: gradient}

    def instantiated(self) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        return {self.name: self.rows()}

    def rows(self, examples: slice = ALL) -> Tensor:
        """Return gradients as they are, shape (examples, *shape)."""
        if self._suits_groups:
            inputs, outputs = widened(self.inputs[examples]), widened(self.outputs[examples])
            gradient: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
                inputs.flatten(0, 1)[None],
                (len(inputs) * self.shape[0], *self.shape[1:]),
                outputs.flatten(0, 1)[None],
                self.stride,
                self.padding,
                self.dilation,
                len(inputs) * self.groups,
            )
            return gradient.view(-1, *self.shape)
        patches, outputs = self._tokens(examples)
        return (outputs @ patches.mT).view(-1, *self.shape)

    def channel_sums(self, probes: Tensor) -> tuple[Tensor, Tensor]:
        """Reduce each example's gradient g per output channel, without keeping it; one group only.

        Args:
            probes: shape (out, probes, in, height, width).

        Returns:
            The sums of g^2, shape (examples, out), and of g times each probe, shape (examples,
            probes, out).
        """
        if self._suits_groups or self.stride != (1, 1) or self.dilation != (1, 1):
            flat = probes.flatten(2)
            parts = [
                _reduce(self.rows(some).flatten(2), flat)
                for some in slices(len(self.inputs), probes[:, 0])
            ]
            squares, dots = (torch.cat(each) for each in zip(*parts, strict=True))
            return squares, dots
        parts = [_reduce(g, probe) for g, probe in self._positions(probes)]
        squares, dots = (torch.stack(each).sum(0) for each in zip(*parts, strict=True))
        return squares, dots

    def _positions(self, probes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield gradients (examples, out, in) and probes (out, probes, in) of the kernel's parts.

        For one position of the kernel the patches are the padded image itself, shifted. Rows of
        outputs are as long as those of the padded image, with zeros, so that a shift is an offset;
        one more row of padding takes the largest offset.
        """
        rows, columns = self.padding
        x = F.pad(widened(self.inputs), (columns, columns, rows, rows + 1))
        outputs = widened(self.outputs)
        outputs = F.pad(outputs, (0, x.shape[3] - outputs.shape[3])).flatten(2)
        length, step = outputs.shape[2], x.shape[3]
        pixels = x.flatten(2).mT
        probes = probes.permute(3, 4, 0, 1, 2).contiguous()
        for row, column in itertools.product(*map(range, self.shape[2:])):
            first = row * step + column
            yield outputs @ pixels[:, first : first + length], probes[row, column]

    @property
    def _pixels(self) -> int:
        return self.outputs.shape[2] * self.outputs.shape[3]

    @property
    def _suits_groups(self) -> bool:
        """Whether one convolution whose groups are the examples is the fastest way to rows.

        It is where a convolution is fast (on the CPU, two to four times as fast as a batched
        product of matrices) and an example large enough to be worth one.
        """
        return self.outputs.device.type == "cpu" and self._pixels >= _PIXELS

    @property
    def is_cheaper(self) -> bool:
        """Whether the factors are cheaper than rows."""
        out_channels, *patch = self.shape
        return factors_are_cheaper(self._pixels, math.prod(patch), out_channels // self.groups)

    def _tokens(self, examples: slice = ALL) -> tuple[Tensor, Tensor]:
        """Return patches and output gradients, both of shape (examples, groups, ..., pixels)."""
        patches = F.unfold(
            widened(self.inputs[examples]), self.shape[2:], self.dilation, self.padding, self.stride
        )
        outputs = widened(self.outputs[examples]).flatten(2)
        grouped = (len(outputs), self.groups, -1, outputs.shape[2])
        return patches.view(grouped), outputs.reshape(grouped)


def _reduce(g: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """See ``Convolutions.channel_sums``, for g (examples, out, n) and probe (out, probes, n)."""
    # A product of matrices per channel reads g once for all probes.
    dots = (g.transpose(0, 1) @ probe.mT).permute(1, 2, 0)
    return torch.linalg.vector_norm(g, dim=2).square(), dots
