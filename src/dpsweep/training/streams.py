"""Random streams, derived by name, so that no stream can shift another.

Every use of randomness in a trial (initialisation, sampling, noise) has its own stream:
``noise = torch_stream(device, trial_key, "noise")``. Equal names give equal streams on every
machine, different names give independent ones.

A stream is as secret as its name. Trials are named by their public configuration, so anybody can
replay their noise: fine for research, but a model that is to be released under its privacy
guarantee needs a secret part in the name of its noise and sampling streams.
"""

import hashlib

import numpy as np
import torch

from dpsweep.files import canonical_json


def stream_seed(*parts: str | int) -> int:
    """Return a 64-bit seed: the first 8 bytes of the SHA-256 of the parts as canonical JSON.

    ``"1"`` and ``1`` are different parts, and ``("ab", "c")`` differs from ``("a", "bc")``.
    """
    digest = hashlib.sha256(canonical_json(list(parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def numpy_stream(*parts: str | int) -> np.random.Generator:
    """Return the numpy generator (counter-based Philox) of a stream."""
    return np.random.Generator(np.random.Philox(key=stream_seed(*parts)))


def torch_stream(device: torch.device | str, *parts: str | int) -> torch.Generator:
    """Return the torch generator of a stream, on ``device``.

    Keep one generator for the whole trial, and save its state in checkpoints. Never seed afresh at
    every step: torch's CPU generator uses only 32 bits of its seed, so that among 100,000 seeds
    one expects a collision, and two steps that share their noise cancel it.
    """
    return torch.Generator(device).manual_seed(stream_seed(*parts))
