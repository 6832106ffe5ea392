"""Gaussian noise whose tails are there: float64 normals from counter-based generators.

The usual draw, ``torch.randn`` in float32, never exceeds 5.77 on a CPU and 6.76 on a GPU, because
it transforms uniform numbers of 24 and 33 bits. A Gaussian mechanism with such noise has outcomes
that only one of two neighbouring training sets can produce; see docs/privacy.md and
`dpsweep.privacy.tails`. Both generators here draw float64.

The noise of a step is a function of (stream, step), as the sampled batch is: resuming needs no
state, and no step can repeat the noise of another.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dpsweep.training.streams import stream_key

_CHUNK = 1 << 20
"""Numbers that are drawn at once: noise for all parameters of a network never lies in memory."""


class GaussianNoise:
    """Independent standard normal numbers for every step of a trial.

    On a CPU they come from numpy's Philox generator: a 128-bit key, with the step in the upper half
    of its counter. On a GPU they come from torch's generator, whose seed has 64 bits. So two
    draws with different seeds are added and divided by the square root of 2, which is normal too,
    and both seeds together are derived from the key and the step.
    """

    def __init__(self, *stream_parts: str | int, secret: bytes = b""):
        """Name the stream; with a ``secret`` nobody else can draw the same noise."""
        self._key = stream_key(*stream_parts, secret=secret)

    def add_to(self, total: Tensor, step: int, standard_deviation: float) -> None:
        """Add the noise of a step in place.

        Args:
            total: shape (d,), float64, on any device.
            step: 0 or more. The same step gets the same noise, so never use one twice.
            standard_deviation: of every coordinate.
        """
        chunks = torch.split(total, _CHUNK)
        draws = self._on_cpu if total.device.type == "cpu" else self._on_gpu
        for chunk, noise in zip(chunks, draws(chunks, step), strict=True):
            chunk.add_(noise, alpha=standard_deviation)

    def _on_cpu(self, chunks: tuple[Tensor, ...], step: int) -> Iterator[Tensor]:
        generator = np.random.Generator(np.random.Philox(key=self._key, counter=step << 128))
        buffer = np.empty(max(map(len, chunks), default=0))
        for chunk in chunks:
            yield torch.from_numpy(generator.standard_normal(out=buffer[: len(chunk)]))

    def _on_gpu(self, chunks: tuple[Tensor, ...], step: int) -> Iterator[Tensor]:
        seeds = stream_key(hex(self._key), step)
        generators = [
            torch.Generator(chunks[0].device).manual_seed(seed)
            for seed in (seeds & (1 << 64) - 1, seeds >> 64)
        ]
        for chunk in chunks:
            first, second = (
                torch.randn(len(chunk), generator=each, dtype=torch.float64, device=chunk.device)
                for each in generators
            )
            yield first.add_(second).mul_(math.sqrt(0.5))
