"""Random streams, derived by name, so that no stream can shift another.

Every use of randomness in a trial (sampling, noise, the coins of an audit) has a stream of its own:
``stream_key(trial_key, "noise")``. Equal names give equal streams on every machine, different names
give independent ones. A key has 128 bits: among a million streams the probability that any two are
equal is below 1e-26.

A stream is as secret as its name. Trials are named by their public configuration, so anybody can
replay their noise. That is right for research on public data. A model that is released under its
privacy guarantee needs a ``secret``, drawn by `new_secret` and never stored.
"""

import hmac
import secrets

import numpy as np

from dpsweep.base.files import canonical_json

KEY_BITS = 128
"""Length of a stream's key, which is that of numpy's Philox generator."""


def stream_key(*parts: str | int, secret: bytes = b"") -> int:
    """Return the 128-bit key of a stream.

    It is the first half of the HMAC-SHA-256 of the parts as canonical JSON, so ``"1"`` and ``1``
    are different parts, and ``("ab", "c")`` differs from ``("a", "bc")``.

    Args:
        parts: the stream's name.
        secret: without it, the key is public.
    """
    digest = hmac.digest(secret, canonical_json(list(parts)).encode(), "sha256")
    return int.from_bytes(digest[: KEY_BITS // 8], "little")


def new_secret() -> bytes:
    """Return 256 bits from the operating system, for streams that nobody can replay."""
    return secrets.token_bytes(32)


def numpy_stream(*parts: str | int, secret: bytes = b"") -> np.random.Generator:
    """Return the numpy generator (counter-based Philox) of a stream; without a secret it is public."""
    return np.random.Generator(np.random.Philox(key=stream_key(*parts, secret=secret)))
