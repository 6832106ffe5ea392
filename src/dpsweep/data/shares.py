"""A part of a dataset with its classes in proportion."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dpsweep.study.shares import draw


def stratified_share(
    labels: npt.NDArray[np.int64],
    name: Callable[[int], Sequence[str | int]],
    share: float,
    seed: int,
) -> npt.NDArray[np.int64]:
    """Return the indices of a share of the examples, ascending.

    Of every class it is the examples with the smallest `draw`, ``share`` of them (rounded half up,
    at least one). So one more example moves at most one other: it may take the place of another one
    of its class.

    Args:
        labels: (examples,).
        name: what the example at an index is called.
        share: above 0, at most 1.
        seed: another one is another part.
    """
    if share == 1:
        return np.arange(len(labels))
    drawn = np.array([draw(seed, *name(place)) for place in range(len(labels))], np.uint64)
    kept = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        size = max(1, math.floor(share * len(members) + 0.5))
        kept.append(members[np.argsort(drawn[members], kind="stable")[:size]])
    return np.sort(np.concatenate(kept)) if kept else np.arange(0)
