"""Data that every machine has, for the demo: handwritten digits, rendered letters, docstrings."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Part = tuple[Any, Labels]
"""Inputs and labels of a split, in the same order."""


class Generated(NamedTuple):
    """Examples for training and for testing, and where they are from."""

    train: Part
    test: Part
    classes: list[str]
    origin: str
    revision: str
