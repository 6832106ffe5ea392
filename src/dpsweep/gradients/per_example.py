"""Storage of per-example gradients in the cheapest form: instantiated, or as factors of products.

A rule makes one of these classes for the parameters of a layer (`dpsweep.gradients.rules`): of a linear
layer, an embedding, a convolution, or of parameters from which the model computes a weight. It computes
the norms of a micro-batch's gradients, and sums the gradients times factors. Everything is computed in
float32 (float64 for float64).

Examples that are not ``usable`` (masked, or not finite) must not change a sum. Their factor is zero,
but zero times infinity is not zero. So their numbers are replaced by zeros as well.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from dpsweep.gradients.units import Units

ALL = slice(None)
"""All examples."""

ERROR = 32
"""An upper bound on the rounding error of sums, in units of the precision of float32 (or float64)."""

# How many numbers to compute at once, on the CPU and elsewhere. The CPU is fastest with memory that
# fits into its cache, a GPU with few large kernels.
_AT_ONCE = 2**22, 2**27


class PerExampleGradients(ABC):
    """Per-example gradients of some parameters."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The parameters."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Return each example's squared norm over all these parameters, shape (examples,)."""

    @abstractmethod
    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """Return, for each parameter, the sum over usable examples of factor times gradient.

        Sums have the dtype of ``factors``, or that of the gradients if it is wider.
        """

    @abstractmethod
    def instantiated(self) -> dict[str, Tensor]:
        """Return the instantiated gradients of each parameter, shape (examples, *shape)."""

    @abstractmethod
    def by_unit(self, units: Units) -> Sequence["PerExampleGradients"]:
        """Return the gradients of units: the means over their rows. Here an example is a row."""


class Instantiated(PerExampleGradients):
    """Instantiated gradients: one row for each example."""

    def __init__(self, gradients: Mapping[str, Tensor]):
        """Store gradients of shape (examples, *shape) by parameter."""
        self._shapes = {name: rows.shape[1:] for name, rows in gradients.items()}
        flat = [rows.flatten(1).to(sum_dtype(rows)) for rows in gradients.values()]
        self._rows = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)

    @property
    def names(self) -> tuple[str, ...]:
        """See ``PerExampleGradients``."""
        return tuple(self._shapes)

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        return self._rows.square().sum(1)

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        return self._by_name(factors @ only_usable(usable, self._rows).to(factors.dtype))

    def instantiated(self) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        return self._by_name(self._rows)

    def by_unit(self, units: Units) -> Sequence["Instantiated"]:
        """See ``PerExampleGradients``."""
        means = units.mean(only_usable(units.mask, self._rows))
        return [UnitMeans(self._by_name(means))]

    def rows(self, examples: slice = ALL) -> Tensor:
        """Return some gradients of the only parameter, shape (examples, *shape)."""
        (rows,) = self._by_name(self._rows[examples]).values()
        return rows

    def _by_name(self, numbers: Tensor) -> dict[str, Tensor]:
        """Split a tensor of shape (..., parameters) into one for each name."""
        pieces = torch.split(numbers, [shape.numel() for shape in self._shapes.values()], dim=-1)
        return {
            name: piece.view(*piece.shape[:-1], *shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }


class UnitMeans(Instantiated):
    """Instantiated gradients of units."""

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``; in float64, which costs little for so few."""
        return self._rows.double().square().sum(1)


@dataclass(frozen=True)
class WeightGradients(PerExampleGradients):
    """Gradients of one weight, which can be instantiated for some examples at a time.

    Attributes:
        name: the weight.
        shape: its shape.
    """

    name: str
    shape: torch.Size

    @property
    def names(self) -> tuple[str, ...]:
        """See ``PerExampleGradients``."""
        return (self.name,)

    @abstractmethod
    def rows(self, examples: slice = ALL) -> Tensor:
        """Return instantiated gradients of some examples, shape (examples, *shape)."""

    def instantiated(self) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        return {self.name: self.rows()}

    def by_unit(self, units: Units) -> Sequence["WeightGradients | Instantiated"]:
        """See ``PerExampleGradients``."""
        return [UnitSums(self.name, self.shape, self, units)]


@dataclass(frozen=True)
class UnitSums(WeightGradients):
    """Gradients of units, instantiated for the norms a few at a time, because all would fill the memory.

    Their sum is that of the rows, each times the factor of its unit.

    Attributes:
        name: the weight.
        shape: its shape.
        of_rows: gradients of the rows.
        units: of the rows.
    """

    of_rows: WeightGradients
    units: Units

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        return torch.cat([each.flatten(1).double().square().sum(1) for each in self._means(ALL)])

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        of_row, mask = self.units.of_row, self.units.mask
        of_rows = (factors[of_row] * self.units.weights).to(factors.dtype)
        return self.of_rows.weighted_sums(of_rows, usable[of_row] & mask)

    def rows(self, examples: slice = ALL) -> Tensor:
        """See ``WeightGradients``."""
        return torch.cat(list(self._means(examples)))

    def _means(self, examples: slice) -> Iterator[Tensor]:
        """Yield the gradients of some units, a few at a time."""
        units, mask = self.units, self.units.mask
        first, last, _ = examples.indices(units.count)
        size = units.largest * self.shape.numel()
        for part in slices(last - first, size, mask.device):
            start, stop = first + part.start, min(first + part.stop, last)
            some = slice(int(units.starts[start]), int(units.starts[stop]))
            rows = only_usable(mask[some], self.of_rows.rows(some))
            rows = rows * _column(units.weights[some].to(rows.dtype), rows)
            total = rows.new_zeros(stop - start, *self.shape)
            yield total.index_add_(0, units.of_row[some] - start, rows)


@dataclass(frozen=True)
class OuterProducts(WeightGradients):
    """Gradients of a linear weight as factors: ``sum_t outputs[t] inputs[t]^T`` over T tokens.

    Norms are "ghost norms" (Goodfellow 2015; Li et al. 2022): inner products of tokens instead of
    a matrix. With one token they are ``|outputs|^2 |inputs|^2``. The sum is a single matrix product
    ("book-keeping", Bu et al. 2023).

    >>> inputs, outputs = torch.ones(2, 1, 3), torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]])
    >>> OuterProducts("weight", torch.Size((2, 3)), inputs, outputs).squared_norms()
    tensor([75.,  3.])

    Attributes:
        name: the weight.
        shape: its shape; (out, in, 1, 1) for a convolution on single pixels.
        inputs: of the layer, shape (examples, tokens, in).
        outputs: gradients of the loss by the layer's outputs, shape (examples, tokens, out).
    """

    inputs: Tensor
    outputs: Tensor

    def by_unit(self, units: Units) -> Sequence["WeightGradients | Instantiated"]:
        """See ``PerExampleGradients``."""
        tokens, width = self.inputs.shape[1:]
        if not factors_are_cheaper(units.largest * tokens, width, self.outputs.shape[2]):
            # These need less memory than the factors.
            return [UnitMeans(UnitSums(self.name, self.shape, self, units).instantiated())]
        # In float64, because rows may cancel each other more than tokens: one image with two labels.
        inputs = units.together(only_usable(units.mask, self.inputs).double())
        outputs = units.together(scaled(self.outputs, units.weights, units.mask))
        return [OuterProducts(self.name, self.shape, inputs, outputs)]

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        inputs, outputs = widened(self.inputs), widened(self.outputs)
        if inputs.shape[1] == 1:
            return inputs.square().sum((1, 2)) * outputs.square().sum((1, 2))
        ghost = (inputs @ inputs.mT) * (outputs @ outputs.mT)
        lengths = torch.linalg.vector_norm(inputs, dim=2) * torch.linalg.vector_norm(outputs, dim=2)
        return above_rounding(ghost.sum((1, 2)), lengths.sum(1))

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        outputs = scaled(self.outputs, factors, usable)
        inputs = only_usable(usable, self.inputs).to(outputs.dtype)
        total = outputs.flatten(0, 1).mT @ inputs.flatten(0, 1)
        return {self.name: total.view(self.shape)}

    def rows(self, examples: slice = ALL) -> Tensor:
        """See ``WeightGradients``."""
        outputs, inputs = widened(self.outputs[examples]), widened(self.inputs[examples])
        return (outputs.mT @ inputs).view(-1, *self.shape)


@dataclass(frozen=True)
class Lookups(WeightGradients):
    """Gradients of an embedding table as gradients of the looked-up rows.

    Attributes:
        name: the table.
        shape: its shape (rows, width).
        indices: shape (examples, tokens).
        outputs: gradients of the loss by the looked-up rows, shape (examples, tokens, width).
    """

    indices: Tensor
    outputs: Tensor

    def by_unit(self, units: Units) -> Sequence["WeightGradients | Instantiated"]:
        """See ``PerExampleGradients``; in float64, as `OuterProducts`."""
        outputs = scaled(self.outputs, units.weights, units.mask)
        found = units.together(self.indices), units.together(outputs)
        return [Lookups(self.name, self.shape, *found)]

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``: inner products of the tokens that look up the same row."""
        outputs = widened(self.outputs)
        same = self.indices[:, :, None] == self.indices[:, None, :]
        ghost = (outputs @ outputs.mT) * same
        lengths = torch.linalg.vector_norm(outputs, dim=2)
        return above_rounding(ghost.sum((1, 2)), lengths.sum(1))

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        outputs = scaled(self.outputs, factors, usable)
        table = outputs.new_zeros(self.shape)
        return {self.name: table.index_add(0, self.indices.flatten(), outputs.flatten(0, 1))}

    def rows(self, examples: slice = ALL) -> Tensor:
        """See ``WeightGradients``."""
        outputs = widened(self.outputs[examples])
        tables = outputs.new_zeros(len(outputs), *self.shape)
        places = self.indices[examples, :, None].expand_as(outputs)
        return tables.scatter_add_(1, places, outputs)


def factors_are_cheaper(tokens: int, inputs: int, outputs: int) -> bool:
    """Return whether factors need less memory, and less work for norms, than rows.

    An example's gradient is a sum of ``tokens`` outer products of a vector of ``outputs`` numbers and
    one of ``inputs`` numbers.

    >>> factors_are_cheaper(tokens=1, inputs=192, outputs=100)
    True
    >>> factors_are_cheaper(tokens=197, inputs=192, outputs=100)
    False
    """
    return tokens * (inputs + outputs) < inputs * outputs


def slices(
    examples: int, size: int, device: torch.device, numbers: tuple[int, int] | None = None
) -> Iterator[slice]:
    """Yield slices of examples, each of about as many numbers as is fast to compute at once.

    >>> list(slices(5, 2**21, torch.device("cpu")))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]

    Args:
        examples: how many there are.
        size: how many numbers an example has.
        device: the device of the numbers.
        numbers: how many to compute at once, on the CPU and elsewhere.
    """
    on_cpu, elsewhere = numbers or _AT_ONCE
    step = max(1, (on_cpu if device.type == "cpu" else elsewhere) // size)
    for first in range(0, examples, step):
        yield slice(first, first + step)


def above_rounding(squared_norms: Tensor, lengths: Tensor) -> Tensor:
    """Return squared ghost norms that are not smaller than their rounding error.

    A ghost norm is a sum of inner products of both signs. So where the gradients of tokens cancel each
    other, its rounding error is relative to the squared sum of the tokens' lengths, not to itself. A norm
    below its error would scale the example to far more than 1, so the error replaces the norm.
    """
    return squared_norms.maximum(ERROR * torch.finfo(lengths.dtype).eps * lengths.square())


def sum_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which the numbers of a tensor are summed."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor converted to the dtype of its sums."""
    return tensor.to(sum_dtype(tensor))


def only_usable(usable: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor with zeros for the examples that are not usable."""
    # On a GPU, the check would take longer than the copy.
    if usable.device.type == "cpu" and bool(usable.all()):
        return widened(tensor)
    return widened(tensor).masked_fill(~_column(usable, tensor), 0)


def scaled(tensor: Tensor, factors: Tensor, usable: Tensor) -> Tensor:
    """Return a tensor times a factor for each example, with zeros for examples that are not usable."""
    return only_usable(usable, tensor * _column(factors, tensor))


def _column(per_example: Tensor, like: Tensor) -> Tensor:
    """Return one value per example in a shape that broadcasts with ``like``."""
    return per_example.view(-1, *[1] * (like.dim() - 1))


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

    def sums_of_products(self, weights: Tensor, scale: Tensor) -> ChannelSums:
        """Return `ChannelSums` from inner products of patches and the layer's outputs; for one group only.

        Args:
            weights: for ``along``, shape (out, in, height, width).
            scale: the ratio of the layer's weights to these, shape (out,).
        """
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
        """Whether norms use `sums_of_products` and the layer's outputs."""
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


# Its arguments: input, four other tensors, training, momentum and epsilon.
_BATCH_NORM = signature(F.batch_norm)


@dataclass(frozen=True)
class Derived(PerExampleGradients):
    """Gradients of parameters from which the model computes a weight, such as a standardised one.

    Gradients of the weight go back through that computation: for the sum, only the summed gradient.
    For the norms, the gradient of each example does, a few at a time to limit memory.

    Attributes:
        weight: the computed weight, with its graph.
        sources: the parameters.
        gradients: of the weight.
        examples: how many.
    """

    weight: Tensor
    sources: Mapping[str, Tensor]
    gradients: WeightGradients | Instantiated
    examples: int

    @property
    def names(self) -> tuple[str, ...]:
        """See ``PerExampleGradients``."""
        return tuple(self.sources)

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        parts = []
        for some in slices(self.examples, self.weight.numel(), self.weight.device):
            rows = self.gradients.rows(some)
            gradients = through(self.weight, self.sources, rows, is_grads_batched=True)
            squares = [each.flatten(1).square().sum(1) for each in gradients.values()]
            parts.append(torch.stack(squares).sum(0))
        return torch.cat(parts)

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        (total,) = self.gradients.weighted_sums(factors, usable).values()
        gradients = through(self.weight, self.sources, total, is_grads_batched=False)
        # If no example is usable, the computation itself may not be finite.
        return {name: torch.where(usable.any(), each, 0) for name, each in gradients.items()}

    def instantiated(self) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        rows = self.gradients.rows()
        return through(self.weight, self.sources, rows, is_grads_batched=True)

    def by_unit(self, units: Units) -> Sequence[PerExampleGradients]:
        """See ``PerExampleGradients``."""
        (gradients,) = self.gradients.by_unit(units)
        return [replace(self, gradients=gradients, examples=units.count)]


def through(
    weight: Tensor, sources: Mapping[str, Tensor], gradient: Tensor, *, is_grads_batched: bool
) -> dict[str, Tensor]:
    """Return the gradients of the parameters from which a weight was computed, in the dtype of sums.

    Args:
        weight: the computed weight, with its graph.
        sources: the parameters.
        gradient: of the weight; with ``is_grads_batched`` one for each example.
        is_grads_batched: see ``torch.autograd.grad``.
    """
    found = torch.autograd.grad(
        weight,
        list(sources.values()),
        gradient.to(weight.dtype),
        retain_graph=True,
        is_grads_batched=is_grads_batched,
    )
    return {name: widened(each) for name, each in zip(sources, found, strict=True)}


class Standardization(NamedTuple):
    """The inputs of a standardisation of weights per output channel."""

    raw: Tensor
    """the weights before standardisation, shape (out, ...)"""
    gain: Tensor | None
    """norms of the standardised channels, trainable, shape (out,); None: variance 1"""
    epsilon: float
    """added to the variance"""

    @classmethod
    def by_batch_norm(cls, *args: Any, **kwargs: Any) -> Self | None:
        """Return the standardisation that ``F.batch_norm`` does to weights (1, out, inputs), else None."""
        given = _BATCH_NORM.bind(*args, **kwargs)
        given.apply_defaults()
        weights, *others, training, _, epsilon = given.arguments.values()
        alone = weights.dim() == 3 and len(weights) == 1 and all(each is None for each in others)
        return cls(weights[0], None, epsilon) if alone and training else None


@dataclass(frozen=True)
class Standardized(Derived):
    """Gradients of a convolution's standardised weights, with norms in closed form.

    With weights w of K inputs, standardised x = (w - mean(w)) r, and y = gain / sqrt(K) x, a
    gradient g by y becomes, for each output channel::

        dw = gain / sqrt(K) r (g - mean(g) - x mean(g x)),    dgain = sum(g x) / sqrt(K)

    So the squared norms need three sums for each channel and example: of g^2, g and g x. The outputs of
    the layer give the last one. The mean of g has no influence, but is nearly all of g where inputs are
    nearly uniform. So it is subtracted before the sums; rows are stored without it.
    """

    origin: Standardization

    def squared_norms(self) -> Tensor:
        """See ``PerExampleGradients``."""
        raw = widened(self.origin.raw.detach())
        gain = None if self.origin.gain is None else widened(self.origin.gain.detach())
        inputs = raw[0].numel()
        centred = raw.flatten(1) - raw.flatten(1).mean(1, keepdim=True)
        variance = centred.square().mean(1)
        rate = (variance + self.origin.epsilon).rsqrt()
        # slope is y / x for each channel; without a gain, y is x.
        slope = torch.ones_like(rate) if gain is None else gain / math.sqrt(inputs)
        standardized = (centred * rate[:, None]).view_as(self.weight)
        gradients = self._without_level()
        squares, total, along, rounding = (
            gradients.sums_of_products(standardized, slope)
            if isinstance(gradients, Convolutions) and gradients.products_are_cheaper
            else sums_of_rows(gradients, standardized, self.examples)
        )
        # The sum of squares of x is a little less than K, because of epsilon.
        overlap = 2 - variance / (variance + self.origin.epsilon)
        exact = squares - total.square() / inputs - overlap * along.square() / inputs
        # Differences of large numbers: at least their rounding error.
        weights = (slope * rate).square() * exact.maximum(
            ERROR * torch.finfo(raw.dtype).eps * rounding
        )
        return (weights if gain is None else weights + along.square() / inputs).sum(1)

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``PerExampleGradients``."""
        level = replace(self, gradients=self._without_level())
        return Derived.weighted_sums(level, factors, usable)

    def by_unit(self, units: Units) -> Sequence[PerExampleGradients]:
        """See ``PerExampleGradients``."""
        (gradients,) = self._without_level().by_unit(units)
        return [replace(self, gradients=gradients, examples=units.count)]

    def _without_level(self) -> WeightGradients | Instantiated:
        if isinstance(self.gradients, Convolutions):
            return self.gradients.without_level()
        return self.gradients


def sums_of_rows(
    gradients: WeightGradients | Instantiated, weights: Tensor, examples: int
) -> ChannelSums:
    """Return `ChannelSums` from rows, a few at a time to limit memory.

    Args:
        gradients: of the examples.
        weights: for ``along``, shape (out, in, height, width).
        examples: how many.
    """
    # One matrix product per channel reads the rows once for both sums.
    probes = torch.stack([torch.ones_like(weights), weights], dim=1).flatten(2).mT
    parts = []
    for some in slices(examples, weights.numel(), weights.device):
        rows = gradients.rows(some).flatten(2)
        squares = torch.linalg.vector_norm(rows, dim=2).square()
        total, along = (rows.transpose(0, 1) @ probes.to(rows.dtype)).permute(1, 2, 0).unbind(1)
        parts.append(ChannelSums(squares, total, along, squares))
    return ChannelSums(*(torch.cat(each) for each in zip(*parts, strict=True)))
