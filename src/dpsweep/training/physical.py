"""Find how many examples fit on the device at once.

Sums over a batch are float64, so how it is cut into physical batches changes an update by rounding
only. Where memory runs out, half as many examples are taken from then on.
"""

import gc
import logging
import math
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import torch
from torch import Tensor

from dpsweep.base.errors import DpsweepError
from dpsweep.gradients.memory import first_line, is_out_of_memory

log = logging.getLogger(__name__)

PhysicalBatchSize = int | Literal["auto"]
ON_THE_CPU = 256
"""The size that ``auto`` takes there: memory runs out for the whole machine, and cannot be tried out."""

Result = TypeVar("Result")


class DoesNotFitError(DpsweepError):
    """The device has too little memory for a single example, or for what a checkpoint holds."""


class PhysicalBatch:
    """How many examples are on the device at once, at present.

    Args:
        size: to begin with.
        release: is called when memory has run out, before the next try.
    """

    def __init__(self, size: int, release: Callable[[], None] = lambda: None) -> None:
        self.size = size
        self._release = release

    def fit(self, compute: Callable[[int], Result]) -> Result:
        """Compute with ``size`` examples at once; where memory runs out, again with half as many.

        Args:
            compute: takes the size. What it has done when it raises an error must not count.

        Raises:
            DoesNotFitError: memory runs out with one example.
        """
        while True:
            try:
                return compute(self.size)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                reason = first_line(error)
            # Here, because the error that is handled holds on to what was computed.
            if self.size == 1:
                raise DoesNotFitError(
                    f"a single example does not fit on the device ({reason}); take a smaller network, a "
                    "method that trains fewer parameters, smaller images or shorter texts, training."
                    "precision: bfloat16, or a GPU with more memory, and look whether other programs use "
                    "this one"
                )
            self.size = (self.size + 1) // 2
            log.warning("out of memory: from now on %d examples at once (%s)", self.size, reason)
            self._release()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                # Else torch takes the second size for one of many, and compiles slower code for any.
                torch.compiler.reset()

    def parts(self, examples: int, compute: Callable[[Tensor], Result]) -> Iterator[Result]:
        """Compute something of all examples, as many at once as fit.

        Args:
            examples: how many there are.
            compute: takes the numbers of some, int64, which follow each other.
        """
        rest = torch.arange(examples)
        while len(rest):

            def first(size: int, rest: Tensor = rest) -> Result:
                return compute(rest[:size])

            found = self.fit(first)
            # As many as have fitted: fewer than before where memory has run out.
            rest = rest[self.size :]
            yield found


def usual_batch(batch_size: int, train_size: int) -> int:
    """Return a size that one sampled batch in 44 exceeds; such a batch takes one physical batch more.

    Args:
        batch_size: B, the expected size; the standard deviation is below the root of B.
        train_size: N.
    """
    return min(train_size, batch_size + math.ceil(2 * math.sqrt(batch_size)))


def padded_size(physical_batch: int, batch_size: int, train_size: int) -> int:
    """Cut a batch of the usual size into equal parts that fit, so that little of them is padding.

    Args:
        physical_batch: how many examples fit.
        batch_size: B.
        train_size: N.
    """
    usual = usual_batch(batch_size, train_size)
    return math.ceil(usual / math.ceil(usual / physical_batch))
