"""Units of privacy: rows of a micro-batch whose gradients are averaged before they are clipped.

A unit is what two neighbouring data sets differ in: a person with all of their rows, or one image with its
random crops. Its gradient is the mean over its rows. Every fast engine computes per-example gradients first;
`PerExampleGradients.by_unit` then makes those of units, the only place where rows are averaged.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpsweep.gradients.refusals import BatchError


class Units:
    """The units of a micro-batch.

    >>> units = Units([5, 5, 2], torch.tensor([True, True, True]))
    >>> units.count, units.mean(torch.tensor([[1.0], [3.0], [7.0]])).tolist()
    (2, [[2.0], [7.0]])

    Attributes:
        mask: the rows that count, shape (rows,), bool.
        count: of units, U.
        largest: the most rows in a unit, k.
        of_row: the place of each row's unit, shape (rows,), from 0 to U - 1.
        starts: the first row of each unit and the end of the last one, U + 1 numbers on the CPU.
        counted: the units of which a row counts, shape (U,), bool.
        weights: of each row in the mean of its unit, shape (rows,), float64; 0 where masked.
    """

    def __init__(self, ids: Any, mask: Tensor):
        """Find the units.

        Args:
            ids: whose row each is, shape (rows,), on the CPU. The rows of a unit stand together.
            mask: which rows count, shape (rows,), bool.

        Raises:
            BatchError: see `unit_starts`.
        """
        self.mask = mask
        self.starts = unit_starts(ids, len(mask))
        sizes = np.diff(self.starts)
        self.count = len(sizes)
        self.largest = int(sizes.max(initial=1))
        places = np.repeat(np.arange(self.count), sizes)
        self.of_row = copied(torch.from_numpy(places), mask.device)
        counts = torch.zeros(self.count, dtype=torch.float64, device=mask.device)
        counts.index_add_(0, self.of_row, mask.double())
        self.counted = counts > 0
        self._counts = counts.clamp_(min=1)
        self.weights = mask / self._counts[self.of_row]
        self._equal = bool((sizes == self.largest).all())
        slots = places * self.largest + np.arange(len(mask)) - self.starts[:-1][places]
        self._slots = copied(torch.from_numpy(slots), mask.device)

    def mean(self, rows: Tensor) -> Tensor:
        """Return the mean over the rows that count of each unit, shape (U, ...).

        Args:
            rows: shape (rows, ...), with zeros for rows that do not count.
        """
        total = rows.new_zeros(self.count, *rows.shape[1:]).index_add_(0, self.of_row, rows)
        return total.div_(self._counts.to(total.dtype).view(-1, *[1] * (rows.dim() - 1)))

    def together(self, rows: Tensor) -> Tensor:
        """Return the tokens of a unit's rows one after another, with zeros after those of smaller units.

        Args:
            rows: shape (rows, tokens, ...).

        Returns:
            Shape (U, k * tokens, ...).
        """
        shape = (self.count, self.largest * rows.shape[1], *rows.shape[2:])
        if self._equal:
            return rows.reshape(shape)
        slots = rows.new_zeros(self.count * self.largest, *rows.shape[1:])
        return slots.index_copy_(0, self._slots, rows).view(shape)


def unit_starts(ids: Any, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the first row of each unit, and the number of rows.

    >>> unit_starts([7, 7, 3, 9], 4)
    array([0, 2, 3, 4])

    Args:
        ids: whose row each is, on the CPU.
        rows: how many.

    Raises:
        BatchError: there is not one number for each row, or the rows of a unit do not stand together.
    """
    found = np.asarray(ids)
    if found.shape != (rows,) or found.dtype.kind not in "iu":
        raise BatchError(
            f"units: found {found.dtype} of shape {found.shape}; allowed: the number of each row's unit, "
            f"integers of shape {(rows,)}"
        )
    first = np.flatnonzero(np.append(True, found[1:] != found[:-1])) if rows else np.arange(0)
    if len(np.unique(found[first])) < len(first):
        raise BatchError(
            "units: found rows of a unit at several places of a micro-batch; allowed: all of its rows one "
            "after another, as dpsweep.microbatches puts them"
        )
    return np.append(first, rows).astype(np.int64)


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device; the CPU does not wait, because the memory is pinned."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def units_of(ids: Any, mask: Tensor) -> Units | None:
    """Return the units of a micro-batch, None if each row is one of its own.

    Raises:
        BatchError: see `unit_starts`.
    """
    if ids is None:
        return None
    units = Units(ids, mask)
    return None if units.largest == 1 else units
