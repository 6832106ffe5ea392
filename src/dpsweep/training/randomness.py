"""The randomness of a trial: named streams, Poisson sampling and Gaussian noise.

Every use of randomness (sampling, noise, the coins of an audit) has its own stream, so that no use
shifts another: ``stream_key(trial_key, "noise")``. Equal names give equal streams on every machine,
different names give independent ones. A key has 128 bits: among a million streams the probability
that any two are equal is below 1e-26. The numbers of a step are a function of (stream, step):
resuming needs no state, and no step can repeat the noise of another.

A stream is only as secret as its name. Trials are named by their public configuration, so anyone can
replay their noise. This is fine for research on public data. A model that is released with its
privacy guarantee needs a ``secret``, drawn by `new_secret` and never stored. Sampler and noise warn
if none is given; ``secret=b""`` marks a stream that may be public.
"""

import hmac
import math
import secrets
import warnings
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsweep.base.files import canonical_json
from dpsweep.privacy import Sampling

KEY_BITS = 128
"""Length of a stream's key, as numpy's Philox generator takes it."""

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# The user of each secret stream of noise that was drawn from, by the stream's key.
_USERS: dict[int, object] = {}

# Noise is drawn in chunks of so many numbers, so that it never fills the memory.
_CHUNK = 1 << 20


class PublicStreamWarning(UserWarning):
    """Sampling or noise that anyone can replay, without ``secret=b""`` to allow it."""


# Shown once per process. Filters of the user come first.
warnings.filterwarnings("once", category=PublicStreamWarning, append=True)


def stream_key(*parts: str | int, secret: bytes = b"") -> int:
    """Return the 128-bit key of a stream.

    >>> stream_key("mine", "noise") == stream_key("mine", "noise")
    True
    >>> stream_key("1") == stream_key(1)
    False

    It is the first half of the HMAC-SHA-256 of the parts as canonical JSON, so ``"1"`` and ``1``
    are different parts, and ``("ab", "c")`` differs from ``("a", "bc")``.

    Args:
        parts: the stream's name.
        secret: without one, the key is public.
    """
    digest = hmac.digest(secret, canonical_json(list(parts)).encode(), "sha256")
    return int.from_bytes(digest[: KEY_BITS // 8], "little")


def new_secret() -> bytes:
    """Return 256 bits from the operating system, for streams that no one else can replay.

    >>> len(new_secret())
    32
    """
    return secrets.token_bytes(32)


def numpy_stream(*parts: str | int, secret: bytes = b"") -> np.random.Generator:
    """Return a stream as a numpy generator (counter-based Philox); without a secret it is public."""
    return np.random.Generator(np.random.Philox(key=stream_key(*parts, secret=secret)))


def _checked(secret: bytes | None) -> bytes:
    """Return the secret of a stream; warn if there is none."""
    if secret is None:
        warnings.warn(
            "sampling and noise without a secret are the same in every run, so that anybody can replay "
            "them and the model is not private. For private data give both the secret of this run: secret = "
            'dpsweep.new_secret(), which is never stored. For public data say secret=b""',
            PublicStreamWarning,
            stacklevel=3,
        )
    elif not isinstance(secret, bytes):
        raise ValueError(
            f"secret: found a {type(secret).__name__}; allowed: bytes, as dpsweep.new_secret() returns"
        )
    return secret or b""


class PoissonSampler:
    """A sampler that takes every example independently with probability B / N.

    >>> sampler = PoissonSampler(Sampling(20, 5, steps=2), "mine", "sampling", secret=b"")  # public
    >>> sampler.batch(0).tolist(), sampler.batch(1).tolist()
    ([1, 9, 15], [3, 13, 14, 18])

    The batch of a step is a function of (stream, step): the generator is counter-based (Philox,
    Salmon et al. 2011), with the step in the upper half of its counter. Resuming needs no state.

    The probability is exactly the rational number that the accountant uses: an example is in the
    batch if a uniform integer below N is below B. For the full batch every batch is the whole data set.
    """

    def __init__(
        self, sampling: Sampling, *stream_parts: str | int, secret: bytes | None = None
    ) -> None:
        """Set the sampling and the stream.

        Args:
            sampling: N and B; the number of steps is not checked.
            stream_parts: the stream's name.
            secret: with it no one else can draw the same batches. Without one there is a
                `PublicStreamWarning`, but not for b"".
        """
        self.sampling = sampling
        secret = _checked(secret)
        self._key = stream_key(*stream_parts, secret=secret)

    def batch(self, step: int) -> Indices:
        """Return the sorted indices of the examples of a step; the array may be empty."""
        philox = np.random.Philox(key=self._key, counter=step << 128)
        draws = np.random.Generator(philox).integers(self.sampling.units, size=self.sampling.units)
        return np.flatnonzero(draws < self.sampling.batch_size)


def microbatches(indices: Indices, physical_batch: int) -> Iterator[tuple[Indices, Mask]]:
    """Split a sampled batch into micro-batches of exactly ``physical_batch`` rows.

    >>> for rows, mask in microbatches(np.array([3, 5, 8]), physical_batch=2):
    ...     print(rows, mask)
    ...
    [3 5] [ True  True]
    [8 3] [ True False]

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


class GaussianNoise:
    """Independent standard normal numbers for every step of a trial, with complete tails.

    >>> total = torch.zeros(3, dtype=torch.float64)
    >>> noise = GaussianNoise("mine", "noise", secret=b"")  # public
    >>> noise.add_to(total, step=0, standard_deviation=2.0)
    >>> total
    tensor([4.4306, 0.2496, 0.5345], dtype=torch.float64)

    ``torch.randn`` in float32 never exceeds 5.77 on a CPU and 6.76 on a GPU, because it transforms
    uniform numbers of 24 and 33 bits. With such noise, a Gaussian mechanism has outcomes that only
    one of two neighbouring training sets can produce; see docs/privacy.md and
    `dpsweep.privacy.gaussian.tail_delta`. Both generators here draw float64.

    On a CPU they come from numpy's Philox generator: a 128-bit key, with the step in the upper half
    of its counter. On a GPU they come from torch's generator, whose seed has only 64 bits. So the
    noise is the sum of two draws with different seeds, divided by the square root of 2, which is
    normal too. Key and step determine the 128 bits of both seeds.
    """

    def __init__(self, *stream_parts: str | int, secret: bytes | None = None):
        """Set the stream.

        Args:
            stream_parts: the stream's name.
            secret: with it no one else can draw the same noise. Without one there is a
                `PublicStreamWarning`, but not for b"".
        """
        secret = _checked(secret)
        self._key = stream_key(*stream_parts, secret=secret)
        # A stream without a secret is public anyway: trials are trained again with the same noise.
        self._public_users: dict[int, object] | None = None if secret else {}

    @property
    def identity(self) -> str:
        """The same for two streams exactly if their numbers are; it does not reveal them."""
        return hex(stream_key(hex(self._key), "identity"))

    def reserve(self, user: object, *, move: bool = False) -> None:
        """Make a user the only one that draws from this stream, in this process.

        Args:
            user: for example of an optimizer.
            move: whether the stream may be taken from another user, who cannot draw from then on.

        Raises:
            ValueError: another user has the stream.
        """
        users = _USERS if self._public_users is None else self._public_users
        if move:
            users[self._key] = user
        elif users.setdefault(self._key, user) is not user:
            raise ValueError(
                "the noise of this name and secret belongs to another optimizer: two models with the same "
                "noise differ by the gradient of one person. Use dpsweep.PrivateTraining, or give each "
                "training its own secret = dpsweep.new_secret()"
            )

    def add_to(self, total: Tensor, step: int, standard_deviation: float) -> None:
        """Add the noise of a step in place.

        Args:
            total: shape (d,), float64, on any device.
            step: 0 or more. Equal steps get equal noise, so never use one twice.
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
