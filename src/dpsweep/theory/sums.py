"""The sums of a batch's clipped and unclipped gradients, for every clipping bound at once.

A bound C divides the gradients into two groups: longer gradients are clipped, the others are not. The
formulas of the paper's section 4 need only inner products of three vectors: A, the sum of the unclipped
gradients; G, the sum of the clipped gradients; N, the sum of the clipped gradients' unit vectors. As C
grows, gradients become unclipped in the order of their norms. So four numbers per example determine these
inner products for every C, and the Gram matrix need not be stored. The numbers are computed from the
matrix, or from the gradients themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_BLOCK_BYTES = 2**28
Rows = Callable[[npt.NDArray[np.int64]], npt.ArrayLike]
"""A function that returns the gradients of some examples, shape (examples, d)."""


@dataclass(frozen=True)
class ClippedSums:
    """The overlaps of the gradients of a batch: four numbers per example, in the order of the norms.

    >>> sums = ClippedSums.of(gram_matrix([[3.0, 4.0], [1.0, 0.0]]))
    >>> sums.norms, float(sums.total_square)
    (array([1., 5.]), 32.0)

    Zero gradients are left out, because they contribute nothing at any bound.

    Attributes:
        norms: ascending, positive, shape (b,).
        smaller: inner product with the sum of all gradients before it in this order, shape (b,).
        larger: with the sum of all gradients after it, shape (b,).
        larger_units: with the sum of the unit vectors of all gradients after it, shape (b,).
    """

    norms: Array
    smaller: Array
    larger: Array
    larger_units: Array

    @classmethod
    def of(cls, gram: "npt.ArrayLike | ClippedSums") -> "ClippedSums":
        """Return the sums of a Gram matrix of shape (B, B); return `ClippedSums` unchanged.

        Raises:
            ValueError: the matrix is not square, or gradients are not finite.
        """
        if isinstance(gram, ClippedSums):
            return gram
        matrix = np.asarray(gram, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"Gram matrix: found shape {matrix.shape}; allowed: (B, B)")
        squares = np.diagonal(matrix)
        finite(squares)
        order = np.argsort(squares, kind="stable")
        order = order[squares[order] > 0]
        norms = np.sqrt(squares[order])
        smaller, larger, units = (np.zeros(len(order)) for _ in range(3))
        # A row at a time, because a sorted copy of the matrix would double the memory.
        for place, example in enumerate(order):
            row = matrix[example][order]
            smaller[place] = row[:place].sum()
            larger[place] = row[place + 1 :].sum()
            units[place] = (row[place + 1 :] / norms[place + 1 :]).sum()
        return cls(norms, smaller, larger, units)

    @classmethod
    def from_rows(cls, rows: Rows, examples: int, block: int) -> Self:
        """Return the sums of gradients that are computed in blocks, each gradient twice.

        The first pass computes norms and totals. The second pass takes the examples in the order of their
        norms. Memory is that of two blocks and four gradients in float64.

        Args:
            rows: returns the gradients of some examples.
            examples: B.
            block: number of gradients per block.

        Raises:
            ValueError: gradients are not finite.
        """
        norms = np.zeros(examples)
        total = total_units = np.zeros(1)
        for first in range(0, examples, block):
            chosen = np.arange(first, min(first + block, examples))
            gradients = np.asarray(rows(chosen), dtype=np.float64)
            norms[chosen] = found = np.sqrt(np.einsum("ij,ij->i", gradients, gradients))
            finite(found)
            scale = np.divide(1, found, out=np.zeros_like(found), where=found > 0)
            total = total + gradients.sum(0)
            total_units = total_units + scale @ gradients
        order = np.argsort(norms, kind="stable")
        order = order[norms[order] > 0]
        parts = []
        before = before_units = np.zeros_like(total)
        for first in range(0, len(order), block):
            chosen = order[first : first + block]
            gradients = np.asarray(rows(chosen), dtype=np.float64)
            inner = np.tril(gradients @ gradients.T, -1)
            smaller = inner.sum(1) + gradients @ before
            smaller_units = (inner / norms[chosen]).sum(1) + gradients @ before_units
            larger = gradients @ total - smaller - norms[chosen] ** 2
            larger_units = gradients @ total_units - smaller_units - norms[chosen]
            parts.append(np.stack([norms[chosen], smaller, larger, larger_units]))
            before = before + gradients.sum(0)
            before_units = before_units + (1 / norms[chosen]) @ gradients
        return cls(*np.concatenate([np.zeros((4, 0)), *parts], axis=1))

    @property
    def total_square(self) -> float:
        """Squared norm of the sum of all gradients, |g|^2."""
        return float(max(self.unclipped_square[-1], 0.0))

    # Shape (b + 1,): entry k belongs to the bounds at which the k smallest gradients are unclipped.

    @cached_property
    def unclipped_square(self) -> Array:
        """A.A."""
        return _up(2 * self.smaller + self.norms**2)

    @cached_property
    def clipped_square(self) -> Array:
        """G.G."""
        return _down(2 * self.larger + self.norms**2)

    @cached_property
    def unit_square(self) -> Array:
        """N.N."""
        return _down(2 * self.larger_units / self.norms + 1)

    @cached_property
    def unit_clipped(self) -> Array:
        """N.G."""
        return _down(self.larger_units + self.larger / self.norms + self.norms)

    @cached_property
    def unclipped_unit(self) -> Array:
        """A.N."""
        found = _up(self.larger_units - self.smaller / self.norms)
        found[-1] = 0.0  # N is empty here: remove the rounding error
        return found

    @cached_property
    def unclipped_total(self) -> Array:
        """A.g, with g = A + G."""
        return _up(self._with_total)

    @cached_property
    def unit_total(self) -> Array:
        """N.g."""
        return _down(self._with_total / self.norms)

    @property
    def _with_total(self) -> Array:
        return self.smaller + self.norms**2 + self.larger

    def unclipped(self, bounds: Array) -> npt.NDArray[np.intp]:
        """Return how many gradients are not longer than each bound."""
        return np.searchsorted(self.norms, bounds, side="right")


def _up(steps: Array) -> Array:
    """Return the sums of the first k steps, k = 0, ..., b."""
    return np.concatenate([[0.0], np.cumsum(steps)])


def _down(steps: Array) -> Array:
    """Return the sums of all steps but the first k, k = 0, ..., b."""
    return np.concatenate([np.cumsum(steps[::-1])[::-1], [0.0]])


def gram_matrix(gradients: npt.ArrayLike, block_bytes: int = _BLOCK_BYTES) -> Array:
    """Return the inner products of per-example gradients, summed in float64.

    >>> gram_matrix([[3.0, 4.0], [1.0, 0.0]])
    array([[25.,  3.],
           [ 3.,  1.]])

    Coordinates are processed in blocks, so a memory-mapped array is never in memory as a whole. For 4,096
    examples the result takes 134 MB and a block 268 MB, for any dimension.

    Args:
        gradients: shape (B, d), of any float type.
        block_bytes: size of a block of coordinates in float64.

    Returns:
        Shape (B, B).

    Raises:
        ValueError: the array does not have two dimensions, or gradients are not finite.
    """
    rows = gradients if isinstance(gradients, np.ndarray) else np.asarray(gradients)
    if rows.ndim != 2:
        raise ValueError(f"gradients: found shape {rows.shape}; allowed: (examples, dimension)")
    examples, dimension = rows.shape
    gram = np.zeros((examples, examples))
    step = max(1, block_bytes // (8 * max(examples, 1)))
    for first in range(0, dimension, step):
        block = np.asarray(rows[:, first : first + step], dtype=np.float64)
        with np.errstate(invalid="ignore"):  # reported below
            gram += block @ block.T
    finite(np.diagonal(gram))
    return gram


def finite(squared_norms: Array) -> None:
    """Raise an error if gradients are not finite.

    Raises:
        ValueError: the message contains their number.
    """
    wrong = int((~np.isfinite(squared_norms)).sum())
    if wrong:
        raise ValueError(
            f"{wrong} of {len(squared_norms)} gradients are not finite; leave them out, as training "
            "does"
        )
