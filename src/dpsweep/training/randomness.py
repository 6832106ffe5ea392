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
import os
import secrets
import warnings
from collections.abc import Iterator
from typing import overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpsweep.base.errors import integer
from dpsweep.base.files import canonical_json
from dpsweep.gradients.units import unit_starts
from dpsweep.privacy import Sampling
from dpsweep.study.datasets import ROWS_PER_UNIT

KEY_BITS = 128
"""Length of a stream's key, as numpy's Philox generator takes it."""

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# The user of each secret stream of noise by the stream's key; None before the first draw.
_USERS: dict[int, object] = {}
_PARENT = object()
# What the noise of each secret stream and step was added to: its standard deviation, and the norm and some
# coordinates of the sum.
_SUMS: dict[tuple[int, int], tuple[float, Tensor]] = {}
_COORDINATES, _ROUNDING = 16, 1e-4


def _leave_streams_to_parent() -> None:
    """Let a forked process draw from no stream that its parent has: both would have the same noise."""
    _USERS.update(dict.fromkeys(_USERS, _PARENT))


os.register_at_fork(after_in_child=_leave_streams_to_parent)

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

    With ``units`` an example is a unit: a person with all of their rows. A batch has at most
    ``rows_per_unit`` rows of each sampled unit, drawn anew in each step without replacement.

    >>> patients = ["ann", "ann", "bob", "ann", "eve", "bob"]
    >>> sampler = PoissonSampler(Sampling(3, 2, 9), "mine", secret=b"", units=patients, rows_per_unit=2)
    >>> [sampler.batch(step).tolist() for step in range(3)]
    [[1, 3, 4], [0, 3, 2, 5, 4], [0, 1]]

    The batch of a step is a function of (stream, step): the generator is counter-based (Philox,
    Salmon et al. 2011), with the step in the upper half of its counter. Resuming needs no state.

    The probability is exactly the rational number that the accountant uses: an example is in the
    batch if a uniform integer below N is below B. For the full batch every batch is the whole data set.

    Attributes:
        sampling: N and B.
        units: the number of each row's unit, shape (rows,), int64, in the order of the units' first
            rows; None if every row is a unit.
        rows_per_unit: the most rows of a unit in a batch.
    """

    def __init__(
        self,
        sampling: Sampling,
        *stream_parts: str | int,
        secret: bytes | None = None,
        units: npt.ArrayLike | None = None,
        rows_per_unit: int = ROWS_PER_UNIT,
    ):
        """Set the sampling and the stream.

        Args:
            sampling: N and B, both of units; the number of steps is not checked.
            stream_parts: the stream's name.
            secret: with it no one else can draw the same batches. Without one there is a
                `PublicStreamWarning`, but not for b"".
            units: whose row each is, integers or names of shape (rows,); None: each row is a unit.
            rows_per_unit: the most rows of a unit in a batch.

        Raises:
            ValueError: there are not N units, or rows_per_unit is not a positive integer.
        """
        self.sampling = sampling
        self.rows_per_unit = integer("rows_per_unit", rows_per_unit, least=1)
        self.units = None if units is None else numbered(units)
        if self.units is not None:
            self._sizes = np.bincount(self.units)
            # The rows of unit 0, then those of unit 1 and so on.
            self._rows = np.argsort(self.units, kind="stable")
            self._first = np.cumsum(self._sizes) - self._sizes
            if len(self._sizes) != sampling.units:
                raise ValueError(
                    f"units: found {len(self._sizes)} different ones, expected train_size = "
                    f"{sampling.units}: N is the number of units, not of rows"
                )
        secret = _checked(secret)
        self._key = stream_key(*stream_parts, secret=secret)

    @property
    def most_rows(self) -> int:
        """The most rows that a unit has in a batch."""
        return 1 if self.units is None else min(self.rows_per_unit, int(self._sizes.max()))

    def batch(self, step: int) -> Indices:
        """Return the indices of the rows of a step, sorted by unit and row; the array may be empty."""
        philox = np.random.Philox(key=self._key, counter=step << 128)
        generator = np.random.Generator(philox)
        draws = generator.integers(self.sampling.units, size=self.sampling.units)
        sampled = np.flatnonzero(draws < self.sampling.batch_size)
        return sampled if self.units is None else self._rows_of(sampled, generator)

    def _rows_of(self, sampled: Indices, generator: np.random.Generator) -> Indices:
        """Draw rows of the sampled units: of each, those with the smallest of uniform numbers."""
        sizes = self._sizes[sampled]
        places = np.repeat(np.arange(len(sampled)), sizes)
        first = np.cumsum(sizes) - sizes
        rows = self._rows[self._first[sampled][places] + np.arange(len(places)) - first[places]]
        order = np.lexsort((generator.random(len(rows)), places))
        # Sorted by unit, so that a place in the order minus the unit's first one is a rank.
        chosen = order[np.arange(len(rows)) - first[places] < self.rows_per_unit]
        return rows[np.sort(chosen)]


def numbered(units: npt.ArrayLike) -> Indices:
    """Return the numbers of units from 0, in the order of their first rows.

    >>> numbered(["bob", "ann", "bob"]).tolist()
    [0, 1, 0]

    Args:
        units: whose row each is, integers or names of shape (rows,).

    Raises:
        ValueError: units are something else.
    """
    given = np.asarray(units)
    if given.dtype == object and all(isinstance(each, str) for each in given.flat):
        given = given.astype(str)  # a column of pandas
    if given.ndim != 1 or given.dtype.kind not in "iuU":
        raise ValueError(
            f"units: found {given.dtype} of shape {given.shape}; allowed: an integer or a name for each row"
        )
    _, first, of_row = np.unique(given, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[of_row]


@overload
def microbatches(indices: Indices, physical_batch: int) -> Iterator[tuple[Indices, Mask]]: ...


@overload
def microbatches(
    indices: Indices, physical_batch: int, units: Indices
) -> Iterator[tuple[Indices, Mask, Indices]]: ...


def microbatches(
    indices: Indices, physical_batch: int, units: Indices | None = None
) -> Iterator[tuple[Indices, Mask] | tuple[Indices, Mask, Indices]]:
    """Split a sampled batch into micro-batches of exactly ``physical_batch`` rows.

    >>> for rows, mask in microbatches(np.array([3, 5, 8]), physical_batch=2):
    ...     print(rows, mask)
    ...
    [3 5] [ True  True]
    [8 3] [ True False]

    With ``units`` a micro-batch holds whole units, whose rows stand together in ``indices``.

    >>> of_row = np.array([7, 7, 4, 4, 4])
    >>> for rows, mask, units in microbatches(np.array([0, 1, 2, 4]), 3, of_row):
    ...     print(rows, mask, units)
    ...
    [0 1 0] [ True  True False] [ 7  7 -1]
    [2 4 0] [ True  True False] [ 4  4 -1]

    Yields ``(indices, mask)``, both of shape ``(physical_batch,)``, and with units the unit of each row.
    A micro-batch is padded by repeating the batch's first index, with a false mask and unit -1. An empty
    batch yields nothing.

    Args:
        indices: of the rows of a batch.
        physical_batch: the number of rows in a micro-batch.
        units: the number of each row's unit, 0 or more, of all rows of the data; see `PoissonSampler`.

    Raises:
        ValueError: a unit has more rows than a micro-batch.
    """
    integer("physical_batch", physical_batch, least=1)
    of_row = np.arange(len(indices)) if units is None else np.asarray(units)[indices]
    for some in whole_units(of_row, physical_batch):
        size = some.stop - some.start
        padded = np.full(physical_batch, indices[0])
        padded[:size] = indices[some]
        mask = np.arange(physical_batch) < size
        if units is None:
            yield padded, mask
        else:
            yield padded, mask, np.append(of_row[some], np.full(physical_batch - size, -1))


def whole_units(units: Indices, physical_batch: int) -> Iterator[slice]:
    """Yield slices of at most ``physical_batch`` rows that hold whole units.

    >>> list(whole_units(np.array([7, 7, 4, 4, 4, 9]), 4))
    [slice(0, 2, None), slice(2, 6, None)]

    Args:
        units: the unit of each row; the rows of a unit stand together.
        physical_batch: the most rows.

    Raises:
        ValueError: a unit has more rows.
    """
    ends = unit_starts(units, len(units))[1:]
    start = 0
    while start < len(units):
        fitting = int(np.searchsorted(ends, start + physical_batch, side="right"))
        stop = int(ends[fitting - 1]) if fitting else 0
        if stop <= start:
            raise ValueError(
                f"physical batch of {physical_batch} examples: a unit has more rows; allowed: at least "
                "rows_per_unit, so that a micro-batch holds whole units"
            )
        yield slice(start, stop)
        start = stop


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
    `dpsweep.privacy.noise.tail_delta`. Both generators here draw float64.

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
        if secret:
            _USERS.setdefault(self._key, None)

    def __deepcopy__(self, memo: object) -> "GaussianNoise":
        """Return this stream, which has one user."""
        return self

    def __getstate__(self) -> dict[str, object]:
        """Refuse to write a secret stream: whoever reads it draws the same noise."""
        if self._public_users is None:
            raise TypeError(
                "noise with a secret is not pickled, because two processes would share it; give each "
                "training its own secret = dpsweep.new_secret()"
            )
        return vars(self)

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
        if move or users.get(self._key) is None:
            users[self._key] = user
        elif users[self._key] is not user:
            raise ValueError(
                "the noise of this name and secret belongs to another optimizer, or to the process that this "
                "one was forked from: two models with the same "
                "noise differ by the gradient of one person. Use dpsweep.PrivateTraining, or give each "
                "training its own secret = dpsweep.new_secret()"
            )

    def add_to(self, total: Tensor, step: int, standard_deviation: float) -> None:
        """Add the noise of a step in place.

        Args:
            total: shape (d,), float64, on any device.
            step: 0 or more. Equal steps get equal noise, so never use one twice.
            standard_deviation: of every coordinate.

        Raises:
            ValueError: this process has added the noise of this step and secret to another sum.
        """
        if self._public_users is None:
            self._refuse_another_sum(total, step, standard_deviation)
        chunks = torch.split(total, _CHUNK)
        draws = self._on_cpu if total.device.type == "cpu" else self._on_gpu
        for chunk, noise in zip(chunks, draws(chunks, step), strict=True):
            chunk.add_(noise, alpha=standard_deviation)

    def _refuse_another_sum(self, total: Tensor, step: int, standard_deviation: float) -> None:
        norm, some = total.norm(), total[:: len(total) // _COORDINATES + 1]
        kept = standard_deviation, torch.cat([norm[None], some])
        # One call, so that of two threads one is first. A new entry does not wait for the device.
        before = _SUMS.setdefault((self._key, step), kept)
        if before is kept:
            return
        error = _ROUNDING * float(norm)
        first, now = before[1].cpu(), kept[1].cpu()
        same = first.shape == now.shape and torch.allclose(first, now, rtol=0, atol=error)
        if not same or before[0] != standard_deviation:
            raise ValueError(
                f"the noise of step {step + 1} was added to another sum before (with other data, another "
                "learning rate or batch, or of a state that was loaded twice or edited): the difference of "
                "both results would have no noise. Train from the start, with a new secret"
            )

    def forget(self, step: int) -> None:
        """Let the noise of a step be added to another sum, because the first result was not used."""
        _SUMS.pop((self._key, step), None)

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
