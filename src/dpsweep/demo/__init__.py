"""Data of the demo that need no download: handwritten digits, rendered letters, docstrings."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Part = tuple[Any, Labels]
"""Inputs and labels of a split, in the same order."""


class Generated(NamedTuple):
    """Training and test examples, and their origin."""

    train: Part
    test: Part
    classes: list[str]
    origin: str
    revision: str
