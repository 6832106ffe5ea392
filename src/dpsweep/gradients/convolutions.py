"""Per-example gradients of the weights of convolutions, stored as factors."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from dpsweep.gradients.per_example import (
    ALL,
    Instantiated,
    OuterProducts,
    WeightGradients,
    above_rounding,
    factors_are_cheaper,
    only_usable,
    scaled,
    slices,
    widened,
)
from dpsweep.gradients.units import Units

# From this many pixels, a convolution on the CPU is faster than unfolding its input.
_PIXELS = 128


class ChannelSums(NamedTuple):
    """Sums over each example's gradient g per output channel, each of shape (examples, out)."""

    squares: Tensor
    """of g^2"""
    total: Tensor
    """of g"""
    along: Tensor
    """of g times given weights"""
    rounding: Tensor
    """the scale of their rounding errors: the sum of g^2, or more"""


def sums_of_rows(rows: Tensor, weights: Tensor) -> ChannelSums:
    """Return sums per output channel of gradients of shape (examples, out, in, height, width)."""
    rows = rows.flatten(2)
    squares = torch.linalg.vector_norm(rows, dim=2).square()
    # One matrix product per channel reads the rows once for both sums.
    probes = torch.stack([torch.ones_like(weights), weights], dim=1).flatten(2)
    total, along = (rows.transpose(0, 1) @ probes.mT).permute(1, 2, 0).unbind(1)
    return ChannelSums(squares, total, along, squares)


@dataclass(frozen=True)
class Convolutions(WeightGradients):
    """Gradients of the weight of ``F.conv2d`` as factors: inputs, and gradients of the outputs.

    For each group of channels, the norms are those of `OuterProducts`: the tokens are the output's
    pixels, each with its input patch.

    Attributes:
        name: the weight.
        shape: its shape (out, in / groups, height, width).
        inputs: shape (examples, in, rows, columns).
        outputs: gradients of the loss by the outputs, shape (examples, out, rows, columns).
        stride, padding, dilation: for rows and columns.
        groups: of channels.
        responses: the layer's outputs without bias, shape of ``outputs``; None if they were not
            stored in the precision of sums.
    """

    inputs: Tensor
    outputs: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    responses: Tensor | None = None

    def by_unit(self, units: Units) -> Sequence[WeightGradients | Instantiated]:
        """See ``PerExampleGradients``: as products of patches if rows of a unit have few pixels."""
        out, *patch = self.shape
        if self.groups > 1 or not factors_are_cheaper(
            units.largest * self._pixels, math.prod(patch), out
        ):
            return super().by_unit(units)
        patches, outputs = (each[:, 0].mT for each in self._tokens())
        return OuterProducts(self.name, self.shape, patches, outputs).by_unit(units)

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        products, outputs = self._products()
        ghost = products * (outputs.mT @ outputs)
        patches = products.diagonal(dim1=2, dim2=3).sqrt()
        lengths = patches * torch.linalg.vector_norm(outputs, dim=2)
        return above_rounding(ghost.sum((1, 2, 3)), lengths.sum((1, 2)))

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``; this is a convolution's usual gradient for scaled outputs."""
        inputs, outputs = only_usable(usable, self.inputs), scaled(self.outputs, factors, usable)
        return {self.name: self._weight_gradient(self.shape, inputs, outputs, self.groups)}

    def rows(self, examples: slice = ALL) -> Tensor:
        """See ``WeightGradients``."""
        if self._suits_groups:
            inputs, outputs = widened(self.inputs[examples]), widened(self.outputs[examples])
            count, (out, *patch) = len(inputs), self.shape
            gradient = self._weight_gradient(
                (count * out, *patch),
                inputs.flatten(0, 1)[None],
                outputs.flatten(0, 1)[None],
                count * self.groups,
            )
            return gradient.view(-1, *self.shape)
        patches, outputs = self._tokens(examples)
        return (outputs @ patches.mT).view(-1, *self.shape)

    def without_level(self) -> Self:
        """Return gradients of the same standardised weights, from inputs with mean zero.

        Standardised weights sum to zero. So the mean of an example's inputs, including padding, only
        adds numbers that cancel each other.
        """
        rows, columns = self.padding
        inputs = F.pad(widened(self.inputs), (columns, columns, rows, rows))
        level = inputs.mean((1, 2, 3), keepdim=True)
        return replace(self, inputs=inputs - level, padding=(0, 0))

    def channel_sums(self, weights: Tensor, scale: Tensor) -> ChannelSums:
        """Return sums of each example's gradient per output channel; for one group only.

        Args:
            weights: for ``along``, shape (out, in, height, width).
            scale: the ratio of the layer's weights to these, shape (out,).
        """
        if self.products_are_cheaper:
            return self._sums_of_products(weights, scale)
        parts = [
            sums_of_rows(self.rows(some), weights)
            for some in slices(len(self.inputs), self.shape.numel(), self.inputs.device)
        ]
        return ChannelSums(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def _sums_of_products(self, weights: Tensor, scale: Tensor) -> ChannelSums:
        """Compute ``channel_sums`` from inner products of patches and the layer's outputs."""
        products, outputs = (each.squeeze(1) for each in self._products())
        patches = products.diagonal(dim1=1, dim2=2).sum(1).sqrt()
        lengths = torch.linalg.vector_norm(outputs, dim=2) * patches[:, None]
        squares = above_rounding((outputs @ products * outputs).sum(2), lengths)
        inputs, outputs = widened(self.inputs), widened(self.outputs)
        settings = self.stride, self.padding, self.dilation
        ones = weights.new_ones(1, 1, *self.shape[2:])
        sums = F.conv2d(inputs.sum(1, keepdim=True), ones, None, *settings)
        total = (outputs * sums).sum((2, 3))
        if self.responses is not None and bool(scale.all()):
            along = (outputs * self.responses).sum((2, 3)) / scale
        else:
            along = (outputs * F.conv2d(inputs, weights, None, *settings)).sum((2, 3))
        return ChannelSums(squares, total, along, lengths.square())

    def _products(self) -> tuple[Tensor, Tensor]:
        """Return inner products of each example's patches, and the gradients of its outputs.

        Returns:
            Products of shape (examples, groups, tokens, tokens), gradients (examples, groups, out /
            groups, tokens).
        """
        if not self._is_shifted:
            patches, outputs = self._tokens()
            return patches.mT @ patches, outputs
        # For one position of the kernel, the patches are the shifted padded image. Zeros make rows of
        # outputs as long as those of the padded image, so a shift is an offset in memory. One more
        # row of padding makes room for the largest offset.
        height, width = self.shape[2:]
        rows, columns = self.padding
        x = F.pad(widened(self.inputs), (columns, columns, rows, rows + (width > 1)))
        outputs = widened(self.outputs)
        outputs = F.pad(outputs, (0, x.shape[3] - outputs.shape[3])).flatten(2)
        pixels, length = x.flatten(2), outputs.shape[2]
        of_pixels = pixels.mT @ pixels
        products = of_pixels.new_zeros(len(x), length, length)
        for row, column in itertools.product(range(height), range(width)):
            some = slice(row * x.shape[3] + column, row * x.shape[3] + column + length)
            products += of_pixels[:, some, some]
        return products[:, None], outputs[:, None]

    def _tokens(self, examples: slice = ALL) -> tuple[Tensor, Tensor]:
        """Return patches and output gradients, both of shape (examples, groups, ..., pixels)."""
        patches = F.unfold(
            widened(self.inputs[examples]), self.shape[2:], self.dilation, self.padding, self.stride
        )
        outputs = widened(self.outputs[examples]).flatten(2)
        grouped = (len(outputs), self.groups, -1, outputs.shape[2])
        return patches.view(grouped), outputs.reshape(grouped)

    def _weight_gradient(
        self, shape: tuple[int, ...], inputs: Tensor, outputs: Tensor, groups: int
    ) -> Tensor:
        gradient: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
            inputs, shape, outputs, self.stride, self.padding, self.dilation, groups
        )
        return gradient

    @property
    def _is_shifted(self) -> bool:
        """Whether the patches of neighbouring pixels are shifted by one pixel in the image."""
        return self.groups == 1 and self.stride == (1, 1) and self.dilation == (1, 1)

    @property
    def _pixels(self) -> int:
        return self.outputs.shape[2] * self.outputs.shape[3]

    @property
    def _suits_groups(self) -> bool:
        """Whether one convolution with a group for each example is the fastest way to compute rows.

        It is on the CPU for large images, two to four times as fast as a batched matrix product.
        """
        return self.outputs.device.type == "cpu" and self._pixels >= _PIXELS

    @property
    def products_are_cheaper(self) -> bool:
        """Whether inner products of patches are less work than rows; for one group only."""
        out, channels, *kernel = self.shape
        patch, pixels = channels * math.prod(kernel), self._pixels
        rows = pixels * patch * out
        if not self._is_shifted:
            return pixels**2 * (patch + out) < rows
        padded = (
            each + 2 * padding
            for each, padding in zip(self.inputs.shape[2:], self.padding, strict=True)
        )
        return math.prod(padded) ** 2 * (channels + out) < rows

    @property
    def reads_responses(self) -> bool:
        """Whether ``channel_sums`` uses products of patches and the layer's outputs."""
        return self.groups == 1 and self.products_are_cheaper and not self.rows_are_smaller

    @property
    def rows_are_smaller(self) -> bool:
        """Whether rows need less memory than the factors, without more work for the norms."""
        factors = self.inputs[0].numel() + self.outputs[0].numel()
        return not self.is_cheaper and self.shape.numel() <= factors

    @property
    def is_cheaper(self) -> bool:
        """Whether the factors are cheaper than rows."""
        out_channels, *patch = self.shape
        return factors_are_cheaper(self._pixels, math.prod(patch), out_channels // self.groups)
