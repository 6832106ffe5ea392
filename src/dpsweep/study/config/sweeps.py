"""The section `sweeps`: grids of hyperparameters."""

import itertools
import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from dpsweep.study.cells import CELL_AXES, Cell, Full, Problem, number
from dpsweep.study.clipping import RULES, ClippingBound, RuleName
from dpsweep.study.config.section import (
    LONGEST_AXIS,
    Axis,
    Engine,
    Epsilon,
    Grid,
    LearningRates,
    Name,
    PositiveFloat,
    Section,
    strictly_increasing,
)
from dpsweep.study.messages import shorten


class Geometric(Section):
    """``count`` values from ``first`` to ``last``, both included, in equal ratios."""

    first: PositiveFloat
    last: PositiveFloat
    count: Annotated[int, Field(ge=2, le=LONGEST_AXIS)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.last <= self.first:
            raise ValueError(
                f"last: found {number(self.last)}; allowed: above first, which is {number(self.first)}"
            )
        return self


def batch_sizes_ascend(values: list[int | Full]) -> list[int | Full]:
    """Refuse batch sizes that are not sorted, with ``full`` last."""
    strictly_increasing([value for value in values if not isinstance(value, str)])
    if "full" in values[:-1]:
        raise ValueError("allowed: full as the last entry, once (it is the largest batch)")
    return values


def bounds_or_rule(value: list[float] | RuleName) -> list[ClippingBound]:
    """The values of a clipping axis: bounds, or the name of a rule without one."""
    return [value] if isinstance(value, str) else list(value)


class Sweep(Section):
    """A grid of cells on one (dataset, backbone, method, optimizer)."""

    dataset: Name
    backbone: Name
    method: Name
    optimizer: Literal["adam", "sgd"] = "adam"
    epsilon: Axis[Epsilon]
    epochs: Axis[PositiveInt]
    batch_size: Annotated[
        list[PositiveInt | Full],
        Field(min_length=1, max_length=LONGEST_AXIS),
        AfterValidator(batch_sizes_ascend),
    ]
    clipping_bound: Grid | RuleName
    """a list of C, or automatic (AUTO-S), or none (epsilon .inf only)"""
    learning_rate: LearningRates | Geometric
    seeds: Annotated[PositiveInt, Field(le=LONGEST_AXIS)]
    """how many: 1, 2, ..."""
    physical_batch: PositiveInt | Literal["auto"] | None = None
    """overrides training.physical_batch"""
    engine: Engine | None = None
    """overrides that of the method, and training.engine"""

    @model_validator(mode="after")
    def _private_training_clips(self) -> Self:
        rule = self.clipping_bound
        if (
            isinstance(rule, str)
            and math.isinf(RULES[rule].sensitivity)
            and self.epsilon != [math.inf]
        ):
            raise ValueError(
                f"clipping_bound: found {rule} with epsilon "
                f"[{shorten(map(number, self.epsilon))}]; allowed: epsilon [.inf] "
                "only, because nothing bounds the influence of one example"
            )
        return self

    @property
    def problem(self) -> Problem:
        """Dataset, backbone, method and optimizer of the sweep."""
        return Problem(self.dataset, self.backbone, self.method, self.optimizer)

    @property
    def axes(self) -> dict[str, list[Any]]:
        """Its values by axis, of which cells are made."""
        axes = {axis: getattr(self, axis) for axis in CELL_AXES}
        return axes | {"clipping_bound": self.clipping_bounds}

    def cells(self) -> list[Cell]:
        """All cells of the sweep, in grid order."""
        problem = self.problem.name
        return [Cell(problem, *place) for place in itertools.product(*self.axes.values())]

    @property
    def clipping_bounds(self) -> list[ClippingBound]:
        """The clipping axis of the grid; one value for a rule without a bound."""
        return bounds_or_rule(self.clipping_bound)

    @property
    def learning_rates(self) -> list[float]:
        """The learning rates, ascending; a geometric grid is rounded to 6 significant digits."""
        if isinstance(self.learning_rate, list):
            return list(self.learning_rate)
        grid = self.learning_rate
        ratio = grid.last / grid.first
        return [
            float(f"{grid.first * ratio ** (index / (grid.count - 1)):.6g}")
            for index in range(grid.count)
        ]
