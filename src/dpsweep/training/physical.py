"""The physical batch: the number of examples on the device at once.

Sums over a batch are float64, so its division into physical batches changes an update by rounding
only. When memory runs out, the physical batch is halved.
"""

import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpsweep.base.errors import DpsweepError
from dpsweep.gradients.engines import first_line, is_out_of_memory
from dpsweep.gradients.units import unit_starts
from dpsweep.training import processes
from dpsweep.training.randomness import Indices, whole_units

log = logging.getLogger(__name__)

PhysicalBatchSize = int | Literal["auto"]
ON_THE_CPU = 256
"""The size for ``auto`` on a CPU, where trying larger ones would exhaust the memory of the whole machine."""

Part = TypeVar("Part")
Result = TypeVar("Result")


class DoesNotFitError(DpsweepError):
    """A single example, or the state of a checkpoint, that does not fit in the device's memory."""


class PhysicalBatch:
    """The present number of examples on the device at once.

    Args:
        size: the first number to try.
        release: is called after memory has run out, before the next try.
        smallest: the last number to try: the most rows that a unit has in a batch.
    """

    def __init__(
        self, size: int, release: Callable[[], None] = lambda: None, smallest: int = 1
    ) -> None:
        self.size = max(size, smallest)
        self._release = release
        self._smallest = smallest

    def fit(self, compute: Callable[[int], Result]) -> Result:
        """Compute with ``size`` examples at once; if memory runs out, again with half as many.

        Args:
            compute: takes the size. A call that raises an error must have no effect.

        Raises:
            DoesNotFitError: memory runs out with one example, or one unit.
        """
        while True:
            try:
                return compute(self.size)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
            # Outside of the except clause, because its error keeps the computed tensors alive.
            if self.size <= self._smallest:
                unit = self._smallest > 1
                what = f"a unit of {self._smallest} rows" if unit else "a single example"
                fewer = "fewer rows_per_unit or augmentations, " if unit else ""
                raise DoesNotFitError(
                    f"{what} does not fit on the device ({reason}); take {fewer}a smaller network, a "
                    "method that trains fewer parameters, smaller images or shorter texts, training."
                    "precision: bfloat16, or a GPU with more memory, and look whether other programs use "
                    "this one"
                )
            self.size = max((self.size + 1) // 2, self._smallest)
            log.warning("out of memory: from now on %d examples at once (%s)", self.size, reason)
            self._release()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                # Otherwise torch compiles slower code, for any size, when it sees a second size.
                torch.compiler.reset()

    def parts(self, rest: Tensor, compute: Callable[[Tensor], Result]) -> Iterator[Result]:
        """Yield the results of a function for some examples, computed for as many at once as fit.

        Args:
            rest: the indices of the examples, int64.
            compute: takes some of them.
        """
        while len(rest):

            def first(size: int, rest: Tensor = rest) -> Result:
                return compute(rest[:size])

            found = self.fit(first)
            # `fit` may have reduced the size.
            rest = rest[self.size :]
            yield found


def usual_batch(batch_size: int, train_size: int) -> int:
    """Return a size that one sampled batch in 44 exceeds; such a batch needs another physical batch.

    Args:
        batch_size: B, the expected size; the standard deviation is below the root of B.
        train_size: N.
    """
    return min(train_size, batch_size + math.ceil(2 * math.sqrt(batch_size)))


def padded_size(physical_batch: int, batch_size: int, train_size: int) -> int:
    """Return the size of equal parts of a usual batch that fit, so that there is little padding.

    Args:
        physical_batch: the number of examples that fit.
        batch_size: B.
        train_size: N.
    """
    return _equal_parts(usual_batch(batch_size, train_size), physical_batch)


def part_size(examples: int, physical_batch: int) -> int:
    """Return the size of the micro-batches of a batch: as many equal ones for each process.

    >>> part_size(300, 256)  # one process
    256
    """
    return physical_batch if processes.count() == 1 else _equal_parts(examples, physical_batch)


def parts_of_units(units: Indices, physical_batch: int) -> list[slice]:
    """Return the micro-batches of a batch, which hold whole units: as many equal ones for each process.

    >>> units = torch.tensor([7, 7, 4, 4, 9]).numpy()
    >>> parts_of_units(units, physical_batch=3)  # one process
    [slice(0, 2, None), slice(2, 5, None)]

    Args:
        units: of each row; the rows of a unit stand together.
        physical_batch: the most rows of a micro-batch, if a unit has no more.
    """
    largest = int(np.diff(unit_starts(units, len(units))).max(initial=1))
    return list(whole_units(units, max(part_size(len(units), physical_batch), largest)))


def _equal_parts(examples: int, most: int) -> int:
    """Return the size of equal parts of at most some size, as many for each process."""
    parts = processes.count() * math.ceil(examples / (processes.count() * most))
    return math.ceil(examples / max(parts, 1)) or 1


class MicroBatches(Sequence[Any]):
    """The micro-batches of a batch, each of which is loaded when it is needed.

    Args:
        parts: the rows of each.
        load: returns the micro-batch of some rows.
    """

    def __init__(self, parts: Sequence[Part], load: Callable[[Part], Any]) -> None:
        self._parts, self._load = parts, load

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        """Load one, or return a part of them that is not loaded yet."""
        found = self._parts[index]
        return MicroBatches(found, self._load) if isinstance(index, slice) else self._load(found)
