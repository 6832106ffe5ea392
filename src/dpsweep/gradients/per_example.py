"""Storage of per-example gradients in the cheapest form: instantiated, or as factors of products.

A rule makes one of these classes for the parameters of a layer (`dpsweep.gradients.rules`). It computes
the norms of a micro-batch's gradients, and sums the gradients times factors. Everything is computed in
float32 (float64 for float64).

Examples that are not ``usable`` (masked, or not finite) must not change a sum. Their factor is zero,
but zero times infinity is not zero. So their numbers are replaced by zeros as well.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsweep.gradients.precision import sum_dtype
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
