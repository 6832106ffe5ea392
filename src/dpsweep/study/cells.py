"""Cells: the squares of the paper's heatmaps, and their names in files."""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from dpsweep.base.errors import integer
from dpsweep.study.clipping import RULES, ClippingBound

PARTS = ("dataset", "backbone", "method")
"""The parts of a problem that have a role."""
NAMED = (*PARTS, "optimizer")
"""The parts of a problem."""
AXES = ("epochs", "epsilon", "clipping_bound", "batch_size")
"""The axes of a grid, in the order in which values are chosen."""
CELL_AXES = ("epsilon", "epochs", "batch_size", "clipping_bound")
"""The axes of a grid, in the order of a cell's name."""

Full = Literal["full"]
BatchSize = int | Full


def number(value: float | str) -> str:
    """Format a grid value as in file names: 8, 0.25, 1e-05, inf, full, automatic.

    >>> [number(value) for value in (8.0, 0.25, 1e-5, "full")]
    ['8', '0.25', '1e-05', 'full']
    """
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def optimizer_steps(train_size: int, batch_size: int, epochs: int, rounding: str) -> int:
    """Return the number of optimizer steps T for E epochs at expected batch size B over N examples.

    >>> optimizer_steps(train_size=50_000, batch_size=1024, epochs=8, rounding="round")
    391

    ``round`` is max(1, round(E*N/B)), halves rounded up: T*B is within half a batch of E*N.
    ``ceil`` is E*ceil(N/B). Integer arithmetic keeps both exact for every N.

    Args:
        train_size: N.
        batch_size: B.
        epochs: E.
        rounding: round or ceil.

    Raises:
        ValueError: a number is not an integer, B is not in 1..N, E < 1, or the rounding is unknown.
    """
    train_size, batch_size = integer("train_size", train_size), integer("batch_size", batch_size)
    epochs = integer("epochs", epochs)
    if not 1 <= batch_size <= train_size or epochs < 1 or rounding not in ("round", "ceil"):
        raise ValueError(
            f"found batch_size {batch_size}, epochs {epochs}, rounding {rounding!r}; allowed: a batch size "
            f"in 1..{train_size}, epochs of at least 1, and round or ceil"
        )
    if rounding == "round":
        return max(1, (2 * epochs * train_size + batch_size) // (2 * batch_size))
    return epochs * -(-train_size // batch_size)


@dataclass(frozen=True, slots=True)
class Problem:
    """A dataset, backbone, method and optimizer: hyperparameters are tuned for each problem."""

    dataset: str
    backbone: str
    method: str
    optimizer: str = "adam"

    @property
    def name(self) -> str:
        """The problem's folder name, for example ``digits_vit-weak_film``; ``_sgd`` for DP-SGD."""
        optimizer = "" if self.optimizer == "adam" else f"_{self.optimizer}"
        return f"{self.dataset}_{self.backbone}_{self.method}{optimizer}"


class FeatureSource(NamedTuple):
    """The dataset and backbone of cached features, by their names in the study."""

    dataset: str
    backbone: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A (problem, epsilon, epochs, B, C): one job, which tunes the learning rate.

    >>> cell = Cell("digits_vit_film", epsilon=8.0, epochs=4, batch_size="full", clipping_bound=0.1)
    >>> cell.name
    'eps8_epochs4_Bfull_C0.1'
    >>> Cell.parse("digits_vit_film", cell.name) == cell
    True
    """

    problem: str
    """its name; ``Study.problems`` has its parts"""
    epsilon: float
    epochs: int
    batch_size: BatchSize
    clipping_bound: ClippingBound

    @property
    def name(self) -> str:
        """The cell's folder name, for example ``eps8_epochs8_B256_C0.1``."""
        return (
            f"eps{number(self.epsilon)}_epochs{self.epochs}"
            f"_B{number(self.batch_size)}_C{number(self.clipping_bound)}"
        )

    @classmethod
    def parse(cls, problem: str, name: str) -> "Cell":
        """Read a cell back from its folder name.

        Raises:
            ValueError: the name is not that of a cell.
        """
        match = re.fullmatch(r"eps([^_]+)_epochs([0-9]+)_B([^_]+)_C([^_]+)", name)
        if match is None:
            raise ValueError(
                f"{name!r} is not a cell name; one looks like eps8_epochs8_B256_C0.1 or "
                "eps8_epochs8_Bfull_Cautomatic"
            )
        epsilon, epochs, batch, clipping = match.groups()
        bound = clipping if clipping in RULES else float(clipping)
        return cls(
            problem,
            float(epsilon),
            int(epochs),
            "full" if batch == "full" else int(batch),
            cast(ClippingBound, bound),
        )
