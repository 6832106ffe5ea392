"""Poisson sampling as index streams, and physical micro-batches of fixed shape."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dpsweep.training.streams import stream_key

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class PoissonSampler:
    """Samples every example independently with probability ``batch_size / train_size``, each step.

    The batch of a step is a function of (stream, step): the generator is counter-based (Philox,
    Salmon et al. 2011), with the step in the upper half of its counter. Resuming needs no state.

    The probability is exactly the rational number that the accountant is told: an example is in
    the batch where a uniform integer below ``train_size`` is below ``batch_size``. With
    ``batch_size == train_size`` every batch is the whole data set.
    """

    def __init__(
        self, train_size: int, batch_size: int, *stream_parts: str | int, secret: bytes = b""
    ):
        """Sample from ``train_size`` examples, ``batch_size`` (at most that many) on average.

        Args:
            train_size: N.
            batch_size: B, the expected batch size.
            stream_parts: the stream's name.
            secret: with it nobody else can draw the same batches.

        Raises:
            ValueError: unless 1 <= batch_size <= train_size.
        """
        if not 1 <= batch_size <= train_size:
            raise ValueError(
                f"expected batch size {batch_size} is not possible with {train_size} training "
                f"examples: choose it between 1 and {train_size}"
            )
        self.train_size = train_size
        self.batch_size = batch_size
        self._key = stream_key(*stream_parts, secret=secret)

    def batch(self, step: int) -> Indices:
        """Return the sorted indices of the examples of a step; the array may be empty."""
        philox = np.random.Philox(key=self._key, counter=step << 128)
        draws = np.random.Generator(philox).integers(self.train_size, size=self.train_size)
        return np.flatnonzero(draws < self.batch_size)


def microbatches(indices: Indices, physical_batch: int) -> Iterator[tuple[Indices, Mask]]:
    """Split a sampled batch into micro-batches of exactly ``physical_batch`` rows.

    Yields ``(indices, mask)``, both of shape ``(physical_batch,)``. The last micro-batch is padded
    by repeating the batch's first index, with a false mask. An empty batch yields nothing.
    """
    if physical_batch < 1:
        raise ValueError(f"physical batch of {physical_batch} examples: it must be at least 1")
    for start in range(0, len(indices), physical_batch):
        chunk = indices[start : start + physical_batch]
        padded = np.full(physical_batch, indices[0])
        padded[: len(chunk)] = chunk
        yield padded, np.arange(physical_batch) < len(chunk)
