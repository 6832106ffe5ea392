"""Per-example gradients in the form in which they are cheapest: as they are, or as factors.

A form holds the gradients of one or more parameters for all examples of a micro-batch. It can say
how long they are, and sum them with factors. Forms compute in float32 (float64 for float64).

Examples that are not ``usable`` (masked, or not finite) must not leave a trace in a sum. Their
factor is zero, but zero times infinity is not: so their numbers are replaced by zeros as well.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from dpsweep.training.gradients.interface import sum_dtype

_ALL = slice(None)

# How many numbers to take through a computation at once. On the CPU, memory that is as large as
# a cache is faster than memory that is not; elsewhere few large kernels are.
_CHUNK_CPU = 2**22
_CHUNK = 2**27
# With so many pixels a convolution on the CPU is faster than unfolding its input.
_PIXELS = 128


class Form(Protocol):
    """Per-example gradients of some parameters."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters."""

    def squared_norms(self) -> Tensor:
        """Return the squared norm of each example's gradients together, shape (examples,)."""

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """Return, for each parameter, the sum over usable examples of factor times gradient."""


class Rows:
    """Gradients as they are: one row for each example."""

    def __init__(self, gradients: Mapping[str, Tensor]):
        """Take gradients of shape (examples, *shape) by parameter."""
        self.names = tuple(gradients)
        self._shapes = [rows.shape[1:] for rows in gradients.values()]
        flat = [rows.flatten(1).to(sum_dtype(rows)) for rows in gradients.values()]
        self._rows = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)

    def squared_norms(self) -> Tensor:
        """See ``Form``."""
        return self._rows.square().sum(1)

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``Form``."""
        total = factors @ self._rows.masked_fill(~usable[:, None], 0)
        pieces = torch.split(total, [shape.numel() for shape in self._shapes])
        return {
            name: piece.view(shape)
            for name, piece, shape in zip(self.names, pieces, self._shapes, strict=True)
        }


@dataclass(frozen=True)
class OuterProducts:
    """Gradients of a linear weight as factors: ``sum_t outputs[t] inputs[t]^T`` over T tokens.

    Norms are "ghost norms" (Goodfellow 2015; Li et al. 2022): inner products of tokens instead of
    a matrix; with one token just ``|outputs|^2 |inputs|^2``. The sum is a single product of
    matrices ("book-keeping", Bu et al. 2023).

    Attributes:
        name: the weight.
        shape: its shape; with (out, in, 1, 1) it is a convolution that meets single pixels.
        inputs: of the layer, shape (examples, tokens, in).
        outputs: gradients of the loss by the layer's outputs, shape (examples, tokens, out).
    """

    name: str
    shape: torch.Size
    inputs: Tensor
    outputs: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """See ``Form``."""
        return (self.name,)

    def squared_norms(self) -> Tensor:
        """See ``Form``."""
        inputs, outputs = _wide(self.inputs), _wide(self.outputs)
        if inputs.shape[1] == 1:
            return inputs.square().sum((1, 2)) * outputs.square().sum((1, 2))
        ghost = (inputs @ inputs.mT) * (outputs @ outputs.mT)
        lengths = torch.linalg.vector_norm(inputs, dim=2) * torch.linalg.vector_norm(outputs, dim=2)
        return _above_rounding(ghost.sum((1, 2)), lengths.sum(1))

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``Form``."""
        inputs = _only(usable, self.inputs)
        outputs = _scaled(self.outputs, factors, usable)
        total = outputs.flatten(0, 1).mT @ inputs.flatten(0, 1)
        return {self.name: total.view(self.shape)}

    def rows(self, examples: slice = _ALL) -> Tensor:
        """Return gradients as they are, shape (examples, *shape)."""
        outputs, inputs = _wide(self.outputs[examples]), _wide(self.inputs[examples])
        return (outputs.mT @ inputs).view(-1, *self.shape)


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
        """See ``Form``."""
        return (self.name,)

    def squared_norms(self) -> Tensor:
        """See ``Form``."""
        patches, outputs = self._tokens()
        ghost = (patches.mT @ patches) * (outputs.mT @ outputs)
        lengths = torch.linalg.vector_norm(patches, dim=2) * torch.linalg.vector_norm(
            outputs, dim=2
        )
        return _above_rounding(ghost.sum((1, 2, 3)), lengths.sum((1, 2)))

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``Form``: the ordinary gradient of a convolution's weight, from scaled outputs."""
        gradient: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
            _only(usable, self.inputs),
            self.shape,
            _scaled(self.outputs, factors, usable),
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )
        return {self.name: gradient}

    def rows(self, examples: slice = _ALL) -> Tensor:
        """Return gradients as they are, shape (examples, *shape)."""
        if self._suits_groups:
            inputs, outputs = _wide(self.inputs[examples]), _wide(self.outputs[examples])
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
                _reduce(self.rows(some).flatten(2), flat) for some in _slices(self, probes[:, 0])
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
        x = F.pad(_wide(self.inputs), (columns, columns, rows, rows + 1))
        outputs = _wide(self.outputs)
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

    def _tokens(self, examples: slice = _ALL) -> tuple[Tensor, Tensor]:
        """Return patches and output gradients, both of shape (examples, groups, ..., pixels)."""
        patches = F.unfold(
            _wide(self.inputs[examples]), self.shape[2:], self.dilation, self.padding, self.stride
        )
        outputs = _wide(self.outputs[examples]).flatten(2)
        grouped = (len(outputs), self.groups, -1, outputs.shape[2])
        return patches.view(grouped), outputs.reshape(grouped)


@dataclass(frozen=True)
class Derived:
    """Gradients of parameters from which the model computes a weight, such as a standardised one.

    A gradient goes through that computation. The sum goes as one, after it was taken; for their
    norms all examples have to, a few at a time, so that memory stays small.

    Attributes:
        weight: the computed weight, in its graph.
        sources: the parameters.
        form: gradients of the weight.
    """

    weight: Tensor
    sources: Mapping[str, Tensor]
    form: OuterProducts | Convolutions

    @property
    def names(self) -> tuple[str, ...]:
        """See ``Form``."""
        return tuple(self.sources)

    def squared_norms(self) -> Tensor:
        """See ``Form``."""
        parts = []
        for some in _slices(self.form, self.weight):
            rows = self.form.rows(some).to(self.weight.dtype)
            gradients = self._through(rows, is_grads_batched=True)
            squares = [_wide(each).flatten(1).square().sum(1) for each in gradients]
            parts.append(torch.stack(squares).sum(0))
        return torch.cat(parts)

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``Form``."""
        (total,) = self.form.weighted_sums(factors, usable).values()
        gradients = self._through(total.to(self.weight.dtype), is_grads_batched=False)
        # Where nothing is usable, the computation itself may not be finite.
        return {
            name: torch.where(usable.any(), _wide(each), 0)
            for name, each in zip(self.sources, gradients, strict=True)
        }

    def _through(self, gradient: Tensor, *, is_grads_batched: bool) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            self.weight,
            list(self.sources.values()),
            gradient,
            retain_graph=True,
            is_grads_batched=is_grads_batched,
        )


@dataclass(frozen=True)
class Standardized(Derived):
    """Gradients of a convolution's standardised weights: their norms in closed form.

    With weights w of K inputs, standardised x = (w - mean(w)) r, and y = gain / sqrt(K) x, a
    gradient g by y becomes, for each output channel::

        dw = gain / sqrt(K) r (g - mean(g) - x mean(g x)),    dgain = sum(g x) / sqrt(K)

    So the squared norms need three sums a channel and example: of g^2, g and g x.

    Attributes:
        raw: the weights before, shape (out, in, height, width).
        gain: shape (out,).
        epsilon: what was added to their variance.
    """

    form: Convolutions
    raw: Tensor
    gain: Tensor
    epsilon: float

    def squared_norms(self) -> Tensor:
        """See ``Form``."""
        raw = _wide(self.raw.detach())
        inputs = raw[0].numel()
        variance, mean = torch.var_mean(raw.flatten(1), dim=1, correction=0)
        rate = (variance + self.epsilon).rsqrt()
        standardized = (raw - _column(mean, raw)) * _column(rate, raw)
        probes = torch.stack([torch.ones_like(raw), standardized], dim=1)
        squares, dots = self.form.channel_sums(probes)
        total, along = dots.unbind(1)
        # Of x itself the sum of squares is a little less than K, by the epsilon.
        overlap = 2 - variance / (variance + self.epsilon)
        scale = (_wide(self.gain.detach()) * rate).square() / inputs
        exact = squares - total.square() / inputs - overlap * along.square() / inputs
        # Differences of large numbers: never less than their rounding error.
        weights = scale * exact.maximum(32 * torch.finfo(raw.dtype).eps * squares)
        return (weights + along.square() / inputs).sum(1)


@dataclass(frozen=True)
class Lookups:
    """Gradients of an embedding table: those of the looked-up rows.

    Attributes:
        name: the table.
        shape: its shape (rows, width).
        indices: shape (examples, tokens).
        outputs: gradients of the loss by the looked-up rows, shape (examples, tokens, width).
    """

    name: str
    shape: torch.Size
    indices: Tensor
    outputs: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """See ``Form``."""
        return (self.name,)

    def squared_norms(self) -> Tensor:
        """See ``Form``: inner products of the tokens that look up the same row."""
        outputs = _wide(self.outputs)
        same = self.indices[:, :, None] == self.indices[:, None, :]
        ghost = (outputs @ outputs.mT) * same
        lengths = torch.linalg.vector_norm(outputs, dim=2)
        return _above_rounding(ghost.sum((1, 2)), lengths.sum(1))

    def weighted_sums(self, factors: Tensor, usable: Tensor) -> dict[str, Tensor]:
        """See ``Form``."""
        outputs = _scaled(self.outputs, factors, usable)
        table = outputs.new_zeros(self.shape)
        return {self.name: table.index_add(0, self.indices.flatten(), outputs.flatten(0, 1))}


def factors_are_cheaper(tokens: int, inputs: int, outputs: int) -> bool:
    """Compare factors with rows: one condition for the memory, and for the work of the norms.

    ``tokens`` outer products of a vector of ``outputs`` and one of ``inputs`` numbers make up an
    example's gradient.
    """
    return tokens * (inputs + outputs) < inputs * outputs


def _slices(form: OuterProducts | Convolutions, weight: Tensor) -> Iterator[slice]:
    """Yield as many examples at once as memory is good for, with a gradient like ``weight`` each."""
    numbers = _CHUNK_CPU if weight.device.type == "cpu" else _CHUNK
    examples = max(1, numbers // weight.numel())
    for first in range(0, len(form.inputs), examples):
        yield slice(first, first + examples)


def _reduce(g: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """See ``Convolutions.channel_sums``, for g (examples, out, n) and probe (out, probes, n)."""
    # A product of matrices per channel reads g once for all probes.
    dots = (g.transpose(0, 1) @ probe.mT).permute(1, 2, 0)
    return torch.linalg.vector_norm(g, dim=2).square(), dots


def _above_rounding(squared_norms: Tensor, lengths: Tensor) -> Tensor:
    """Keep ghost norms from being too small where the gradients of tokens cancel each other.

    A ghost norm is a sum of inner products that may have both signs, so its rounding error is not
    relative to itself but to the square of the tokens' lengths, summed. Where it is smaller than
    that, the example would be scaled up to far more than 1; the error takes the norm's place.
    """
    return squared_norms.maximum(32 * torch.finfo(lengths.dtype).eps * lengths.square())


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(sum_dtype(tensor))


def _column(per_example: Tensor, like: Tensor) -> Tensor:
    return per_example.view(-1, *[1] * (like.dim() - 1))


def _only(usable: Tensor, tensor: Tensor) -> Tensor:
    return _wide(tensor).masked_fill(~_column(usable, tensor), 0)


def _scaled(tensor: Tensor, factors: Tensor, usable: Tensor) -> Tensor:
    return _only(usable, tensor * _column(factors, tensor))
